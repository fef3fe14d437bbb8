"""The schemas of a schema registry of Confluent's API, by their ids."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import unquote, urlsplit

from twofold_common.errors import SetupError, Unreachable, UsageError
from twofold_common.registry_http import RegistryAway, RegistryHttp, RegistryRefusal, authorization, certificate_remedy

_REQUEST_S, _PATIENCE_S = 5.0, 30.0


def schemas_at(url: str | Callable[[int], str]) -> Callable[[int], str]:
    """Return the function that asks the registry at this URL, which may have a user and a password;
    or the function that is given.
    """
    if not isinstance(url, str):
        return url
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        # Not repeated: it may have a password.
        raise UsageError(
            "the registry's URL must be http://host:port or https://host:port, with user:password@ before the host if it wants them"
        )
    user = (unquote(parts.username), unquote(parts.password or "")) if parts.username else None
    bare = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    http = RegistryHttp(
        bare, credentials=lambda: authorization(basic=user), request_timeout_s=_REQUEST_S, patience_s=_PATIENCE_S
    )

    def schema_of(schema_id: int) -> str:
        try:
            return str(http.ask(f"/schemas/ids/{schema_id}", is_registered=True)["schema"])
        except RegistryAway as error:
            remedy = certificate_remedy(error, address="the registry's URL", authorities="SSL_CERT_FILE")
            raise Unreachable(
                f"the registry at {bare} does not answer: {error}; remedy: {remedy or 'start it, or correct its URL'}"
            ) from error
        except RegistryRefusal as error:
            raise SetupError(
                f"the registry at {bare} does not give schema {schema_id}: {error}; remedy: give the URL of the connector's registry, with user and password if it wants them"
            ) from error

    return schema_of
