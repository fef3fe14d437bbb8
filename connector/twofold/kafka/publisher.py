"""`Publisher`: the main producers and the pool, and the one order in which they may be used.

Promises
- Whole: the rows, the commit record, the progress record and the other records about them are in
  one Kafka transaction.
- Serial: one transaction commits after the other, in the order of the calls.
- Never interleaved: before a producer writes to a partition, all others' rows there are
  acknowledged; while a main producer has an open transaction, no other one begins to write. So a
  commit record's offset ranges contain nobody else's rows.
- Exact: ranges are those of the delivery reports. Those of a small batch are foretold, so that the
  commit record travels with the rows; they are compared with the delivery reports before the
  transaction ends. If they differ, it is aborted and written again, with the ranges that are
  reported. Only the ledger, the pins and the progress are written after the commit record.

Two main producers take turns. For some milliseconds after a commit the broker writes its markers. A
producer that begins with the same id in that time must retry, which librdkafka does after 20 ms.
docs/inside/kafka.md has the measurement.

It decides nothing, and keeps only a small batch's rows until its commit. An error of any call ends
the run, and the only call after it is `close`. One thread calls all methods.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from twofold import failpoints
from twofold.errors import Fenced, RunEnded, TransactionTimedOut, TwofoldError, UncertainEnd
from twofold.kafka.forecast import Forecast, KeptBatch
from twofold.kafka.late_ends import leave_patience
from twofold.kafka.names import Names, commit_key
from twofold.kafka.open_check import OpenCheck
from twofold.kafka.producer import TransactionalProducer
from twofold.kafka.row_batch import Record, RowBatch
from twofold.kafka.schema_registry import SchemaIds
from twofold_avro.records import Commit, Frontier, Pin, Prepared, Progress, Range

_log = logging.getLogger(__name__)

_PATIENCE_S: Final = 0.2
"""The wait for sent rows before a flush asks: only a flush notices that the transaction
has failed.
"""
_CLOSE_S = 5.0
"""The longest time for closing; the next instance aborts what stays open."""


class Publisher:
    """The producers of one run, taken over from `fence`, initialised."""

    def __init__(
        self,
        names: Names,
        ids: SchemaIds,
        mains: Iterable[TransactionalProducer],
        pool: Sequence[TransactionalProducer],
        check: OpenCheck,
        overcomes: Iterable[bytes] = (),
    ) -> None:
        """`overcomes`: the keys of the progress topic that the first commit removes."""
        self._names = names
        self._overcomes = tuple(overcomes)
        self._ids = ids
        self._check = check
        self._mains = deque(mains)
        self._pool = tuple(pool)
        self._forecast = Forecast()
        self._kept = KeptBatch()
        self._sent = SentRows()

    def remove_skip_command(self, topic: str, lsn: int, row: str) -> None:
        """Remove a person's command with the next commit of a main producer."""
        self._overcomes += (self._names.skip_key(topic, lsn, row),)

    def produce(self, batch: RowBatch) -> None:
        """Add rows to the main producer's transaction; the first rows begin it."""
        self._begin_main()
        self._wait_beside(batch)
        with _may_outlast(self._main):
            self._main.produce_batch(batch)
        self._kept.keep(batch)
        failpoints.hit("after_produce")

    def commit_main(self, records: TransactionRecords) -> Commit | None:
        """Commit the batch, and return the commit record as it was written: with its ranges."""
        self._begin_main()
        foretold = self._foretell()
        if foretold is None or not self._commit_foretold(foretold, records):
            with _may_outlast(self._main):
                foretold = self._commit_exact(self._main, records)
        self._overcomes = ()
        leave_patience(producer.end_rule for producer in (*self._mains, *self._pool))
        self._mains.rotate()
        self._kept.take_batches()
        return records.with_ranges(foretold).commit

    def open(self, slot: int, batches: Iterable[RowBatch]) -> None:
        """Send a prepared transaction's rows in a Kafka transaction of their own.

        The rows are on their way when the call returns; `has_opened` tells when they are
        acknowledged.
        """
        self._assert_main_committed()
        failpoints.hit("before_open")
        producer = self._pool[slot]
        producer.begin()
        failpoints.hit("after_begin")
        for batch in batches:
            self._wait_beside(batch)
            with _may_outlast(producer):
                producer.produce_batch(batch, every=True)
        failpoints.hit("after_produce")
        self._sent.add(producer)

    def has_opened(self, slot: int) -> bool:
        """Return whether the in-sync replicas have acknowledged the rows, without a long wait."""
        producer = self._pool[slot]
        if self._sent.are_of(producer) and self._sent.is_due(producer):
            self._wait_for_rows(producer)
        return not self._sent.are_of(producer)

    def _wait_beside(self, batch: RowBatch) -> None:
        """Wait for all rows that are on their way to one of the batch's partitions."""
        for producer in self._sent.beside(batch):
            self._wait_for_rows(producer)

    def _wait_for_rows(self, producer: TransactionalProducer) -> None:
        if not self._sent.are_of(producer):
            return
        with _may_outlast(producer):
            self._sent.wait_for(producer)
        self._forecast.wrote(producer.deliveries.ranges())
        failpoints.hit("after_open")

    def commit_prepared(self, slot: int, records: TransactionRecords) -> Commit | None:
        """Make an open prepared transaction visible, and return its commit record as written."""
        self._assert_main_committed()
        producer = self._pool[slot]
        self._wait_for_rows(producer)
        with _may_outlast(producer):
            ranges = self._commit_exact(producer, records)
        return records.with_ranges(ranges).commit

    def abort(self, slot: int) -> None:
        """Remove every row of an open prepared transaction."""
        failpoints.hit("before_abort")
        producer = self._pool[slot]
        self._wait_for_rows(producer)
        with _may_outlast(producer):
            producer.abort()
        self._forecast.ended(producer.deliveries.counts())
        failpoints.hit("after_abort")

    def close(self) -> None:
        """Abort all open transactions, so that readers can continue soon, and drop all producers.

        Recovery does not depend on it.
        """
        close_quietly((*self._mains, *self._pool))
        self._check.close()

    @property
    def _main(self) -> TransactionalProducer:
        """The main producer whose turn it is."""
        return self._mains[0]

    def _begin_main(self) -> None:
        if not self._main.in_transaction:
            self._main.begin()
            failpoints.hit("after_begin")

    def _assert_main_committed(self) -> None:
        assert not self._main.in_transaction, "a main producer commits before another one writes"

    def _foretell(self) -> tuple[Range, ...] | None:
        """Return the ranges that the batch's rows will have; None if that is not known.

        Kafka answers an end before it has written all markers. So one partition is asked whether
        its last marker is there, while the rows are on their way.
        """
        counts = self._main.deliveries.counts()
        foretold = self._forecast.foretell(counts) if self._kept.is_whole and counts else None
        if foretold is None:
            return None
        newest = self._forecast.ended_last(foretold)
        asked = newest.topic, newest.partition
        end: int | None = newest.first
        if any(other.deliveries.wrote_to(*asked) for other in self._pool if other.in_transaction):
            # It hides the marker. No transaction stays open among the commit records.
            asked = self._names.commits, 0
            end = self._forecast.end_behind(newest, self._names.commits)
        return foretold if end is not None and self._check.stable_offset(*asked) == end else None

    def _commit_foretold(self, foretold: tuple[Range, ...], records: TransactionRecords) -> bool:
        """Commit the batch; its commit record travels with its rows.

        Return False if the forecast was wrong: the rows are then in a new transaction, because
        nobody may ever read that commit record.
        """
        main = self._main
        with _may_outlast(main):
            self._describe(main, records.with_ranges(foretold))
            main.flush()
            failpoints.hit("after_flush")
            rows = tuple(each for each in main.deliveries.ranges() if each.topic not in self._names.bookkeeping)
            if rows == foretold:
                self._end(main, rows)
                self._forecast.was_right()
                return True
            self._forecast.missed()
            failpoints.hit("before_abort")
            main.abort()
        failpoints.hit("after_abort")
        _log.info("a commit record foretold ranges that were not its rows': it was aborted, and is written again")
        self._mains.rotate()  # the markers of the abort are being written
        for batch in self._kept.take_batches():
            self.produce(batch)
        return False

    def _commit_exact(self, producer: TransactionalProducer, records: TransactionRecords) -> tuple[Range, ...]:
        """Commit with the ranges of the delivery reports, and return them."""
        producer.flush()
        failpoints.hit("after_flush")
        rows = producer.deliveries.ranges()
        self._describe(producer, records.with_ranges(rows))
        producer.flush()
        self._end(producer, rows)
        return rows

    def _describe(self, producer: TransactionalProducer, records: TransactionRecords) -> None:
        """Write the commit record and the transaction's other records about its rows."""
        failpoints.hit("before_commit_record")
        commit = records.commit
        if commit is not None:
            record: Record = {"key": commit_key(commit), "value": commit.to_bytes(self._ids.commit)}
            producer.produce(self._names.commits, 0, [record])
        failpoints.hit("after_commit_record")
        overcomes = self._overcomes if producer is self._main else ()
        for topic, others in records.behind_the_commit_record(self._names, self._ids, overcomes):
            producer.produce(topic, 0, others)

    def _end(self, producer: TransactionalProducer, rows: Sequence[Range]) -> None:
        """Commit the transaction, if it is still open; all its records are acknowledged."""
        failpoints.hit("before_commit")
        if oldest := self._not_hidden(producer, rows):
            self._check.assert_open(producer.transactional_id, oldest)
        producer.commit()
        failpoints.hit("after_commit")
        # The forecast has had an opened transaction's rows since they were acknowledged.
        known = () if producer in self._mains else rows
        self._forecast.wrote(each for each in producer.deliveries.ranges() if each not in known)
        self._forecast.ended(producer.deliveries.counts())

    def _not_hidden(self, producer: TransactionalProducer, rows: Iterable[Range]) -> Range | None:
        """Return writes in a partition where no older transaction of ours is open.

        None: older ones in all partitions hide whether this transaction is open.
        """
        others = [other for other in self._pool if other is not producer and other.in_transaction]
        for written in rows:
            if not any(other.deliveries.began_before(written) for other in others):
                return written
        return None


@contextlib.contextmanager
def _may_outlast(producer: TransactionalProducer) -> Iterator[None]:
    """Convert an error after the transaction's timeout into `TransactionTimedOut`.

    A source transaction is never split, so a very large one may exceed Kafka's timeout. A retry
    then needs more time, not the same.
    """
    try:
        yield
    except UncertainEnd:  # it has ended in time
        raise
    except (RunEnded, Fenced) as error:
        if reason := producer.outlasted():
            raise TransactionTimedOut(
                f"Kafka: {reason}; the next try has four times that timeout, up to the brokers' transaction.max.timeout.ms (kafka.transaction_timeout sets the first)"
            ) from error
        raise


def close_quietly(producers: Iterable[TransactionalProducer]) -> None:
    """Abort all open transactions within a few seconds, and destroy the producers.

    An error here changes nothing, because an id's next `init` aborts its transaction anyway.
    """
    deadline = time.monotonic() + _CLOSE_S
    for producer in producers:
        if producer.in_transaction:
            with contextlib.suppress(TwofoldError):
                producer.abort(max(0.0, deadline - time.monotonic()))
        producer.destroy()


@dataclass(frozen=True, slots=True)
class TransactionRecords:
    """A Kafka transaction's records about its rows."""

    commit: Commit | None
    """The commit record, of which the publisher fills in rows and ranges. None: a transaction that
    only reports progress, without rows.
    """
    progress: Progress
    pins: Mapping[str, Pin] = field(default_factory=dict)
    """The pins, by topic."""
    ledger: Mapping[str, Prepared | None] = field(default_factory=dict)
    """The ledger's entries, by downstream id; None removes an entry."""
    frontier: Frontier | None = None

    def with_ranges(self, ranges: tuple[Range, ...]) -> TransactionRecords:
        """Return the records with these ranges, and their number of rows, in the commit record."""
        if self.commit is None:
            assert not ranges, "rows without a commit record"
            return self
        return replace(self, commit=replace(self.commit, ranges=ranges, rows=sum(r.count for r in ranges)))

    def behind_the_commit_record(
        self, names: Names, ids: SchemaIds, overcomes: Iterable[bytes]
    ) -> Iterator[tuple[str, list[Record]]]:
        """Yield topic and records, in the order of writing; each topic has one partition.

        `overcomes`: the keys of the progress topic that the transaction removes.
        """
        ledger: list[Record] = [
            {"key": key.encode(), "value": None if entry is None else entry.to_bytes(ids.prepared)}
            for key, entry in self.ledger.items()
        ]
        yield names.prepared, ledger
        progress: list[Record] = [
            {"key": names.pin_key(topic), "value": pin.to_bytes(ids.pin)} for topic, pin in self.pins.items()
        ]
        progress.append({"key": names.progress_key, "value": self.progress.to_bytes(ids.progress)})
        progress += ({"key": key, "value": None} for key in overcomes)
        yield names.progress, progress
        if self.frontier is not None:
            assert ids.frontier is not None, "a frontier of a connector that is in no source group"
            value = self.frontier.to_bytes(ids.frontier)
            yield names.frontiers, [{"key": names.progress_key, "value": value}]


class SentRows:
    """The producers of opened transactions whose rows are sent and perhaps not acknowledged.

    Only what follows the rows in a partition waits for them, and the end of their own transaction.
    Until then other Kafka transactions may end.
    """

    def __init__(self) -> None:
        self._since: dict[TransactionalProducer, float] = {}

    def add(self, producer: TransactionalProducer) -> None:
        """Note that all rows of the producer's transaction are handed over."""
        self._since[producer] = time.monotonic()

    def are_of(self, producer: TransactionalProducer) -> bool:
        """Return whether the producer's rows are on their way."""
        return producer in self._since

    def is_due(self, producer: TransactionalProducer) -> bool:
        """Return whether `wait_for` would return at once, or must look why no report comes."""
        return producer.is_acknowledged() or time.monotonic() - self._since[producer] > _PATIENCE_S

    def beside(self, batch: RowBatch) -> list[TransactionalProducer]:
        """Return the producers with rows on their way to one of the batch's partitions."""
        places = [(topic, partition) for topic, partition, _ in batch.partitions()] if self._since else []
        return [producer for producer in self._since if any(producer.deliveries.wrote_to(*place) for place in places)]

    def wait_for(self, producer: TransactionalProducer) -> None:
        """Return when the in-sync replicas have acknowledged the producer's rows."""
        del self._since[producer]
        producer.flush()
        if not producer.deliveries.all_acknowledged:
            raise RunEnded(
                f"Kafka: {producer.transactional_id}: not every row was reported as delivered after the flush"
            )
