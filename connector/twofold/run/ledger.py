"""The in-doubt ledger as this process writes it: its entries, and which of them it removes.

Each start reads the whole ledger, so it must not grow for ever. The latest of the ended
transactions stay for people; older ones get a tombstone. Recovery needs only transactions without
an outcome, and these are never removed. The commit records keep what has committed, as long as
Kafka keeps those.

On kill -9 nothing is lost: the topic shows again what is to be removed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace

from twofold.bridge.actions import LedgerState
from twofold.stream.bookkeeping_records import ledger_entry
from twofold.stream.waiting_rows import PreparedRows
from twofold_avro.records import Prepared
from twofold_common.positions import Lsn, PreparedIdentity

ENDED_KEPT = 10_000
TOMBSTONES_MAX = 1_000
"""The most in one Kafka transaction."""


class Ledger:
    """The ledger of one run; used by the thread that reads."""

    def __init__(self, unresolved: Iterable[Prepared], ended: Iterable[str]) -> None:
        """Start with what recovery read; `ended` are downstream ids, the oldest first."""
        self._unresolved = {PreparedIdentity(entry.xid, entry.gid): entry for entry in unresolved}
        self._ended = deque(ended)
        self._entries: dict[str, Prepared] = {}

    def topics(self, identity: PreparedIdentity) -> tuple[str, ...]:
        """Return the topics of a transaction that was unresolved when this run began."""
        entry = self._unresolved.get(identity)
        return entry.topics if entry else ()

    def note(self, identity: PreparedIdentity, state: LedgerState, prepared: PreparedRows | None) -> None:
        """Keep an entry for the main producer's next commit.

        A transaction whose prepare did not come again keeps its former entry, with the new state.
        """
        if prepared is not None:
            self._entries[prepared.downstream_id] = ledger_entry(prepared, state)
        elif entry := self._unresolved.get(identity):
            self._entries[identity.downstream_id(Lsn(entry.prepare_lsn))] = replace(entry, state=state.value)

    def take_entries(self, sequence: int | None) -> dict[str, Prepared | None]:
        """Return the entries of the main producer's commit, tombstones included.

        `sequence` is the number of its commit record, if it has one.
        """
        entries, self._entries = self._entries, {}
        for key, entry in entries.items():
            if entry.state == LedgerState.COMMITTED.value:
                entries[key] = replace(entry, sequence=sequence)
            if entry.state in {LedgerState.COMMITTED.value, LedgerState.ROLLED_BACK.value}:
                self._ended.append(key)
        many = min(len(self._ended) - ENDED_KEPT, TOMBSTONES_MAX)
        return entries | dict.fromkeys(self._ended.popleft() for _ in range(many))

    def committed(self, prepared: PreparedRows, sequence: int) -> dict[str, Prepared]:
        """Return the entries of a prepared transaction's own commit."""
        self._ended.append(prepared.downstream_id)
        return {prepared.downstream_id: ledger_entry(prepared, LedgerState.COMMITTED, sequence)}
