"""HTTP calls to a schema registry of Confluent's API, retried while the registry is away.

A retry is safe: reading changes nothing, and registering a schema twice registers it once. Errors
come back as values of two classes; the callers make them messages with the names of their own
settings.

The standard library does it: Confluent's client brings OAuth and an asynchronous client along,
which is half of the time that `twofold run` takes to start, and the Spark jobs bring no
dependencies.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from twofold_common.http_client import open_url
from twofold_common.kept_connections import Answer, KeptConnections, is_direct
from twofold_common.secret_sources import SecretSource

ABSENT: Final = frozenset({40401, 40402, 40403, 40404, 40406})
"""The registry's own error codes for a subject, a version or a schema that it does not have, or has
deleted."""
_NOT_PERMITTED: Final = 42205
"""The registry's own error code for a change that its mode forbids, or the subject's mode."""
_JSON: Final = "application/vnd.schemaregistry.v1+json"
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 3.0


class RegistryAway(Exception):
    """No server answered, or the answering server is not a registry."""


class RegistryRefusal(Exception):
    """The registry answered with an error that a retry does not change."""

    def __init__(self, status: int, code: int, reason: str) -> None:
        super().__init__(f"HTTP {status}, {reason}")
        self.status = status
        self.code = code
        """The registry's own; 0 if something else answered, which knows nothing of schemas."""
        self.reason = reason

    @property
    def is_absent(self) -> bool:
        """Whether the registry does not have the requested schema or subject."""
        return self.status == 404 and self.code in ABSENT

    @property
    def is_forbidden_by_mode(self) -> bool:
        """Whether the registry's mode, or the subject's, forbids the change."""
        return self.status == 422 and self.code == _NOT_PERMITTED


def authorization(*, basic: tuple[str, str] | None = None, bearer: str | None = None) -> dict[str, str]:
    """The header that names the caller; empty for an anonymous one."""
    if bearer is not None:
        return {"Authorization": f"Bearer {bearer}"}
    if basic is not None:
        return {"Authorization": "Basic " + base64.b64encode(":".join(basic).encode()).decode()}
    return {}


def ask_credentials(user: str | None, password: SecretSource | None, token: SecretSource | None) -> dict[str, str]:
    """Ask for the secrets of this moment, and make a request's header of them."""
    if token is not None:
        return authorization(bearer=token.ask())
    return authorization(basic=(user, password.ask() if password else "") if user else None)


def subject_path(subject: str) -> str:
    """The path of a subject, whatever characters its name has."""
    return f"/subjects/{quote(subject, safe='')}"


class RegistryHttp:
    """One registry. May be used by several threads."""

    def __init__(
        self,
        url: str,
        *,
        credentials: Callable[[], Mapping[str, str]] = authorization,
        credentials_expire: bool = False,
        ca_file: Path | None = None,
        request_timeout_s: float,
        patience_s: float,
    ) -> None:
        """Raise OSError if `ca_file` cannot be used. No new try begins after `patience_s`.

        `credentials` gives each try's header that names the caller. If they expire, a try that is
        denied is repeated.
        """
        self.url = url.rstrip("/")
        self._headers = {"Accept": f"{_JSON}, application/json", "Content-Type": _JSON}
        self._credentials = credentials
        self.credentials_expire = credentials_expire
        self._request_timeout_s = request_timeout_s
        self._patience_s = patience_s
        self._context = ssl.create_default_context(cafile=ca_file) if self.url.lower().startswith("https:") else None
        self._kept = (
            KeptConnections(self.url, timeout_s=request_timeout_s, context=self._context)
            if is_direct(self.url)
            else None
        )

    def ask(
        self, path: str, body: bytes | None = None, *, method: str | None = None, is_registered: bool = False
    ) -> Any:
        """Return the registry's answer. Raise RegistryAway or RegistryRefusal.

        `is_registered`: somebody has registered it, so where it is absent it is asked for again; a
        replica of the registry may lag behind.

        After the last try the first error is raised: later ones may only be of a server that closes
        connections.
        """
        deadline, pause_s = time.monotonic() + self._patience_s, _FIRST_PAUSE_S
        first: RegistryAway | RegistryRefusal | None = None
        while True:
            try:
                return self._ask_once(path, body, method)
            except (RegistryAway, RegistryRefusal) as error:
                if isinstance(error, RegistryRefusal) and not self._may_pass(error, is_registered=is_registered):
                    raise
                first = first or error
                if time.monotonic() + pause_s > deadline:
                    raise first from first.__cause__
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _may_pass(self, refusal: RegistryRefusal, *, is_registered: bool) -> bool:
        if refusal.is_absent:
            return is_registered
        return refusal.status >= 500 or (refusal.status == 401 and self.credentials_expire)

    def _ask_once(self, path: str, body: bytes | None, method: str | None) -> Any:
        headers = {**self._headers, **self._credentials()}
        try:
            answer = self._send(method or ("GET" if body is None else "POST"), path, body, headers)
        except (OSError, http.client.HTTPException) as error:
            raise RegistryAway(describe_cause(error)) from error
        if not 200 <= answer.status < 300:
            code, reason = _own_error(answer)
            if answer.status == 404 and code not in ABSENT:
                raise RegistryAway("HTTP 404 without the registry's own error code")
            raise RegistryRefusal(answer.status, code, reason)
        try:
            return json.loads(answer.content)
        except ValueError as error:
            raise RegistryAway("what answers is no registry: it does not send JSON") from error

    def _send(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> Answer:
        """Return the answer over a kept connection; proxies and redirects are for `open_url`."""
        if self._kept is not None:
            answer = self._kept.ask(method, path, body, headers)
            if not 300 <= answer.status < 400:
                return answer
        request = urllib.request.Request(self.url + path, body, dict(headers), method=method)  # noqa: S310  (the address is the user's own)
        try:
            with open_url(request, timeout_s=self._request_timeout_s, context=self._context) as opened:
                return Answer(opened.status, opened.reason, opened.read())
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, error.reason, error.read())


def certificate_remedy(error: BaseException | None, *, address: str, authorities: str) -> str | None:
    """Return what helps if the server's certificate was refused; None if that is not the cause.

    The two settings have the server's address, and the certificates of authorities.
    """
    while error is not None and not isinstance(error, ssl.SSLCertVerificationError):
        inner = error.reason if isinstance(error, urllib.error.URLError) else None
        error = inner if isinstance(inner, BaseException) else error.__cause__
    if error is None:
        return None
    match error.verify_code:
        case 9 | 10:
            return "renew the registry's certificate, or set this machine's clock: timedatectl set-ntp true"
        case 62 | 64:
            return f"set {address} to a name in the certificate, or give the registry a certificate for this name"
    return f"set {authorities} to the certificate of the authority that signed the registry's"


def describe_cause(error: Exception) -> str:
    """Name the cause alone, without urllib's and the operating system's words around it."""
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, ssl.SSLError) and "WRONG_VERSION_NUMBER" in str(cause):
        return "the server speaks http, and the address says https"
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {cause.verify_message}"
    return (isinstance(cause, OSError) and cause.strerror) or str(cause) or type(cause).__name__


def _own_error(answer: Answer) -> tuple[int, str]:
    """The registry's own code and words; code 0 if something else answered."""
    try:
        told = json.loads(answer.content)
        return int(told["error_code"]), str(told.get("message", answer.reason))
    except (ValueError, KeyError, TypeError, AttributeError):
        return 0, answer.reason
