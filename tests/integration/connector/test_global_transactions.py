"""A coordinator's two branches in two databases, captured by two connectors: found again downstream
by one global id. And one that is in doubt too long.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import psycopg
import pytest

from fixtures.connector import Installation, Maker, wait_until
from helpers.connector.topics import UNCOMMITTED, gid_of


def ledger(here: Installation) -> list[tuple[str, str, str]]:
    return [(e["global_id"], e["branch"], e["state"]) for e in here.records("prepared")]


def has_ended(here: Installation, state: str) -> bool:
    """A rollback has no commit record: its entry follows with the next progress."""
    return ledger(here)[-1][2] == state


def told(here: Installation, *arguments: str, members: list[str] | None = None) -> str:
    """What a command prints, if the configuration names these members of a group."""
    with pytest.MonkeyPatch.context() as patch:
        if members:
            patch.setenv("TWOFOLD_GROUP", json.dumps({"name": "orders", "members": members}))
        return here.twofold(*arguments, ok=True).stdout


@pytest.mark.parametrize(
    "outcome", [pytest.param("commit", marks=pytest.mark.core), pytest.param("rollback", marks=pytest.mark.slow)]
)
def test_two_branches_share_one_global_id(connector: Maker, outcome: str) -> None:
    places = {"ledger": connector(), "stock": connector()}
    for here in places.values():
        here.carry()
    branches: list[psycopg.Connection[Any]] = []
    for name, here in places.items():
        branch = psycopg.connect(here.conninfo)
        here.at_end(branch.close)
        branch.tpc_begin(branch.xid(4660, "order 7", name))
        branch.execute("INSERT INTO account VALUES (1, 1, 'of order 7')")
        branches.append(branch)
    for branch, here in zip(branches, places.values(), strict=True):
        branch.tpc_prepare()
        here.tail("account", isolation=UNCOMMITTED).wait_for(lambda s: gid_of(s) is not None)
    for name, here in places.items():
        listed = json.loads(told(here, "prepared", "list", "--json"))
        assert [(each["global_id"], each["branch"]) for each in listed] == [("4660:order 7", name)]
    for here in places.values():  # its row is in Kafka before: one that ends then is in no ledger
        wait_until(partial(here.records, "prepared"), what="the branch is in the ledger")
    for branch in branches:
        branch.tpc_commit() if outcome == "commit" else branch.tpc_rollback()
    for name, here in places.items():
        topics = here.check()
        ended = "committed" if outcome == "commit" else "rolled_back"
        wait_until(partial(has_ended, here, ended), what="the outcome is in the ledger")
        assert {entry[:2] for entry in ledger(here)} == {("4660:order 7", name)}
        outcomes = [each for s in topics.commits for each in s.value["prepared"]]
        expected = [("4660:order 7", name)] if outcome == "commit" else []
        assert [(each["global_id"], each["branch"]) for each in outcomes] == expected
        sources = [s.value["source"] for s in topics.rows if gid_of(s) is not None]
        assert [(source["global_id"], source["branch"]) for source in sources] == expected


def test_a_gid_of_ones_own_coordinator_has_a_global_id_by_a_pattern(connector: Maker) -> None:
    here = connector(prepared={"gid_patterns": [r"pay-(?P<global>\d+)-(?P<branch>\w+)"]})
    here.carry()
    with psycopg.connect(here.conninfo, autocommit=True) as branch:
        branch.execute("BEGIN; INSERT INTO account VALUES (1, 1, 'of payment 7'); PREPARE TRANSACTION 'pay-7-ledger'")
        here.tail("account", isolation=UNCOMMITTED).wait_for(lambda s: gid_of(s) is not None)
        (listed,) = json.loads(told(here, "prepared", "list", "--json"))
        assert (listed["global_id"], listed["branch"]) == ("7", "ledger")
        branch.execute("COMMIT PREPARED 'pay-7-ledger'")
    topics = here.check()
    (outcome,) = (each for s in topics.commits for each in s.value["prepared"])
    (source,) = (s.value["source"] for s in topics.rows if gid_of(s) is not None)
    assert (outcome["global_id"], outcome["branch"]) == (source["global_id"], source["branch"]) == ("7", "ledger")


@pytest.mark.parametrize(
    ("opened", "outcome"), [pytest.param(True, "commit", marks=pytest.mark.slow), (True, "rollback"), (False, "commit")]
)
def test_a_branch_whose_sibling_has_an_outcome_is_offered_that_one_alone(
    connector: Maker, outcome: str, *, opened: bool
) -> None:
    """Opened before, the sibling is in its connector's ledger; else in a commit record alone."""
    places = {name: connector(prepared={"open_within": 0 if opened else 600.0}) for name in ("ledger", "stock")}
    order = f"order of {places['ledger'].prefix}"
    branches: dict[str, psycopg.Connection[Any]] = {}
    for name, here in places.items():
        here.carry()
        branches[name] = psycopg.connect(here.conninfo)
        here.at_end(branches[name].close)
        branches[name].tpc_begin(branches[name].xid(4660, order, name))
        branches[name].execute("INSERT INTO account VALUES (1, 1, 'x')")
    for branch in branches.values():
        branch.tpc_prepare()
    if opened:
        for here in places.values():  # its row is in Kafka before: one that ends then is in no ledger
            wait_until(partial(here.records, "prepared"), what="the branch is in the ledger")
    stock = places["stock"]
    gid = stock.ask("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()")
    both = [f"COMMIT PREPARED '{gid}';", f"ROLLBACK PREPARED '{gid}';"]
    listed = told(stock, "prepared", "list")
    assert listed.startswith(f"4660:{order} branch stock")
    assert [statement in listed for statement in both] == [False, False], "one that nobody here knows may have ended"
    assert "no statement is offered: no outcome of its other branches is known here" in listed

    branches["ledger"].tpc_commit() if outcome == "commit" else branches["ledger"].tpc_rollback()
    places["ledger"].caught_up()
    members = [here.prefix for here in places.values()]
    unbelieved = told(stock, "prepared", "list")
    assert [statement in unbelieved for statement in both] == [False, False], "whoever may create topics wrote them"
    said = "committed" if outcome == "commit" else "rolled back"
    # A rollback has no commit record: the ledger's entry follows with the next progress.
    known = f"sibling 4660:{order} branch ledger of {places['ledger'].prefix} is {said}"
    wait_until(lambda: known in told(stock, "prepared", "list", members=members), what="the outcome is in the ledger")
    listed = told(stock, "prepared", "list", members=members)
    assert [statement in listed for statement in both] == [outcome == "commit", outcome == "rollback"]
    assert "this alone keeps the global transaction whole" in listed
    (as_json,) = json.loads(told(stock, "prepared", "list", "--json", members=members))
    assert as_json["statements"] == [both[0 if outcome == "commit" else 1]]
    branches["stock"].tpc_commit() if outcome == "commit" else branches["stock"].tpc_rollback()
    for here in places.values():
        here.check()


def test_in_doubt_too_long(connector: Maker) -> None:
    here = connector(prepared={"doubt_warning": 1.0, "hold": 0.5})
    run = here.start()
    here.prepare("it''s late", "INSERT INTO account VALUES (1, 1, ''), (2, 1, '')")
    here.sql("INSERT INTO transfer VALUES ('t', 5, 5)")
    run.wait_for("in doubt too long: it's late")
    line = next(line for line in run.said().splitlines() if "in doubt too long" in line)
    database, owner = here.ask("SELECT current_database()"), here.ask("SELECT current_user")
    for words in (f"database {database}", "2 rows", here.table("account"), "COMMIT PREPARED 'it''s late';"):
        assert words in line
    status = told(here, "status")
    for words in ("TOO LONG", f"owner {owner}", database, "2 rows", "ROLLBACK PREPARED 'it''s late';"):
        assert words in status
    (listed,) = json.loads(told(here, "status", "--json"))["in_doubt"]
    assert listed["too_long"]
    assert listed["wal_bytes"] > 0
    here.sql("ROLLBACK PREPARED 'it''s late'")
    here.check()
    assert json.loads(told(here, "status", "--json"))["in_doubt"] == []
