"""How the trial asks a REST catalog: by its prefix, with its token, as of one moment."""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from helpers.security.guards import Handler, served
from readers.catalogs import RestTables
from readers.rest_session import RestAccess, RestSession

COMMIT = "POST /v1/{prefix}/transactions/commit"


class Catalog(Handler):
    """Has two tables; a request for `accounts` may move them."""

    config: dict[str, Any]
    secret = ""
    tokens = 0
    sequences: dict[str, list[int]]
    """What each load of a table shows; the last for ever."""
    seen: list[str]

    def do_GET(self) -> None:
        if self.secret and self.headers.get("Authorization") != f"Bearer token{self.tokens}":
            self.answer(b"{}", 401)
            return
        place = urllib.parse.urlsplit(self.path)
        self.seen.append(self.path)
        self.answer(json.dumps(self.config if place.path == "/v1/config" else self._load(place.path)).encode())

    def do_POST(self) -> None:
        form = urllib.parse.parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        if (form["client_id"], form["client_secret"], form["scope"]) != (["me"], [self.secret], ["all"]):
            self.answer(b"{}", 401)
            return
        type(self).tokens += 1
        self.answer(json.dumps({"access_token": f"token{self.tokens}"}).encode())

    def _load(self, path: str) -> dict[str, Any]:
        values = self.sequences[path.rpartition("/")[2]]
        sequence = values.pop(0) if len(values) > 1 else values[0]
        snapshot = {"snapshot-id": sequence, "summary": {"twofold.sequence": str(sequence)}}
        return {"metadata": {"snapshots": [snapshot], "refs": {"main": {"snapshot-id": sequence}}}}


@contextmanager
def opened(
    accounts: Sequence[int] = (1,), vault: Sequence[int] = (1,), *, secret: str = "", **config: Any
) -> Iterator[tuple[str, type[Catalog]]]:
    had: dict[str, Any] = {"accounts": list(accounts), "vault": list(vault)}
    handler = type("Had", (Catalog,), {"config": config, "secret": secret, "sequences": had, "seen": []})
    with served(handler) as port:
        yield f"http://localhost:{port}", handler


def test_a_catalog_is_asked_by_the_prefix_of_the_warehouse_with_a_token_that_is_replaced_when_it_expires() -> None:
    with opened(secret="hunter2", overrides={"prefix": "lake"}, endpoints=[COMMIT]) as (address, catalog):
        session = RestSession(RestAccess(address, "s3://tables", credential="me:hunter2", scope="all"))
        assert session.offers_commit
        session.load("public", "vault", snapshots="refs")
        assert catalog.tokens == 1
        catalog.tokens += 1  # the one that the session has is no longer right
        session.load("public", "vault", snapshots="refs")
    table = "/v1/lake/namespaces/public/tables/vault?snapshots=refs"
    assert catalog.seen == ["/v1/config?warehouse=s3%3A%2F%2Ftables", table, table]


@pytest.mark.parametrize(
    ("config", "offers"), [({}, True), ({"endpoints": []}, False), ({"endpoints": [COMMIT]}, True)]
)
def test_a_catalog_that_lists_no_endpoints_is_taken_for_one_that_has_them(config: dict[str, Any], offers: bool) -> None:
    with opened(**config) as (address, _):
        assert RestTables("rest", RestAccess(address), commits_at_once=False).offers_commit == offers


@pytest.mark.parametrize(
    ("accounts", "vault", "found"),
    [([7], [7], [7, 7]), ([7], [6], [7, 6]), ([6, 7], [7], None)],
    ids=["one cut", "two cuts", "a cut in between"],
)
def test_a_look_is_of_one_moment_or_says_nothing(
    accounts: list[int], vault: list[int], found: list[int] | None
) -> None:
    with opened(accounts, vault) as (address, _):
        tables = RestTables("rest", RestAccess(address), commits_at_once=False)
        assert tables.look(("accounts", "vault")) == found
