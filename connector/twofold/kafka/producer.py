"""One transactional producer: librdkafka's, with bounded and watched calls and exact offset ranges.

Promises
- A call returns, or raises a `TwofoldError`, within `call_timeout_s`. Until then it is resumed in
  slices of time where that is possible, and retriable errors are retried.
- A `commit` that returns is committed. Where the outcome is unknown, the producer is destroyed:
  only recovery learns the outcome, because it reads the progress behind the fence.
- An end (commit or abort) that may have been sent twice is this producer epoch's last act: see
  `late_ends`.
- `ranges` are exact: see `deliveries`.
- A partition's order is the order of `produce`: a full queue makes librdkafka refuse the rest of a
  list, never a record in its middle.

Records that are queued here are lost after kill -9, and were never committed. The id's next holder
makes the broker abort them, and PostgreSQL sends the rows again.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from typing import Final, NoReturn

from confluent_kafka import KafkaError, KafkaException, Producer

from twofold.errors import RunEnded, TwofoldError
from twofold.kafka.client import (
    FATAL,
    PURGED,
    QUEUE_FULL,
    TIMED_OUT,
    TOO_LARGE,
    WRONG_STATE,
    KafkaSettings,
    error_code,
    kafka_error_of,
    sort_error,
    sorted_errors,
)
from twofold.kafka.deliveries import Deliveries, DeliveryCallback
from twofold.kafka.late_ends import EndRule
from twofold.kafka.record_sizes import RecordTooLarge, largest_value
from twofold.kafka.row_batch import Record, RowBatch
from twofold.kafka.watch import Watch

_SLICE_S: Final = 5.0
"""A call is resumed at least this often, so that a signal or a shutdown is noticed."""
_SLICE_S_MIN: Final = 1.0
"""A call has at least this time. librdkafka forgets which end it resumes when the first step of the
call has no time, and then aborts the whole process at the broker's answer.
"""
_FLUSH_CHECK_S: Final = 0.2
"""How often an unfinished flush checks whether it still can finish."""
_PAUSE_S: Final = 0.02
"""The pause before a call is repeated: some fail at once while a broker is away."""
_PRODUCE_S_MAX: Final = 3600.0
"""The longest time of handing over rows: a large transaction takes as long as Kafka takes.
`call_timeout_s` bounds each step that makes no progress.
"""
_METADATA_S: Final = 1.0
_ASKED_EACH: Final = 8
"""The number of new topics of a batch whose leaders are asked for one by one. One question, behind
the rows, asks for the leaders of more: a transaction over 1,000 tables would wait 1,000 times.
"""
_ROOM_S: Final = 0.02
"""How long a full queue is flushed before more records are handed over."""
_CHUNK: Final = 10_000
"""The number of records per call of librdkafka. Between two chunks delivery reports are served,
so that its queue drains while a large transaction is written."""

_EVENTS_POLLED: Final = 500
"""The number of events between two polls."""


class TransactionalProducer:
    """A producer of one transactional id. One thread calls all methods."""

    def __init__(self, transactional_id: str, settings: KafkaSettings, watch: Watch, *, gathers: bool = False) -> None:
        """`gathers`: rows wait for more rows, up to half a second, unless they are flushed."""
        self.transactional_id = transactional_id
        self.in_transaction = False
        self._initialised = False
        self._timeout_s = settings.call_timeout_s
        self._transaction_timeout_s = settings.transaction_timeout_ms / 1000
        self._begun = 0.0
        self._watch = watch
        self._bootstrap = settings.bootstrap
        self.end_rule = EndRule(settings.retry_factor)
        self.deliveries = Deliveries()
        """The deliveries of the transaction that began last."""
        self._known_topics: set[str] = set()
        with sorted_errors(f"creating the producer {transactional_id}"):
            client = settings.producer(transactional_id, gathers=gathers)
            self._producer: Producer | None = settings.secrets.open(Producer, client)

    def connect(self, topic: str) -> None:
        """Connect to the brokers. `topic` is one that exists.

        librdkafka connects at its first request. If `init` is that request, it can find no broker
        to ask for the coordinator, and asks again after half a second. The first answer here names
        the brokers, and the second comes from one of them. `init` meets an error of them again.
        """
        for _ in range(2):
            self._ask_for_leaders(topic)

    def init(self) -> None:
        """Fence every older holder of the id, and make the broker abort its open transaction."""
        if not self._initialised:
            self._call("init_transactions", self._alive.init_transactions)

    def start_init(self, within_s: float = 0.001) -> None:
        """Start `init`; a later `init` waits for its end.

        So a whole pool is fenced in the time of one producer.
        """
        with contextlib.suppress(KafkaException):  # "not yet", or an error that `init` meets again
            self._alive.init_transactions(within_s)
            # On a busy machine the answer may be there already: a second call is then an error.
            self._initialised = True

    def begin(self) -> None:
        assert not self.in_transaction, self.transactional_id
        self.deliveries = Deliveries()
        begin = self._alive.begin_transaction
        with (
            self._watch.call(f"{self.transactional_id}: begin_transaction", self._timeout_s, keeps_lock=True),
            sorted_errors(f"{self.transactional_id}: begin_transaction"),
        ):
            begin()
        self.in_transaction = True
        self._begun = time.monotonic()

    def outlasted(self) -> str | None:
        """Describe the timeout that the transaction has exceeded; None if it has not."""
        open_s = time.monotonic() - self._begun
        if not self._begun or open_s < self._transaction_timeout_s:
            return None
        return f"the transaction of {self.transactional_id} was open for {open_s:.0f} s, longer than its timeout of {self._transaction_timeout_s:g} s, and the broker has aborted it"

    def produce_batch(self, batch: RowBatch, *, every: bool = False) -> None:
        """Hand over all records of a batch, as `produce` does."""
        new = [topic for topic in batch.topics if topic not in self._known_topics]
        if asks_behind := len(new) > _ASKED_EACH:
            self._known_topics.update(new)
        for topic, partition, records in batch.partitions():
            self.produce(topic, partition, records, every=every)
        if asks_behind:
            self._ask_for_leaders(None)

    def produce(self, topic: str, partition: int, records: list[Record], *, every: bool = False) -> None:
        """Hand the records over, in order.

        With `every` each delivery is reported, so that `flush` can establish without a commit that
        all are acknowledged. The records are unchanged when the call returns.
        """
        assert self.in_transaction, self.transactional_id
        if not records:
            return
        if topic not in self._known_topics:
            self._ask_for_leaders(topic)
        deliveries = self.deliveries
        edges = [records[-1]]
        if deliveries.begins(topic, partition):
            edges.append(records[0])
        if not every:
            for record in edges:
                record["callback"] = deliveries.delivered
        try:
            with (
                self._watch.call(f"{self.transactional_id}: produce", _PRODUCE_S_MAX),
                sorted_errors(f"producing to {topic} [{partition}]"),
            ):
                # An outbox's topic has events alone: its first record tells.
                enqueue = self._enqueue_events if "headers" in records[0] else self._enqueue
                enqueue(topic, partition, records, deliveries.delivered if every else None)
        finally:
            for record in edges:
                record.pop("callback", None)
        deliveries.handed_over(topic, partition, records)

    def flush(self) -> None:
        """Return when the brokers have acknowledged everything that asked for a delivery report."""
        self._call("flush", self._flush_slice)

    def is_acknowledged(self) -> bool:
        """Return whether every record is reported as delivered by now; for records with `every`."""
        with sorted_errors(f"{self.transactional_id}: poll"):
            self._alive.poll(0)
        self._check_delivered()
        return self.deliveries.all_acknowledged

    def commit(self) -> None:
        """Return when the transaction is committed, after a flush.

        `UncertainEnd`: the transaction is committed, and the producer is destroyed. Any other error
        except an abortable one leaves the outcome unknown, and the producer destroyed.
        """
        assert self.in_transaction, self.transactional_id
        self.flush()
        self._end("commit_transaction", self._alive.commit_transaction)

    def abort(self, within_s: float | None = None) -> None:
        """Abort, after a flush: an abort that overtakes recent records can break the producer."""
        assert self.in_transaction, self.transactional_id
        try:
            self._call("flush", self._flush_slice, within_s)
        except TwofoldError:
            if self._producer is None:
                raise
            # The abort removes the records that failed.
        self._end("abort_transaction", self._alive.abort_transaction, within_s)

    def destroy(self) -> None:
        """Drop the client and its queued records.

        An open transaction stays open until the id is initialised again, or the broker's timeout
        ends it.
        """
        producer, self._producer = self._producer, None
        self.in_transaction = False
        if producer is None:
            return
        with self._watch.call(f"{self.transactional_id}: destroy", self._timeout_s):
            try:
                producer.purge()
                producer.flush(0)
            except:  # noqa: E722, S110 - an earlier call has raised the fatal error
                pass
            del producer

    def _end(self, name: str, end: Callable[[float], object], within_s: float | None = None) -> None:
        """End the transaction by a request that was sent once (`late_ends`), or destroy the
        producer and raise.
        """
        begun = time.monotonic()
        retried = self._call(name, end, within_s)
        self.in_transaction = False
        took_s = time.monotonic() - begun
        if uncertain := self.end_rule.judge(f"{self.transactional_id}: {name}", took_s, retried=retried):
            self.destroy()
            raise uncertain

    @property
    def _alive(self) -> Producer:
        if self._producer is None:
            raise RunEnded(f"Kafka: the producer {self.transactional_id} was destroyed after an error")
        return self._producer

    def _ask_for_leaders(self, topic: str | None) -> None:
        """Ask for a topic's leaders before its first row, so that librdkafka knows them in time;
        None: ask for the leaders of all topics, of which librdkafka keeps those that it has rows
        for.

        librdkafka asks by itself too. But where two topics come within microseconds of each other,
        it can overlook the second one until `retry.backoff.ms` is over: for a second nothing is
        sent. An error of this question does not matter, because librdkafka asks for unknown leaders
        while it takes the rows.
        """
        of = topic or "all topics"
        with (
            self._watch.call(f"{self.transactional_id}: asking for the leaders of {of}", _METADATA_S + 2 * _SLICE_S),
            contextlib.suppress(KafkaException),
        ):
            self._alive.list_topics(topic, _METADATA_S)
        if topic is not None:
            self._known_topics.add(topic)

    def _enqueue(self, topic: str, partition: int, records: list[Record], on_delivery: DeliveryCallback | None) -> None:
        producer, deadline, done = self._alive, time.monotonic() + self._timeout_s, 0
        while done < len(records):
            chunk = records if len(records) <= _CHUNK and not done else records[done : done + _CHUNK]
            taken = producer.produce_batch(topic, chunk, partition=partition, on_delivery=on_delivery)
            if taken:
                done, deadline = done + taken, time.monotonic() + self._timeout_s
            if taken < len(chunk):
                self._check_refused(topic, partition, chunk, deadline)
                self._make_room()
            else:
                producer.poll(0)
            self._check_delivered()

    def _enqueue_events(
        self, topic: str, partition: int, records: list[Record], on_delivery: DeliveryCallback | None
    ) -> None:
        """Hand over records with headers, one by one: `produce_batch` drops headers in silence."""
        producer, deadline, done = self._alive, time.monotonic() + self._timeout_s, 0
        while done < len(records):
            record = records[done]
            try:
                producer.produce(
                    topic,
                    value=record["value"],
                    key=record["key"],
                    partition=partition,
                    on_delivery=record.get("callback", on_delivery),
                    headers=record["headers"],
                )
            except BufferError:  # the queue is full
                self._check_drains(topic, partition, deadline)
                self._make_room()
            except KafkaException as error:
                kafka_error = kafka_error_of(error)
                if kafka_error is not None:
                    self._check_record(topic, partition, record, kafka_error)
                raise
            else:
                done, deadline = done + 1, time.monotonic() + self._timeout_s
                if done % _EVENTS_POLLED and done < len(records):
                    continue
                producer.poll(0)
            self._check_delivered()

    def _make_room(self) -> None:
        """Let librdkafka send what its full queue has: rows that gather would wait for more."""
        self._alive.flush(_ROOM_S)

    def _check_refused(self, topic: str, partition: int, chunk: list[Record], deadline: float) -> None:
        """Return only if the one reason is a full queue that still drains; otherwise raise."""
        for record in chunk:
            error: KafkaError | None = record.pop("_error", None)
            if error is not None and error.code() != QUEUE_FULL:
                self._check_record(topic, partition, record, error)
        self._check_drains(topic, partition, deadline)

    def _check_record(self, topic: str, partition: int, record: Record, error: KafkaError) -> NoReturn:
        """Raise why a record was refused."""
        if error.code() in TOO_LARGE:  # not its key: this is a line of the log, and a key may be a person's
            raise RecordTooLarge(topic, partition, largest_value([record]), record, self._bootstrap)
        if error.code() in {FATAL, WRONG_STATE}:
            # An earlier record has made the transaction fail, and its report may wait to be read.
            self._alive.poll(0)
            self._check_delivered()
            self._check_state()
        raise sort_error(error, f"producing to {topic} [{partition}]")

    def _check_drains(self, topic: str, partition: int, deadline: float) -> None:
        if time.monotonic() > deadline:
            raise sort_error(
                KafkaError(TIMED_OUT),
                f"producing to {topic} [{partition}]: the queue has been full for {self._timeout_s:.0f} s",
            )

    def _check_delivered(self) -> None:
        failed = self.deliveries.failed
        if failed is not None:
            if failed.code() == PURGED:  # it was behind the record that made the transaction fail
                self._check_state()
            raise self._sorted(failed, f"{self.transactional_id}: delivering rows")

    def _flush_slice(self, slice_s: float) -> int:
        left = self._alive.flush(min(slice_s, _FLUSH_CHECK_S))
        self._check_delivered()
        if left:
            self._check_state()
        return left

    def _check_state(self) -> None:
        """Raise the error that made the transaction fail.

        A failed transaction never drains, and only another call shows the failure: a call that is
        refused in any case.
        """
        try:
            self._alive.begin_transaction()
        except KafkaException as error:
            if error_code(error) != WRONG_STATE:
                raise self._sorted(error, f"{self.transactional_id}: delivering rows") from error

    def _sorted(self, error: object, doing: str) -> TwofoldError:
        """Return our error; if a topic refuses a record, the error is about its largest record."""
        if error_code(error) not in TOO_LARGE:
            return sort_error(error, doing)
        return RecordTooLarge(*self.deliveries.largest(), self._bootstrap)

    def _call(self, name: str, call: Callable[[float], object], within_s: float | None = None) -> bool:
        """Call in slices of time until it returns nothing or 0, and retry retriable errors.

        Return whether there was a retriable error.
        """
        bound_s, doing = self._timeout_s if within_s is None else within_s, f"{self.transactional_id}: {name}"
        deadline = time.monotonic() + bound_s
        retried = False
        error: object = KafkaError(TIMED_OUT, retriable=True)
        with self._watch.call(doing, bound_s + 2 * _SLICE_S):
            while True:
                left = deadline - time.monotonic()
                try:
                    if retried:
                        self._alive.poll(0)  # an expired password that a broker has denied is asked for again
                    if left > 0:
                        if not call(max(_SLICE_S_MIN, min(_SLICE_S, left))):
                            return retried
                        continue
                except:  # noqa: E722 - KafkaError is not an Exception
                    error = sys.exc_info()[1]
                self._resume_or_raise(error, doing, left)
                retried = True

    def _resume_or_raise(self, error: object, doing: str, left_s: float) -> None:
        """Return if the call may be resumed; otherwise raise.

        The producer is destroyed unless the error only requires an abort of the transaction.
        """
        kafka_error = kafka_error_of(error)
        if kafka_error is None and not isinstance(error, SystemError):
            assert isinstance(error, BaseException)
            raise error
        if kafka_error is not None and kafka_error.retriable() and left_s > 0:
            time.sleep(_PAUSE_S)
            return
        reason = self._sorted(error, doing)
        if kafka_error is None or not kafka_error.txn_requires_abort():
            self.destroy()
        raise reason from (error if isinstance(error, BaseException) else None)
