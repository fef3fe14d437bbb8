"""Makes the bookkeeping's records: progress, frontiers, outcomes, the ledger's entries."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from twofold.bridge.actions import LedgerState, WriteFrontier
from twofold.source.identity import ServerIdentity
from twofold.stream.source_transaction import SourceTransaction
from twofold.stream.stream_order import Outcome
from twofold_avro.records import BranchInDoubt, Frontier, Prepared, PreparedOutcome, Progress, Seen
from twofold_common.gids import parser
from twofold_common.positions import Lsn, PreparedIdentity

ENDED_KEPT = 10_000
TOMBSTONES_MAX = 1_000
"""The most tombstones in one Kafka transaction."""


@dataclass(frozen=True, slots=True)
class ConnectorOrigin:
    """The source, the connector and the stream, as every progress record names them."""

    server: ServerIdentity
    slot: str
    pool: int
    stream_id: str
    """The stream's id: made by init, kept for as long as the topics. Commit records have it too."""
    selection: str
    """What decides which transactions the server sends."""
    last_up_to: Callable[[Lsn], Outcome | None]
    """Return the last outcome up to a position, which never goes back."""

    def progress(self, applied_lsn: Lsn, sequence: int) -> Progress:
        last = self.last_up_to(applied_lsn)
        return Progress(
            applied_lsn=applied_lsn,
            sequence=sequence,
            system_identifier=self.server.system_identifier,
            timeline=self.server.timeline,
            database=self.server.database,
            slot=self.slot,
            pool=self.pool,
            written_at=time.time_ns() // 1000,
            stream_id=self.stream_id,
            outcome_lsn=last.end_lsn if last else None,
            outcome_at=last.at_us if last else None,
            selection=self.selection,
        )


@dataclass(frozen=True, slots=True)
class FrontierOrigin:
    """The source group's name, and the patterns of gids: what every frontier needs."""

    group: str
    gid_patterns: tuple[str, ...]

    def frontier(self, action: WriteFrontier) -> Frontier:
        """Return the record. A gid of no known form belongs to no global transaction."""
        parse_gid = parser(self.gid_patterns)
        in_doubt = (
            BranchInDoubt(global_id, identity.gid, identity.xid)
            for identity in sorted(action.in_doubt)
            if (global_id := parse_gid(identity.gid).global_id) is not None
        )
        return Frontier(
            group=self.group,
            sequence=action.sequence,
            lsn=action.lsn,
            seen=tuple(Seen(*each) for each in action.seen),
            in_doubt=tuple(in_doubt),
            written_at=time.time_ns() // 1000,
            gid_patterns=self.gid_patterns,
        )


def ledger_entry(prepared: SourceTransaction, state: LedgerState, sequence: int | None = None) -> Prepared:
    """Return a prepared transaction's ledger entry; `sequence`: of its commit record."""
    return Prepared(
        xid=prepared.identity.xid,
        gid=prepared.identity.gid,
        prepare_lsn=prepared.prepare_lsn,
        prepared_at=prepared.info.ts_us,
        state=state.value,
        rows=prepared.records,
        topics=prepared.topics,
        global_id=prepared.info.parsed.global_id,
        branch=prepared.info.parsed.branch,
        sequence=sequence,
    )


class Ledger:
    """The in-doubt ledger as one run writes it: its entries, and their removal.

    Each start reads the whole ledger, so the ledger must not grow for ever. The latest ended
    transactions stay for people; older ones get a tombstone. Recovery needs only transactions
    without an outcome, which are never removed. The commit records keep what has committed, as long
    as Kafka keeps those records.

    Used by the thread that reads. On kill -9 nothing is lost: the topic shows again which entries
    are to be removed.
    """

    def __init__(self, unresolved: Iterable[Prepared], ended: Iterable[str]) -> None:
        """Start with the entries that recovery read. `ended`: downstream ids, the oldest first."""
        self._unresolved = {PreparedIdentity(entry.xid, entry.gid): entry for entry in unresolved}
        self._ended = deque(ended)
        self._entries: dict[str, Prepared] = {}

    def topics(self, identity: PreparedIdentity) -> tuple[str, ...]:
        """Return the topics of a transaction that was unresolved when this run began."""
        entry = self._unresolved.get(identity)
        return entry.topics if entry else ()

    def note(self, identity: PreparedIdentity, state: LedgerState, prepared: SourceTransaction | None) -> None:
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

    def committed(self, prepared: SourceTransaction, sequence: int) -> dict[str, Prepared]:
        """Return the entries of a prepared transaction's own commit."""
        self._ended.append(prepared.downstream_id)
        return {prepared.downstream_id: ledger_entry(prepared, LedgerState.COMMITTED, sequence)}


_OUTCOME_BYTES = 64
"""The most bytes that an outcome takes in a commit record, beside its texts."""


def outcome_bytes(outcome: PreparedOutcome) -> int:
    """Return an upper bound of an outcome's size in a commit record; a text takes UTF-8."""
    texts = outcome.id + outcome.gid + (outcome.global_id or "") + (outcome.branch or "")
    return _OUTCOME_BYTES + len(texts.encode())
