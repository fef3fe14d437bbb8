"""A REST catalog of Iceberg: what a client is told of it, and its answers as the protocol says."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import Any, Final

_COMMIT: Final = "POST /v1/{prefix}/transactions/commit"
_LIMIT_S: Final = 60


@dataclass(frozen=True, slots=True)
class RestAccess:
    """Where a catalog is, and who may use it."""

    address: str
    warehouse: str = ""
    credential: str = ""
    """A client's name and its secret, `name:secret`; empty where the catalog asks for none."""
    scope: str = ""

    @property
    def token_address(self) -> str:
        return f"{self.address}/v1/oauth/tokens"

    @property
    def properties(self) -> dict[str, str]:
        """What Iceberg's client and pyiceberg are told, beside the address."""
        told = {"warehouse": self.warehouse, "credential": self.credential, "scope": self.scope}
        if self.credential:
            told["oauth2-server-uri"] = self.token_address
        return {name: value for name, value in told.items() if value}


class RestSession:
    """Asks the catalog, with a token where it wants one. Threads may share it."""

    def __init__(self, access: RestAccess) -> None:
        self._access = access
        self._token = ""
        query = urllib.parse.urlencode({"warehouse": access.warehouse} if access.warehouse else {})
        said = self._ask(f"v1/config?{query}")
        prefix = {**said.get("defaults", {}), **said.get("overrides", {})}.get("prefix", "")
        self._base = f"v1/{prefix}" if prefix else "v1"
        endpoints = said.get("endpoints")
        self.offers_commit = endpoints is None or _COMMIT in endpoints
        """Whether it says that several tables can change in one commit. A catalog that lists no
        endpoints is taken for one that does, by Iceberg's client too."""

    def load(self, schema: str, table: str, *, snapshots: str) -> dict[str, Any]:
        """Return a table's metadata, with all snapshots or with those of its `refs`."""
        place = f"{self._base}/namespaces/{schema}/tables/{table}?snapshots={snapshots}"
        metadata: dict[str, Any] = self._ask(place)["metadata"]
        return metadata

    def _ask(self, place: str) -> dict[str, Any]:
        """A token that has expired is replaced."""
        if self._access.credential and not self._token:
            self._sign_in()
        try:
            return self._get(place)
        except urllib.error.HTTPError as error:
            with error:
                if error.code not in (401, 403) or not self._access.credential:
                    raise
        self._sign_in()
        return self._get(place)

    def _get(self, place: str) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        request = urllib.request.Request(f"{self._access.address}/{place}", headers=headers)
        with urllib.request.urlopen(request, timeout=_LIMIT_S) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def _sign_in(self) -> None:
        self._token = ask_token(self._access)


def ask_token(access: RestAccess) -> str:
    """Return a token, by OAuth2's client credentials."""
    name, _, secret = access.credential.partition(":")
    form = {"grant_type": "client_credentials", "client_id": name, "client_secret": secret}
    if access.scope:
        form["scope"] = access.scope
    body = urllib.parse.urlencode(form).encode()
    with urllib.request.urlopen(access.token_address, body, timeout=_LIMIT_S) as answer:
        return str(json.load(answer)["access_token"])
