"""The in-doubt ledger as this process writes it: what it says of a prepared transaction, and which entries it takes away.

Each start reads all of it, so it must not grow for ever: of transactions that have ended the latest are kept, for people; older ones get a tombstone. Recovery asks for those without an outcome
alone, and these are never taken away. What has committed stays in the commit records, as long as Kafka keeps those.

On kill -9 nothing is lost: what is to be taken away is found again in the topic.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace

from twofold.bridge.actions import LedgerState
from twofold.runner.bookkeeping_records import ledger_entry
from twofold.runner.waiting_rows import PreparedRows
from twofold_avro.records import Prepared
from twofold_common.positions import Lsn, PreparedIdentity

ENDED_KEPT = 10_000
TOMBSTONES_MAX = 1_000
"""In one Kafka transaction: a ledger of an older Twofold may hold millions."""


class Ledger:
    """One a run; used by the thread that reads."""

    def __init__(self, unresolved: Iterable[Prepared], ended: Iterable[str]) -> None:
        """What recovery read; `ended`, the downstream ids, the oldest first."""
        self._unresolved = {PreparedIdentity(entry.xid, entry.gid): entry for entry in unresolved}
        self._ended = deque(ended)
        self._entries: dict[str, Prepared] = {}

    def topics(self, identity: PreparedIdentity) -> tuple[str, ...]:
        """Those of a transaction that was unresolved when this run began."""
        entry = self._unresolved.get(identity)
        return entry.topics if entry else ()

    def note(self, identity: PreparedIdentity, state: LedgerState, prepared: PreparedRows | None) -> None:
        """For the main producer's next commit: of a transaction whose prepare did not come again, what the ledger said before with the new state."""
        if prepared is not None:
            self._entries[prepared.downstream_id] = ledger_entry(prepared, state)
        elif entry := self._unresolved.get(identity):
            self._entries[identity.downstream_id(Lsn(entry.prepare_lsn))] = replace(entry, state=state.value)

    def take(self, sequence: int | None) -> dict[str, Prepared | None]:
        """What the main producer's commit says, and takes away. `sequence`: of its commit record, if it has one."""
        entries, self._entries = self._entries, {}
        for key, entry in entries.items():
            if entry.state == LedgerState.COMMITTED.value:
                entries[key] = replace(entry, sequence=sequence)
            if entry.state in {LedgerState.COMMITTED.value, LedgerState.ROLLED_BACK.value}:
                self._ended.append(key)
        many = min(len(self._ended) - ENDED_KEPT, TOMBSTONES_MAX)
        return entries | dict.fromkeys(self._ended.popleft() for _ in range(many))

    def committed(self, prepared: PreparedRows, sequence: int) -> dict[str, Prepared]:
        """For a commit of its own."""
        self._ended.append(prepared.downstream_id)
        return {prepared.downstream_id: ledger_entry(prepared, LedgerState.COMMITTED, sequence)}
