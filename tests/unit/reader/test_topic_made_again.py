"""A table's topic that was deleted and made again has other rows at the offsets of former ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import pytest

from twofold_avro.records import Commit, PreparedOutcome
from twofold_common.errors import Refused
from twofold_common.positions import source_place
from twofold_reader.changes import Change, OrderedRow
from twofold_reader.whole_transactions import Transaction, assemble

NO_SCHEMA: Any = None
OUTCOME = PreparedOutcome("7:0/5", 7, "gid", 0x5, 0x18, 0)
COMMIT = Commit(3, "batch", 0x20, 0, 2, 0, (OUTCOME,), stream_id="one")


def row(index: int, identity: str | None, lsn: int, commit_lsn: int | None) -> OrderedRow:
    at, number, transaction = source_place(identity, 1, lsn, commit_lsn, {OUTCOME.id: OUTCOME.commit_lsn})
    change = Change("public.account", "c", None, {}, [], [], number, b"", NO_SCHEMA)
    return at, number, index, transaction, change, 0


def begin(other: OrderedRow) -> Transaction:
    """The first transaction, of two partitions."""
    rows = [iter([row(0, "1:0/8", 0x8, 0x10)]), iter([other])]
    return next(assemble(COMMIT, 0, rows, {"bank.public.account"}))


@pytest.mark.parametrize("kind", ["backfill", "reload"])
def test_a_transaction_s_rows_are_no_load_s(kind: Literal["backfill", "reload"]) -> None:
    load = replace(COMMIT, kind=kind)
    (loaded,) = assemble(load, 0, [iter([row(0, None, 0x12, None)])], {"bank.public.account"})
    assert len(list(loaded.changes)) == 1
    (loaded,) = assemble(load, 0, [iter([row(0, "1:0/8", 0x8, 0x10)])], {"bank.public.account"})
    with pytest.raises(Refused, match=r"commit record 3 names rows of public\.account, and other rows lie there"):
        list(loaded.changes)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(row(1, None, 0x30, None), id="loaded later"),
        pytest.param(row(1, None, 0x12, None), id="loaded at a place between"),
        pytest.param(row(1, "9:0/21", 0x21, 0x20), id="of a later transaction"),
        pytest.param(row(1, "8:0/6", 0x6, None), id="of another prepared transaction"),
    ],
)
def test_rows_of_another_time_are_refused_before_anything_comes(other: OrderedRow) -> None:
    with pytest.raises(Refused, match=r"commit record 3 names rows of public\.account, and other rows lie there"):
        begin(other)


@pytest.mark.parametrize(
    "other", [row(1, "1:0/8", 0x9, 0x10), row(1, OUTCOME.id, 0x6, None), row(1, "2:0/9", 0x9, 0x1F)]
)
def test_its_own_rows_come(other: OrderedRow) -> None:
    assert begin(other).id == "1:0/8"
