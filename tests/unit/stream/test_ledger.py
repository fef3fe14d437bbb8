"""The in-doubt ledger: who ended long ago is taken away, who has no outcome never is."""

from __future__ import annotations

import pytest

from twofold.bridge.actions import LedgerState
from twofold.kafka.row_batch import RowBatch
from twofold.source.messages import Prepare
from twofold.stream import bookkeeping_records as module
from twofold.stream.bookkeeping_records import Ledger
from twofold.stream.source_transaction import SourceTransaction
from twofold.tables.table_version import TransactionInfo
from twofold_avro.records import Prepared
from twofold_common.positions import Lsn, PreparedIdentity


def prepared(xid: int) -> SourceTransaction:
    identity = PreparedIdentity(xid, "x")
    info = TransactionInfo(xid, 0, identity.downstream_id(Lsn(xid)), "x")
    transaction = SourceTransaction(info, RowBatch(), all_tables=None, spool=None)  # type: ignore[arg-type]
    transaction.prepare = Prepare(Lsn(xid), Lsn(xid + 1), 0, identity)
    return transaction


def key(xid: int) -> str:
    return prepared(xid).downstream_id


@pytest.fixture(autouse=True)
def two_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ENDED_KEPT", 2)


def note(ledger: Ledger, state: LedgerState, *xids: int) -> None:
    for xid in xids:
        ledger.note(PreparedIdentity(xid, "x"), state, prepared(xid))


def gone(taken: dict[str, Prepared | None]) -> list[str]:
    return [key for key, entry in taken.items() if entry is None]


def test_the_oldest_that_ended_is_taken_away() -> None:
    ledger = Ledger((), [key(1)])
    note(ledger, LedgerState.ROLLED_BACK, 2)
    assert gone(ledger.take_entries(None)) == []
    note(ledger, LedgerState.COMMITTED, 3)
    assert ledger.committed(prepared(4), 8)[key(4)].sequence == 8
    taken = ledger.take_entries(9)
    committed = taken[key(3)]
    assert committed is not None
    assert (committed.state, committed.sequence) == ("committed", 9)
    assert gone(taken) == [key(1), key(2)]
    assert ledger.take_entries(10) == {}


def test_what_has_no_outcome_stays() -> None:
    ledger = Ledger((), ())
    for state in (LedgerState.OPEN, LedgerState.PARKED):
        note(ledger, state, *range(1, 6))
        assert gone(ledger.take_entries(None)) == []


def test_millions_of_an_older_twofold_go_bit_by_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TOMBSTONES_MAX", 3)
    ledger = Ledger((), [key(xid) for xid in range(1, 8)])
    assert [gone(ledger.take_entries(None)) for _ in range(3)] == [[key(1), key(2), key(3)], [key(4), key(5)], []]


def test_the_outcome_of_one_whose_prepare_did_not_come_again() -> None:
    before = Prepared(7, "x", 7, 0, "parked", 3, ("a.topic",))
    ledger = Ledger([before], ())
    assert ledger.topics(PreparedIdentity(7, "x")) == ("a.topic",)
    assert ledger.topics(PreparedIdentity(8, "x")) == ()
    ledger.note(PreparedIdentity(7, "x"), LedgerState.ROLLED_BACK, None)
    ledger.note(PreparedIdentity(8, "x"), LedgerState.ROLLED_BACK, None)
    (entry,) = ledger.take_entries(None).values()
    assert entry is not None
    assert (entry.xid, entry.state, entry.rows, entry.topics) == (7, "rolled_back", 3, ("a.topic",))
