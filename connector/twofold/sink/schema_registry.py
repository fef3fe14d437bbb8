"""The schema registry: each schema version is registered once, under TopicNameStrategy's subjects, and never on the row path.

An outage raises `Unreachable`: the run ends before anything is written with the new schema, and goes on when the registry is back. A schema that the subject's compatibility forbids
raises `Refused` with the registry's own reason, before a row is written with it.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from twofold.errors import Refused, SetupError, TwofoldError, Unreachable, UsageError

_TRIES = 4
_ABSENT = {40401, 40402, 40403}
"""The registry's own codes: it has no such subject, version or schema."""
_JSON = "application/vnd.schemaregistry.v1+json"


@dataclass(frozen=True, slots=True)
class RegistrySettings:
    """How to reach the registry."""

    url: str
    timeout_s: float = 10.0
    """Of a call with all its tries."""
    basic: tuple[str, str] | None = None
    """User and password."""
    bearer: str | None = None
    ca_file: Path | None = None


def key_subject(topic: str) -> str:
    return f"{topic}-key"


def value_subject(topic: str) -> str:
    return f"{topic}-value"


class Registry:
    """Confluent's API, as far as it is needed; bounded, with its errors sorted and what is known remembered.

    The standard library does it: Confluent's own client brings OAuth and an asynchronous client along, which is half of what `twofold run` takes to start.
    """

    def __init__(self, settings: RegistrySettings) -> None:
        self._ids: dict[tuple[str, str], int] = {}
        self._schemas: dict[int, str] = {}
        self._url = settings.url.rstrip("/")
        self._timeout_s = settings.timeout_s
        self._headers = {"Accept": f"{_JSON}, application/json", "Content-Type": _JSON, **_authorization(settings)}
        parts = urlsplit(self._url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise UsageError(f"registry.url is {settings.url!r}: http://host:port or https://host:port")
        try:
            context = ssl.create_default_context(cafile=settings.ca_file) if parts.scheme == "https" else None
        except OSError as error:
            raise UsageError(f"registry.ca_file {settings.ca_file} cannot be used: {error}") from error
        self._opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context))

    def register(self, subject: str, schema: str) -> int:
        """The id of the schema under the subject; registers it if it is new there."""
        known = self._ids.get((subject, schema))
        if known is None:
            known = int(self._ask(subject, f"/subjects/{_quoted(subject)}/versions", _body(schema))["id"])
            self._ids[subject, schema] = known
        return known

    def known_id(self, subject: str, schema: str) -> int | None:
        """The id of the schema under the subject if it is registered there; registers nothing."""
        try:
            return int(self._ask(subject, f"/subjects/{_quoted(subject)}", _body(schema))["id"])
        except _Absent:
            return None

    def schema(self, schema_id: int) -> str:
        """The schema of an id, as JSON."""
        if schema_id not in self._schemas:
            self._schemas[schema_id] = str(self._ask(f"schema {schema_id}", f"/schemas/ids/{schema_id}")["schema"])
        return self._schemas[schema_id]

    def versions(self, subject: str) -> list[str]:
        """All schemas of the subject, the oldest first."""
        try:
            versions = f"/subjects/{_quoted(subject)}/versions"
            return [str(self._ask(subject, f"{versions}/{n}")["schema"]) for n in self._ask(subject, versions)]
        except _Absent:
            return []

    def withdraw(self, subject: str) -> None:
        """Delete the subject if it is there. Its schemas stay readable by their ids."""
        try:
            self._ask(subject, f"/subjects/{_quoted(subject)}", method="DELETE")
        except _Absent:
            return
        finally:
            self._ids = {(of, schema): known for (of, schema), known in self._ids.items() if of != subject}

    def accepts(self, subject: str, schema: str) -> bool:
        """Whether `register` would be let through: the subject has no version yet, or the new one is compatible."""
        try:
            path = f"/compatibility/subjects/{_quoted(subject)}/versions/latest"
            return bool(self._ask(subject, path, _body(schema))["is_compatible"])
        except _Absent:
            return True

    def _ask(self, about: str, path: str, body: bytes | None = None, *, method: str | None = None) -> Any:
        """The answer, which may be asked for again: registering the same schema twice is registering it once."""
        pause_s, tries_left = self._timeout_s / (8 * _TRIES), _TRIES
        while True:
            tries_left -= 1
            request = urllib.request.Request(self._url + path, body, self._headers, method=method)  # noqa: S310  (the address is the user's own)
            try:
                with self._opener.open(request, timeout=self._timeout_s / (2 * _TRIES)) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError as error:
                with error:
                    code, reason = _reason(error)
                if error.code < 500 or not tries_left:
                    raise self._sorted(error.code, code, reason, about) from error
            except (OSError, http.client.HTTPException) as error:
                if not tries_left:
                    raise Unreachable(
                        f"the registry at {self._url} does not answer: {error or type(error).__name__}; check its address, and that it runs"
                    ) from error
            except ValueError as error:
                raise Unreachable(
                    f"the registry at {self._url} does not answer as one: {error}; check its address"
                ) from error
            time.sleep(pause_s)
            pause_s *= 2

    def _sorted(self, status: int, code: int, reason: str, about: str) -> TwofoldError:
        match status:
            case 409:
                return Refused(
                    f"the registry refuses the new schema of {about}: {reason}",
                    at_stake="readers of the topic could no longer read it; no row was written with the new schema",
                    repair=f"set the subject {about} to another compatibility (NONE lets everything through) and start again; to undo the change in PostgreSQL is not enough, for a row made under it waits to be published",
                )
            case 422:
                return Refused(
                    f"the registry does not take the schema of {about} for valid: {reason}",
                    at_stake="rows written with it could not be read; none was",
                    repair="report this with the table's definition: Twofold made a schema that the registry cannot parse",
                )
            case 401 | 403:
                return SetupError(
                    f"the registry at {self._url} does not let us in (HTTP {status}): check registry.username and registry.password, or registry.token,"
                    f" and that the account may read and write {about}"
                )
            case 404 if code in _ABSENT:
                return _Absent(f"the registry at {self._url} does not know {about}")
            case 404:  # a gateway's, or of an address that is not the API's: it says nothing of what the registry has
                return Unreachable(
                    f"the registry at {self._url} does not answer as one: HTTP 404 without the registry's own error code; check registry.url and what stands before it"
                )
            case _:
                return Unreachable(f"the registry at {self._url} fails: HTTP {status}, {reason}; look into its log")


def _quoted(subject: str) -> str:
    return quote(subject, safe="")


def _body(schema: str) -> bytes:
    return json.dumps({"schema": schema, "schemaType": "AVRO"}).encode()


def _reason(error: urllib.error.HTTPError) -> tuple[int, str]:
    """In the registry's own words, with its own code; 0: it is not the registry that answers."""
    try:
        said = json.load(error)
        return int(said["error_code"]), str(said["message"])
    except (ValueError, KeyError, TypeError, OSError):
        return 0, error.reason


def _authorization(settings: RegistrySettings) -> dict[str, str]:
    if settings.bearer is not None:
        return {"Authorization": f"Bearer {settings.bearer}"}
    if settings.basic is not None:
        return {"Authorization": "Basic " + base64.b64encode(":".join(settings.basic).encode()).decode()}
    return {}


class _Absent(SetupError):
    """The registry answers that it has no such thing."""
