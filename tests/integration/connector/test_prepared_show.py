"""`twofold prepared show`: the rows of one transaction in doubt, which nobody sees under
read_committed.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

from fixtures.connector import Installation, Maker, wait_until
from helpers.connector.topics import UNCOMMITTED, Seen, gid_of

HOSTILE = "a\nFORGED\x1b[2J\u202egnp.exe"


def is_of(gid: str, seen: Seen) -> bool:
    return gid_of(seen) == gid


def is_open(here: Installation, gid: str) -> bool:
    return [entry["state"] for entry in here.records("prepared") if entry["gid"] == gid][-1:] == ["open"]


def none_of(here: Installation, gid: str) -> str:
    """What is said once Kafka has none of the rows; empty before."""
    said = here.twofold("prepared", "show", gid, ok=True).stdout
    return said if "change" not in said else ""


def all_of(here: Installation, gid: str, changes: int) -> Any:
    """The transaction as JSON, once so many changes are there."""
    known = json.loads(here.twofold("prepared", "show", gid, "--json", ok=True).stdout)
    return known if sum(each["changes"] for each in known["tables"]) == changes else None


@pytest.mark.core
def test_an_open_transactions_rows_are_shown_by_table(connector: Maker) -> None:
    here = connector(policy={"columns": [{"column": "public.account.note", "action": "redact"}]})
    everybody = here.tail("account", "transfer", isolation=UNCOMMITTED)
    with here.carrying():
        here.prepare("other", "INSERT INTO account VALUES (100, 0, 'other')")
        here.prepare(
            "pay 7",
            "INSERT INTO account SELECT i, i, 'secret' FROM generate_series(1, 7) i",
            f"INSERT INTO transfer VALUES (E'{HOSTILE}', 1, 1)",
        )
        assert everybody.wait_for(lambda s: s.topic == here.table("transfer") and is_of("pay 7", s))
        wait_until(partial(is_open, here, "pay 7"))
    assert "Kafka has none of its rows now" in wait_until(partial(none_of, here, "pay 7")), "a stopped run aborts them"
    with here.carrying():
        known = wait_until(partial(all_of, here, "pay 7", 8))
        shown = here.twofold("prepared", "show", "pay 7", ok=True)
        assert here.twofold("prepared", "show", "pay7").returncode == 2
        assert "did you mean 'pay 7'?" in here.twofold("prepared", "show", "pay7").stderr
        here.sql("ROLLBACK PREPARED 'pay 7'", "ROLLBACK PREPARED 'other'")
    tables = {each["table"]: each for each in known["tables"]}
    assert {name: each["changes"] for name, each in tables.items()} == {"public.account": 7, "public.transfer": 1}
    rows = [each["value"]["after"] for each in tables["public.account"]["first"]]
    assert rows == [{"id": i, "version": i, "note": "[redacted]"} for i in range(1, 6)], (
        "in their order, under the data policy"
    )
    assert known["statements"] == ["COMMIT PREPARED 'pay 7';", "ROLLBACK PREPARED 'pay 7';"]
    assert "read_uncommitted" in shown.stderr
    assert f"{here.prefix}.prepared at {here.reader.bootstrap}" in shown.stderr
    assert "public.account  7 changes" in shown.stdout
    assert "and 2 more" in shown.stdout
    assert all(each.isprintable() for each in shown.stdout.replace("\n", "")), ascii(shown.stdout)
    assert "a\\nFORGED\\u001b[2J\\u202egnp.exe" in shown.stdout
    assert "secret" not in shown.stdout


def test_a_parked_transactions_rows_are_in_the_connector(connector: Maker) -> None:
    here = connector(prepared={"hold": 0.5})
    with here.carrying():
        here.prepare("long", "INSERT INTO account VALUES (1, 1, 'x')")
        wait_until(lambda: [e["state"] for e in here.records("prepared")][-1:] == ["parked"])
        shown = here.twofold("prepared", "show", "long", ok=True)
        here.sql("ROLLBACK PREPARED 'long'")
    assert "its rows are not in Kafka (parked)" in shown.stdout
    assert "read_uncommitted" not in shown.stderr
