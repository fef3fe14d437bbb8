"""`GatheredOutcomes`: neighbouring outcomes that go to the bridge in one event. The collector has
their rows.

To *announce* a prepared transaction is to tell the bridge of it. A prepared transaction is kept
here *unannounced*, because most outcomes follow soon: COMMIT PREPARED then puts the rows beside
those of plain transactions. That needs no spool, no phase in the bridge and no deadline.

The rule that makes this safe: before the bridge hears of anything behind an unannounced PREPARE, it
hears where the oldest unannounced PREPARE is (`events.Unannounced`), and reports no position beyond
it. The event of the outcomes names the oldest prepare that they resolve. That prepare bounds the
reported position until Kafka has the outcomes.

All unannounced transactions are announced when the socket is empty. While the socket is not empty,
the oldest are announced when they have waited for `prepared.open_within`, or when the kept rows
exceed `KEPT_BYTES_MAX`. If more are in doubt than the pool has producers, the oldest are announced
after a longer wait, whether the socket is empty or not: nothing would open them earlier. On kill -9
everything here is sent again, like the rest of the collected rows.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from twofold.bridge.events import NO_PREPARE, PlainRead, PlainUnfinished, Unannounced
from twofold.descriptions.ddl_message import DdlMessage
from twofold.source import messages as m
from twofold.stream.source_transaction import CollectedEvent, SourceTransaction
from twofold.tables.table_version import TableVersion
from twofold_avro.records import PreparedOutcome
from twofold_common.positions import NO_LSN, Lsn, PreparedIdentity

MANY_FACTOR = 10

KEPT_BYTES_MAX = 8 << 20
"""The limit of the kept rows, in bytes as PostgreSQL sent them. In memory the rows take about three
times as much."""


@dataclass(frozen=True, slots=True)
class OpeningDelay:
    """How long a prepared transaction waits for its outcome before it is announced and opened.

    If more are in doubt than the pool has producers, each waits `MANY_FACTOR` times as long. To
    open and commit a few of them, one after the other, would let all others wait for Kafka.
    """

    open_within_s: float
    pool: int

    def exceeds_pool(self, in_doubt: int) -> bool:
        return in_doubt > self.pool

    def wait_s(self, in_doubt: int) -> float:
        return self.open_within_s * (MANY_FACTOR if self.exceeds_pool(in_doubt) else 1)


class GatheredOutcomes:
    """The outcomes since the last event, and what is unannounced; of the thread that reads."""

    def __init__(self, *, open_within_s: float, pool: int) -> None:
        """`open_within_s`: how long a transaction may wait while at most `pool` do."""
        self._delay = OpeningDelay(open_within_s, pool)
        self._kept: OrderedDict[PreparedIdentity, SourceTransaction] = OrderedDict()
        self._kept_bytes = 0
        self._reported_oldest = NO_PREPARE
        self._latest = NO_LSN
        self._begin()

    def _begin(self) -> None:
        self._transactions = self._rows = self._rolled_back = self._at_us = 0
        self._end = NO_LSN
        self._oldest_resolved = NO_PREPARE
        self._committed = 0
        self._outcomes: list[PreparedOutcome] = []
        self._ddl: dict[int, DdlMessage] = {}
        self._tables: dict[TableVersion, None] = {}

    @property
    def has_outcomes(self) -> bool:
        """Whether there are outcomes that no event has named yet."""
        return self._end != NO_LSN

    def add_plain(self, message: m.Commit, current: SourceTransaction) -> None:
        """Add a plain transaction."""
        self._add_pinned(current)
        self._transactions += 1
        self._rows += current.rows
        self._end = message.end_lsn
        self._at_us = message.commit_ts_us

    def keep(self, prepared: SourceTransaction, ts_ms: int) -> None:
        """Keep a prepared transaction until its outcome, or until it is announced."""
        prepared.read_ms = ts_ms
        self._kept[prepared.identity] = prepared
        self._kept_bytes += prepared.batch.bytes
        self._latest = prepared.prepare_lsn

    def is_latest(self, message: m.Prepare) -> bool:
        """Whether the prepare lies behind the prepares of all unannounced transactions.

        Only transactions that were prepared before the slot's two_phase_at come out of order.
        """
        return message.identity not in self._kept and message.prepare_lsn >= self._latest

    def keeps(self, identity: PreparedIdentity) -> bool:
        return identity in self._kept

    def commit(self, message: m.CommitPrepared) -> SourceTransaction:
        """Add the outcome of an unannounced transaction, and return the transaction.

        Without rows the transaction does not exist for readers.
        """
        prepared = self._remove(message.identity)
        if prepared.rows:
            self._transactions += 1
            self._rows += prepared.rows
            self._at_us = message.commit_ts_us
            self._outcomes.append(prepared.outcome(message.commit_lsn, self._at_us))
        self._committed += 1
        self._add_pinned(prepared)
        self._resolve(prepared, message.end_lsn)
        return prepared

    def roll_back(self, message: m.RollbackPrepared) -> None:
        """Forget an unannounced transaction."""
        prepared = self._remove(message.identity)
        self._rolled_back += 1
        self._resolve(prepared, message.end_lsn)

    def take_event(self, *, unfinished: bool) -> CollectedEvent | None:
        """Return the event of all outcomes, without the rows, and begin with none again; None
        without an outcome.

        `unfinished`: the collector has rows of a transaction whose commit is not read. One event
        names both. With two events the batch could close between them with half a transaction in
        it.
        """
        if self.has_outcomes:
            resolved = self._oldest_resolved, self._committed, self._rolled_back
            read = PlainRead(self._transactions, self._rows, self._end, unfinished, *resolved)
            collected = CollectedEvent(
                read, at_us=self._at_us, outcomes=tuple(self._outcomes), ddl=self._ddl, tables=self._tables
            )
            self._begin()
            return collected
        return CollectedEvent(PlainUnfinished()) if unfinished else None

    def take_due(self, now_ms: float, *, drained_with: int | None = None) -> Iterator[SourceTransaction]:
        """Yield the transactions that are to be announced, the oldest first.

        `drained_with`: the socket is empty, and this number of other transactions is in doubt.
        """
        wait_ms = self._wait_ms(drained_with)
        while self._kept:
            first = next(iter(self._kept.values()))
            if now_ms < first.read_ms + wait_ms and self._kept_bytes <= KEPT_BYTES_MAX:
                return
            yield self._remove(first.identity)

    def _wait_ms(self, drained_with: int | None) -> float:
        in_doubt = len(self._kept) + (drained_with or 0)
        if drained_with is not None and not self._delay.exceeds_pool(in_doubt):
            return -math.inf
        return self._delay.wait_s(in_doubt) * 1000

    def wait_s(self, now_ms: float, drained_with: int) -> float:
        """Return how long the oldest one may still wait unannounced while the socket is empty."""
        first = next(iter(self._kept.values()), None)
        return math.inf if first is None else max(0.0, first.read_ms + self._wait_ms(drained_with) - now_ms) / 1000

    def unannounced(self, *, lower: bool) -> list[CollectedEvent]:
        """Return the oldest unannounced prepare's event if that has changed in this direction."""
        first = next(iter(self._kept.values()), None)
        oldest = NO_PREPARE if first is None else first.prepare_lsn
        if (oldest < self._reported_oldest) if lower else (oldest > self._reported_oldest):
            self._reported_oldest = oldest
            return [CollectedEvent(Unannounced(oldest))]
        return []

    def _add_pinned(self, committed: SourceTransaction) -> None:
        """Add what the pins are to tell of a committed transaction."""
        self._tables |= committed.tables
        if committed.ddl:
            self._ddl |= {oid: each.behind(self._ddl) for oid, each in committed.ddl.items()}

    def _remove(self, identity: PreparedIdentity) -> SourceTransaction:
        prepared = self._kept.pop(identity)
        self._kept_bytes -= prepared.batch.bytes
        return prepared

    def _resolve(self, prepared: SourceTransaction, end_lsn: Lsn) -> None:
        self._oldest_resolved = min(self._oldest_resolved, prepared.prepare_lsn)
        self._end = end_lsn
