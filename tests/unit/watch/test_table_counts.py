"""What is counted of each table, and which changes of a table the journal is told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from twofold.watch.snapshot import list_tables
from twofold.watch.table_counts import TableChange, TableCount, TableCounts
from twofold_avro.records import Pin, Range, SkippedRow

ACCOUNT = "bank.public.account"
PIN = Pin("public", "account", 3, "{}", key_schema_id=1, value_schema_id=2)
SKIPPED = SkippedRow(ACCOUNT, 0x4D, b"\x02")
LATER = replace(SKIPPED, lsn=0x4E)


def known(pin: Pin = PIN) -> TableCounts:
    counts = TableCounts()
    counts.know({ACCOUNT: pin})
    return counts


def only(counts: TableCounts) -> TableCount:
    (table,) = counts.copy()
    return table


def test_rows_are_those_of_the_ranges_of_all_partitions() -> None:
    counts = known()
    counts.count([Range(ACCOUNT, 0, 5, 9, 4), Range(ACCOUNT, 2, 0, 0, 1), Range("bank.messages", 0, 1, 1, 1)], 70.0)
    counts.count([Range(ACCOUNT, 0, 11, 12, 2)], 80.0)
    assert (only(counts).rows, only(counts).changed_at) == (7, 80.0)


def test_counts_outlive_a_recovery_and_tables_that_are_gone_do_not() -> None:
    counts = known()
    counts.count([Range(ACCOUNT, 0, 5, 9, 4)], 70.0)
    counts.know({ACCOUNT: PIN})
    assert only(counts).rows == 4
    counts.know({})
    assert counts.copy() == []


@pytest.mark.parametrize(
    ("before", "now", "told"),
    [
        ({}, {}, []),
        ({}, {"bound": b"{}"}, []),
        ({}, {"value_schema_id": 7}, [("new version", "public.account (schema 7 after 2)", False)]),
        ({}, {"backfill": "waiting"}, [("load begun", "public.account", True)]),
        ({"backfill": "waiting"}, {"backfill": "running"}, []),
        ({"backfill": "running"}, {"backfill": "paused"}, [("load paused", "public.account", True)]),
        ({"backfill": "paused"}, {"backfill": "running"}, [("load resumed", "public.account", True)]),
        ({"backfill": "running"}, {"backfill": "ready"}, [("load ended", "public.account", True)]),
        ({}, {"stale": "rewritten"}, [("stale", "public.account: rewritten", False)]),
        ({"stale": "rewritten"}, {"stale": None}, []),
        ({}, {"skipped": (SKIPPED,)}, [("row skipped", "public.account: at 0/4D", False)]),
        ({"skipped": (SKIPPED,)}, {"skipped": (SKIPPED, LATER)}, [("row skipped", "public.account: at 0/4E", False)]),
        ({"skipped": (SKIPPED,)}, {}, []),
        ({}, {"relation": -16400}, [("not published any more", "public.account", False)]),
    ],
)
def test_a_change_of_a_table_is_told_once(
    before: dict[str, object], now: dict[str, object], told: list[tuple[str, str, bool]]
) -> None:
    counts = known(replace(PIN, **before))  # type: ignore[arg-type]
    pinned = {ACCOUNT: replace(PIN, **now)}  # type: ignore[arg-type]
    assert list(counts.repin(pinned)) == [TableChange(*change) for change in told]
    assert list(counts.repin(pinned)) == []


@pytest.mark.parametrize(
    ("pin", "state"),
    [
        ({}, "ready"),
        ({"backfill": "waiting"}, "waiting"),
        ({"backfill": "running"}, "loading"),
        ({"backfill": "paused"}, "paused"),
        ({"stale": "rewritten"}, "stale"),
        ({"stale": "rewritten", "backfill": "running"}, "loading"),
        ({"stale": "rewritten", "relation": -16400}, "not published"),
    ],
)
def test_the_page_has_one_state_of_each_table(pin: dict[str, object], state: str) -> None:
    counts = known(replace(PIN, **pin))  # type: ignore[arg-type]
    assert counts.stale == ("stale" in pin), "what the metric twofold_stale_tables says"
    (listed,) = list_tables(counts.copy(), [])["tables"]
    assert (listed["state"], listed["stale"]) == (state, pin.get("stale", ""))
    assert listed["repair"] == ("twofold backfill start public.account" if "stale" in pin else "")


def test_a_table_that_lacks_rows_comes_before_the_others_with_the_command() -> None:
    other = replace(PIN, table="other", skipped=(SKIPPED, LATER))
    counts = known()
    counts.know({ACCOUNT: PIN, "bank.public.other": other})
    first, second = list_tables(counts.copy(), [])["tables"]
    assert (first["table"], first["state"], first["lacks"]) == ("public.other", "ready", ("0/4D", "0/4E"))
    assert first["repair"] == "twofold backfill start public.other"
    assert (second["lacks"], second["repair"]) == ((), "")


def test_a_table_that_was_not_known_is_published_and_loaded() -> None:
    counts = TableCounts()
    told = [(change.what, change.text) for change in counts.repin({ACCOUNT: replace(PIN, backfill="waiting")})]
    assert told == [("published", f"public.account in {ACCOUNT} (schema 2)"), ("load begun", "public.account")]


@pytest.mark.parametrize(
    ("error", "blamed"),
    [
        ("the message key of table public.account is not what it was\n  at stake: rows", True),
        ("the topic bank.public.account was deleted", True),
        ("run: twofold backfill start public.account (to undo the change is not enough)", True),
        ("table public.account_history: the type of a has changed", False),
        ("Kafka does not answer", False),
    ],
)
def test_an_error_counts_at_the_tables_that_it_names(error: str, blamed: bool) -> None:
    counts = known()
    counts.blame(error)
    assert (only(counts).errors, only(counts).error) == ((1, error) if blamed else (0, ""))
