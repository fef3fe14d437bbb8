"""`Publisher`: the main producers and the pool, and the one order in which they may be used.

Promises
- Whole: the rows, the commit record, the progress record and what else is said of them are in one Kafka transaction.
- Serial: one transaction commits after the other, in the order of the calls.
- Never interleaved: before a producer writes, what every other one wrote is acknowledged; and while a main producer has a transaction open no other one writes. So a commit record's offset
  ranges hold nobody else's rows.
- Exact: ranges come from delivery reports, after a flush; the commit record is written last but for the progress.

There are two main producers, which take turns: for some milliseconds after a commit the broker writes its markers, and who begins anew with the same id is told to come again, which librdkafka does
after 20 ms. Measured in docs/inside/kafka.md.

It decides nothing and keeps nothing: an error of any call ends the run, and after it the only call is `close`. All methods are called by one thread.
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
from twofold_avro.records import Commit, Pin, Prepared, Progress, Range

_CLOSE_S = 5.0
"""A broker that does not answer now is not waited for: what is open is aborted by the next instance, or by the broker's own timeout."""


class Publisher:
    """Takes the producers over from `fence`, initialised."""

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
        """Add rows to the main producer's transaction, which begins with the first."""
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
        answered: Iterable[str] = (),
    ) -> Commit | None:
        """Commit the group. `commit`'s rows and ranges are filled in here. None: a transaction that says only how far the connector is; then there must be no rows.

        `ledger` by downstream id, None takes an entry away; `pins` by topic; `answered`: the topics about which a person's wish is carried out. Returns the commit record as it was written.
        """
        self._begin_main()
        with _may_outlast(self._main):
            written = self._finish(self._main, commit, progress, ledger or {}, pins or {}, answered)
        self._mains.rotate()
        return written

    def open(self, slot: int, batches: Iterable[RowBatch]) -> None:
        """A prepared transaction's rows into a Kafka transaction of their own: acknowledged by the in-sync replicas when this returns, and nothing else written."""
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
            raise RunEnded(f"Kafka: {producer.transactional_id}: flushed, and not every row was reported as delivered")
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
        """Make an open prepared transaction visible: commit record, progress, ledger, pins, commit."""
        self._assert_main_committed()
        producer = self._pool[slot]
        with _may_outlast(producer):
            written = self._finish(producer, commit, progress, ledger, pins or {})
        assert written is not None
        return written

    def abort(self, slot: int) -> None:
        """Leave nothing of an open prepared transaction."""
        failpoints.hit("before_abort")
        producer = self._pool[slot]
        with _may_outlast(producer):
            producer.abort()
        failpoints.hit("after_abort")

    def close(self) -> None:
        """Give readers their topics back soon: abort what is open, then drop all producers. Recovery does not depend on it."""
        close_quietly((*self._mains, *self._pool))
        self._check.close()

    @property
    def _main(self) -> TransactionalProducer:
        """The one whose turn it is."""
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
        answered: Iterable[str] = (),
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
        answers: list[Record] = [{"key": self._names.command_key(topic), "value": None} for topic in answered]
        self._write(producer, self._names.progress, answers)
        producer.flush()
        failpoints.hit("before_commit")
        if oldest := self._oldest_somewhere(producer, rows):
            self._check.assert_open(producer.transactional_id, oldest)
        producer.commit()
        failpoints.hit("after_commit")
        return commit

    def _oldest_somewhere(
        self, producer: TransactionalProducer, rows: Iterable[PartitionWrites]
    ) -> PartitionWrites | None:
        """Of what the transaction wrote, what lies in a partition where no older one of ours is open. None: an older one everywhere hides whether this one is."""
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
    """A source transaction is never torn, so one that is very large may take longer than Kafka's timeout: then it must be tried again with more time, not in the same way."""
    try:
        yield
    except UncertainEnd:  # it has ended in time
        raise
    except (RunEnded, Fenced) as error:
        if why := producer.outlasted():
            raise TransactionTimedOut(
                f"Kafka: {why}; it is tried again with four times as long, within the brokers' transaction.max.timeout.ms (kafka.transaction_timeout sets the first)"
            ) from error
        raise


def close_quietly(producers: Iterable[TransactionalProducer]) -> None:
    """Abort what is open, all within a few seconds, and destroy. An error here changes nothing: an id's next `init` aborts all the same."""
    deadline = time.monotonic() + _CLOSE_S
    for producer in producers:
        if producer.in_transaction:
            with contextlib.suppress(TwofoldError):
                producer.abort(max(0.0, deadline - time.monotonic()))
        producer.destroy()
