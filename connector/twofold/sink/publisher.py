"""`Publisher`: the main producers and the pool, and the one order in which they may be used.

Promises
- Whole: the rows, the commit record, the progress record and the other records about them are in
  one Kafka transaction.
- Serial: one transaction commits after the other, in the order of the calls.
- Never interleaved: before a producer writes, all others' writes are acknowledged; while a main
  producer has an open transaction, no other one writes. So a commit record's offset ranges contain
  nobody else's rows.
- Exact: ranges come from delivery reports, after a flush. Only the ledger, the pins and the
  progress are written after the commit record.

Two main producers take turns. For some milliseconds after a commit the broker writes its markers. A
producer that begins with the same id in that time must retry, which librdkafka does after 20 ms.
docs/inside/kafka.md has the measurement.

It decides nothing and keeps nothing. An error of any call ends the run, and the only call after it
is `close`. One thread calls all methods.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from twofold import failpoints
from twofold.errors import Fenced, RunEnded, TransactionTimedOut, TwofoldError, UncertainEnd
from twofold.sink.batch import Record, RowBatch
from twofold.sink.deliveries import PartitionWrites
from twofold.sink.names import Names
from twofold.sink.open_check import OpenCheck
from twofold.sink.producer import TransactionalProducer
from twofold.sink.records import SchemaIds
from twofold_avro.records import Commit, Frontier, Pin, Prepared, Progress, Range

_CLOSE_S = 5.0
"""A silent broker is not waited for: the next instance, or the broker's own timeout, aborts open
transactions."""


class Publisher:
    """The producers of one run, taken over from `fence`, initialised."""

    def __init__(
        self,
        names: Names,
        ids: SchemaIds,
        mains: Iterable[TransactionalProducer],
        pool: Sequence[TransactionalProducer],
        check: OpenCheck,
    ) -> None:
        self._names = names
        self._ids = ids
        self._check = check
        self._mains = deque(mains)
        self._pool = tuple(pool)

    def produce(self, batch: RowBatch) -> None:
        """Add rows to the main producer's transaction; the first rows begin it."""
        self._begin_main()
        with _may_outlast(self._main):
            for topic, partition, records in batch.partitions():
                self._main.produce(topic, partition, records)
        failpoints.hit("after_produce")

    def commit_main(
        self,
        commit: Commit | None,
        progress: Progress,
        *,
        ledger: Mapping[str, Prepared | None] | None = None,
        pins: Mapping[str, Pin] | None = None,
        answered: Iterable[bytes] = (),
        frontier: Frontier | None = None,
    ) -> Commit | None:
        """Commit the group, and return the commit record as it was written.

        `commit`'s rows and ranges are filled in here. None means a transaction that only reports
        progress, without rows. `ledger` is by downstream id, and None removes an entry; `pins` are
        by topic. `answered`: the keys of the commands that this transaction executes.
        """
        self._begin_main()
        with _may_outlast(self._main):
            written = self._finish(self._main, commit, progress, ledger or {}, pins or {}, answered, frontier)
        self._mains.rotate()
        return written

    def open(self, slot: int, batches: Iterable[RowBatch]) -> None:
        """Write a prepared transaction's rows into a Kafka transaction of their own.

        When this returns, the in-sync replicas have acknowledged the rows, and nothing else is
        written.
        """
        self._assert_main_committed()
        failpoints.hit("before_open")
        producer = self._pool[slot]
        producer.begin()
        failpoints.hit("after_begin")
        with _may_outlast(producer):
            for batch in batches:
                for topic, partition, records in batch.partitions():
                    producer.produce(topic, partition, records, every=True)
            failpoints.hit("after_produce")
            producer.flush()
        if not producer.all_acknowledged:
            raise RunEnded(
                f"Kafka: {producer.transactional_id}: not every row was reported as delivered after the flush"
            )
        failpoints.hit("after_open")

    def commit_prepared(
        self,
        slot: int,
        commit: Commit,
        progress: Progress,
        *,
        ledger: Mapping[str, Prepared],
        pins: Mapping[str, Pin] | None = None,
    ) -> Commit:
        """Make an open prepared transaction visible:

        commit record, ledger, pins, progress, commit.
        """
        self._assert_main_committed()
        producer = self._pool[slot]
        with _may_outlast(producer):
            written = self._finish(producer, commit, progress, ledger, pins or {})
        assert written is not None
        return written

    def abort(self, slot: int) -> None:
        """Remove every row of an open prepared transaction."""
        failpoints.hit("before_abort")
        producer = self._pool[slot]
        with _may_outlast(producer):
            producer.abort()
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

    def _finish(
        self,
        producer: TransactionalProducer,
        commit: Commit | None,
        progress: Progress,
        ledger: Mapping[str, Prepared | None],
        pins: Mapping[str, Pin],
        answered: Iterable[bytes] = (),
        frontier: Frontier | None = None,
    ) -> Commit | None:
        producer.flush()
        failpoints.hit("after_flush")
        rows = producer.ranges()
        ranges = tuple(Range(w.topic, w.partition, w.first, w.last, w.count) for w in rows)
        failpoints.hit("before_commit_record")
        if commit is not None:
            commit = replace(commit, ranges=ranges, rows=sum(r.count for r in ranges))
            self._write(producer, self._names.commits, [{"key": None, "value": commit.to_bytes(self._ids.commit)}])
        else:
            assert not ranges, "rows without a commit record"
        failpoints.hit("after_commit_record")
        self._write(
            producer,
            self._names.prepared,
            [
                {"key": key.encode(), "value": None if entry is None else entry.to_bytes(self._ids.prepared)}
                for key, entry in ledger.items()
            ],
        )
        self._write(producer, self._names.progress, self._progress_records(progress, pins))
        answers: list[Record] = [{"key": key, "value": None} for key in answered]
        self._write(producer, self._names.progress, answers)
        if frontier is not None:
            assert self._ids.frontier is not None, "a frontier of a connector that is in no source group"
            value = frontier.to_bytes(self._ids.frontier)
            self._write(producer, self._names.frontiers, [{"key": self._names.progress_key, "value": value}])
        producer.flush()
        failpoints.hit("before_commit")
        if oldest := self._not_hidden(producer, rows):
            self._check.assert_open(producer.transactional_id, oldest)
        producer.commit()
        failpoints.hit("after_commit")
        return commit

    def _not_hidden(self, producer: TransactionalProducer, rows: Iterable[PartitionWrites]) -> PartitionWrites | None:
        """Return writes in a partition where no older transaction of ours is open.

        None: an older one everywhere hides whether this transaction is open.
        """
        others = [other for other in self._pool if other is not producer and other.in_transaction]
        for written in rows:
            if not any(other.wrote_before(written) for other in others):
                return written
        return None

    def _progress_records(self, progress: Progress, pins: Mapping[str, Pin]) -> list[Record]:
        pinned: Iterable[Record] = (
            {"key": self._names.pin_key(topic), "value": pin.to_bytes(self._ids.pin)} for topic, pin in pins.items()
        )
        return [*pinned, {"key": self._names.progress_key, "value": progress.to_bytes(self._ids.progress)}]

    @staticmethod
    def _write(producer: TransactionalProducer, topic: str, records: list[Record]) -> None:
        producer.produce(topic, 0, records)


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
