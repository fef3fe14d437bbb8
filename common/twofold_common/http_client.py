"""Opens a URL without following a redirect to another server. The standard library follows each
redirect with all headers: a server in a registry's place, or between, could send a caller's
credentials to any host, in clear.
"""

from __future__ import annotations

import io
import ssl
import urllib.error
import urllib.request
from functools import cache
from http.client import HTTPMessage
from typing import IO, Any, Final
from urllib.parse import urlsplit

_PORTS: Final = {"http": 80, "https": 443}


def open_url(
    request: urllib.request.Request | str,
    *,
    timeout_s: float,
    context: ssl.SSLContext | None = None,
    may_leave: bool = False,
) -> Any:
    """Open a URL and return the answer, as `urllib.request.urlopen` does.

    A redirect that is not followed is an HTTPError with the redirect's status; its reason says why.
    `may_leave`: the request has no credentials, and the content is checked, so that another server
    may give it; but not one without TLS in the place of one with TLS.
    """
    https = urllib.request.HTTPSHandler(context=context or _default_context())
    opener = urllib.request.build_opener(https, _Redirects(may_leave=may_leave))
    return opener.open(request, timeout=timeout_s)


@cache
def _default_context() -> ssl.SSLContext:
    """Read this machine's certificates once; Python 3.12 would for each request."""
    return ssl.create_default_context()


class _Redirects(urllib.request.HTTPRedirectHandler):
    def __init__(self, *, may_leave: bool) -> None:
        self._may_leave = may_leave

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> urllib.request.Request | None:
        here, there = _origin(req.full_url), _origin(newurl)
        if here[0] == "https" != there[0]:
            reason = f"it redirects from https to {_show(there)}, where everybody could read along"
        elif here != there and not self._may_leave:
            reason = f"it redirects to another server, {_show(there)}, which is not given the credentials"
        else:
            return super().redirect_request(req, fp, code, msg, headers, newurl)
        fp.close()
        raise urllib.error.HTTPError(req.full_url, code, reason, headers, io.BytesIO())


_Origin = tuple[str, str, int | None]


def _origin(url: str) -> _Origin:
    parts = urlsplit(url)
    try:
        port = parts.port or _PORTS.get(parts.scheme)
    except ValueError:  # no number
        port = None
    return parts.scheme, parts.hostname or "", port


def _show(origin: _Origin) -> str:
    scheme, host, port = origin
    return ascii(f"{scheme}://{host}:{port}")[1:-1]
