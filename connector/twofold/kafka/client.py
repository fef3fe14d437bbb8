# ruff: noqa: SLF001 - the names of librdkafka's own error codes begin with an underscore
"""Makes librdkafka's configuration from the user's settings, and sorts its errors in one place.

The user's settings pass through under librdkafka's own names, so every security and tuning option
is available. A setting that would break a promise is refused by name. `KafkaError` is not an
`Exception`, and a failing `flush()` can raise `SystemError`: `sorted_errors` around each call
catches both.
"""

from __future__ import annotations

import logging
import math
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from twofold.errors import (
    AccessDenied,
    EndedElsewhere,
    Fenced,
    RunEnded,
    SetupError,
    TwofoldError,
    Unreachable,
    UsageError,
)
from twofold.kafka.kafka_secrets import KafkaSecrets
from twofold.kafka.late_ends import retry_options
from twofold.kafka.record_sizes import RECORD_BYTES, queue_kbytes

REPEAT_S = 30.0
_VARYING = re.compile(r"#(?:producer|consumer)-\d+|\(after \d+ms|\d+ms")
"""The client's number, and durations."""
_GUESS = re.compile(
    r"probably due to (?:old )?broker version < ?0\.10(?: \(see api\.version\.request configuration\))?"
)


class RateLimitedLog(logging.Filter):
    """A log filter that passes a line of a kind, and the next line of that kind only after a while.

    That line says how many lines of its kind there were in between.
    """

    def __init__(self) -> None:
        super().__init__()
        self._kinds: dict[str, tuple[float, int]] = {}
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        text, now = in_our_words(record.getMessage()), time.monotonic()
        kind = _VARYING.sub("", text)
        with self._lock:
            passed_at, dropped = self._kinds.get(kind, (now - REPEAT_S, 0))
            if now < passed_at + REPEAT_S:
                self._kinds[kind] = passed_at, dropped + 1
                return False
            self._kinds = {k: v for k, v in self._kinds.items() if now < v[0] + REPEAT_S}
            self._kinds[kind] = now, 0
        more = f" ({dropped} similar lines in the last {now - passed_at:.0f} s)" if dropped else ""
        record.msg, record.args = text + more, ()
        return True


def in_our_words(text: str) -> str:
    """Return librdkafka's line without its guess about a broker that does not answer at all."""
    return _GUESS.sub("the broker accepts connections and does not answer: it is frozen or overloaded", text)


_librdkafka = logging.getLogger("twofold.librdkafka")
_librdkafka.addFilter(RateLimitedLog())

_REFUSED = {
    "acks": "every in-sync replica must acknowledge",
    "request.required.acks": "every in-sync replica must acknowledge",
    "enable.idempotence": "without it a retry writes rows twice",
    "transactional.id": "the ids follow from the prefix, because recovery must know all of them",
    "isolation.level": "recovery must not read what is not committed",
    "transaction.timeout.ms": "it follows from kafka.transaction_timeout",
    "message.timeout.ms": "it follows from kafka.transaction_timeout",
    "delivery.timeout.ms": "it follows from kafka.transaction_timeout",
    "delivery.report.only.error": "the commit records' offset ranges come from the delivery reports",
    "queuing.strategy": "rows of one key must stay in order",
    "message.send.max.retries": "a message that librdkafka stops retrying ends the run",
    "retries": "a message that librdkafka stops retrying ends the run",
    "retry.backoff.ms": "by this pause the connector recognises an end of a transaction that may have been sent twice",
    "retry.backoff.max.ms": "by this pause the connector recognises an end of a transaction that may have been sent twice",
    "group.id": "Twofold reads without a group",
    "auto.offset.reset": "recovery reads from the first offset",
    "enable.auto.commit": "Twofold commits no consumer offsets",
    "enable.partition.eof": "recovery must see where a topic ends",
    "enable.auto.offset.store": "Twofold commits no consumer offsets",
    "allow.auto.create.topics": "topics are created with the configured partitions and replication",
}
_SOCKET_TIMEOUT = "socket.timeout.ms"
_FETCH_MS_MAX, _SOCKET_TIMEOUT_MS_MAX = 2_000, 300_000
"""A fetch waits for records at the broker, and the library has a bound of its own."""
_MAKES_NO_TOPIC = {"allow.auto.create.topics": False}
"""Brokers create a topic that a producer asks for, unless either of the two forbids it. So a topic
that somebody has deleted would be there again, empty, and the run would go on.
"""
_GATHERING_MS = 500
"""How long a gathering producer's rows wait for more rows of their partition, unless flushed.

After librdkafka's usual 5 ms a backlog of many partitions would become record batches of a few rows
each, at twice the cost for the broker. In much more time than this a transaction that is not split
would fill librdkafka's queue of 100,000 records, and wait.
"""
_IN_FLIGHT = ("max.in.flight.requests.per.connection", "max.in.flight")
_PRODUCER_ONLY = (
    "queue.",
    "linger",
    "batch.",
    "compression.",
    "sticky.",
    "max.in.flight",
    "message.",
    "partitioner",
    "enable.gapless",
)


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """The settings for reaching Kafka, and the bounds of every client."""

    client: Mapping[str, Any]
    """librdkafka's properties under its own names; `bootstrap.servers` is among them."""
    transaction_timeout_ms: int = 60_000
    """The time after which the broker aborts a dead process's transaction. It is more than
    `prepared.hold`, and less than the broker's transaction.max.timeout.ms.
    """
    queue_kbytes_max: int = 65_536
    """The most kilobytes that a producer may hold unsent; librdkafka's own bound is 1 GiB."""
    call_timeout_s: float = 60.0
    """The longest time of a call. A longer call has an unknown outcome, and the run ends."""
    retry_factor: int = 1
    """The factor on `late_ends.RETRY_BACKOFF_MS`, the wait before a request is repeated, and on how
    long the end of a transaction may take. More than 1 for slow brokers.
    """
    secrets: KafkaSecrets = field(default_factory=KafkaSecrets)
    """The secrets with which every client is opened."""

    def __post_init__(self) -> None:
        if not self.client.get("bootstrap.servers"):
            raise UsageError("no Kafka broker is configured: set kafka.bootstrap to host:port of one or more brokers")
        for name, reason in _REFUSED.items():
            if name in self.client:
                raise UsageError(f"kafka.options must not set {name!r}: {reason}; remove it")
        for name in _IN_FLIGHT:
            if int(self.client.get(name, 5)) > 5:
                raise UsageError(
                    f"kafka.options sets {name!r} above 5: retries could then change the order of rows; set 5 or less, or remove it"
                )
        if float(self.client.get(_SOCKET_TIMEOUT, math.inf)) < (least_ms := self._socket_timeout_ms):
            raise UsageError(
                f"kafka.options sets {_SOCKET_TIMEOUT!r} below {least_ms}, the lesser of kafka.call_timeout and kafka.transaction_timeout: requests would be sent again"
                f" while the broker still processes them; set it to {least_ms} or more, or remove it"
            )
        if self.transaction_timeout_ms < 1000:
            raise UsageError(
                f"kafka.transaction_timeout is {self.transaction_timeout_ms} ms, shorter than a commit may take: set it to 1 s or more"
            )

    @property
    def _socket_timeout_ms(self) -> int:
        """Bound a request by its call's timeout and, as librdkafka requires, the transaction's."""
        return min(int(self.call_timeout_s * 1000), self.transaction_timeout_ms)

    @property
    def bootstrap(self) -> str:
        return str(self.client["bootstrap.servers"])

    @property
    def record_bytes(self) -> int:
        """The largest record that a producer takes."""
        return max(int(self.client.get("message.max.bytes", 0)), RECORD_BYTES)

    def producer(self, transactional_id: str, *, gathers: bool = False) -> dict[str, Any]:
        """`gathers`: whoever hands rows over flushes them too, so that they may wait for more."""
        gathering = {"linger.ms": _GATHERING_MS} if gathers else {}
        return {
            **gathering,
            "queue.buffering.max.kbytes": queue_kbytes(self.record_bytes, self.queue_kbytes_max),
            _SOCKET_TIMEOUT: self._socket_timeout_ms,
            "compression.type": "lz4",  # a third of the bytes for 5 % of the CPU
            **self.client,
            **_MAKES_NO_TOPIC,
            "message.max.bytes": self.record_bytes,
            "transactional.id": transactional_id,
            "enable.idempotence": True,
            "acks": "all",
            "transaction.timeout.ms": self.transaction_timeout_ms,
            "message.timeout.ms": self.transaction_timeout_ms,
            **retry_options(self.retry_factor),
            "logger": _librdkafka,
        }

    def plain_producer(self) -> dict[str, Any]:
        """Return the settings of a producer whose records belong to no transaction."""
        return {**self._common(), "enable.idempotence": True, "acks": "all", "logger": _librdkafka}

    def consumer(self) -> dict[str, Any]:
        return {
            # A follower of a topic waits for nothing else that would notice a dead connection.
            _SOCKET_TIMEOUT: min(max(int(self.call_timeout_s * 1000), _FETCH_MS_MAX), _SOCKET_TIMEOUT_MS_MAX),
            **self._common(),
            "group.id": "twofold",  # the library requires one; it gets no offset, and needs no right
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,  # an empty fetch shows a topic's end; the default is 500
            "logger": _librdkafka,
        }

    def open_consumer(self, options: Mapping[str, Any]) -> Consumer:
        """Open a consumer with these options beside its usual ones."""
        return self.secrets.open(Consumer, {**self.consumer(), **options})

    def open_admin(self) -> AdminClient:
        with sorted_errors("creating the admin client"):
            return self.secrets.open(AdminClient, self.admin())

    def admin(self) -> dict[str, Any]:
        return {**self._common(), "logger": _librdkafka}

    def _common(self) -> dict[str, Any]:
        return {**{k: v for k, v in self.client.items() if not k.startswith(_PRODUCER_ONLY)}, **_MAKES_NO_TOPIC}


QUEUE_FULL, TIMED_OUT, PARTITION_EOF = KafkaError._QUEUE_FULL, KafkaError._TIMED_OUT, KafkaError._PARTITION_EOF
FATAL = KafkaError._FATAL
PURGED = KafkaError._PURGE_QUEUE
"""librdkafka's error for records that a failed transaction never sent."""
NO_GROUP = KafkaError.GROUP_AUTHORIZATION_FAILED
"""A consumer looks for its group's coordinator, also if it reads without a group."""
UNKNOWN_TOPIC = KafkaError.UNKNOWN_TOPIC_OR_PART
MOVING = frozenset(
    {
        UNKNOWN_TOPIC,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError._NOENT,  # the library's word where the brokers name no leader yet
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.FENCED_LEADER_EPOCH,
    }
)
"""A partition is being created, or has just got another leader: its broker is asked again."""
TOO_LARGE = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE})
WRONG_STATE, TOPIC_ALREADY_EXISTS, TOPIC_EXCEPTION = (
    KafkaError._STATE,
    KafkaError.TOPIC_ALREADY_EXISTS,
    KafkaError.TOPIC_EXCEPTION,
)

_TOOK_OVER = "another instance took over this prefix, or the broker timed the transaction out"
_AWAY = "check that the brokers in kafka.bootstrap run, accept the credentials and have enough replicas in sync"

_WHICH = "twofold doctor names what is missing, with the command"
"""Kafka's answer does not say which right it is."""
GRANT = "kafka-acls --bootstrap-server HOST:PORT --add --allow-principal User:NAME"
"""The beginning of the command that grants a right. No client can ask whether it has the right, so
doctor repeats the right that the refused run named.
"""

_ENDED_ELSEWHERE = (
    "the broker has no open transaction of this producer: a late request or another client has ended it;"
    " the run recovers and compares the visible records with the commit records"
)

_SORTED: dict[int, tuple[type[TwofoldError], str]] = {
    KafkaError._FENCED: (Fenced, _TOOK_OVER),
    KafkaError.PRODUCER_FENCED: (Fenced, _TOOK_OVER),
    KafkaError.INVALID_PRODUCER_EPOCH: (Fenced, _TOOK_OVER),
    KafkaError.INVALID_TXN_STATE: (EndedElsewhere, _ENDED_ELSEWHERE),
    KafkaError._TRANSPORT: (Unreachable, _AWAY),
    KafkaError._ALL_BROKERS_DOWN: (Unreachable, _AWAY),
    KafkaError._RESOLVE: (Unreachable, _AWAY),
    KafkaError._DESTROY_BROKER: (Unreachable, _AWAY),
    KafkaError._TIMED_OUT: (Unreachable, _AWAY),
    KafkaError._TIMED_OUT_QUEUE: (Unreachable, _AWAY),
    KafkaError._MSG_TIMED_OUT: (Unreachable, _AWAY),
    KafkaError.REQUEST_TIMED_OUT: (Unreachable, _AWAY),
    KafkaError.COORDINATOR_NOT_AVAILABLE: (Unreachable, _AWAY),
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS: (Unreachable, _AWAY),
    KafkaError.LEADER_NOT_AVAILABLE: (Unreachable, _AWAY),
    KafkaError.NOT_ENOUGH_REPLICAS: (Unreachable, _AWAY),
    KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND: (Unreachable, _AWAY),
    KafkaError._NOENT: (RunEnded, "the topic is gone, or no broker leads the partition: twofold doctor says which"),
    KafkaError._AUTO_OFFSET_RESET: (
        Unreachable,
        "records are gone that were there a moment ago: they were deleted, or the topic was created again; another read takes what is there now",
    ),
    KafkaError._AUTHENTICATION: (AccessDenied, "check sasl.* and ssl.* in kafka.options"),
    KafkaError.SASL_AUTHENTICATION_FAILED: (AccessDenied, "check sasl.* in kafka.options"),
    KafkaError._SSL: (
        SetupError,
        "check ssl.* in kafka.options, that the broker's certificate is for the host in kafka.bootstrap, and that it has not expired: openssl s_client -verify_return_error -CAfile CA -verify_hostname HOST -connect HOST:PORT says which",
    ),
    KafkaError.TOPIC_AUTHORIZATION_FAILED: (
        SetupError,
        f"grant Describe, Create, Read, Write and DescribeConfigs on the prefix's topics: {_WHICH}",
    ),
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: (
        SetupError,
        f"grant DescribeConfigs on the cluster and Write on the prefix's topics (on brokers before 3.0 IdempotentWrite, too): {_WHICH}",
    ),
    NO_GROUP: (SetupError, f"grant Describe on the mirror's group: {GRANT} --operation Describe --group PREFIX.mirror"),
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: (
        SetupError,
        f"grant Write and Describe on the transactional ids that begin with the prefix: {GRANT} --operation Write --operation Describe --transactional-id PREFIX. --resource-pattern-type prefixed",
    ),
    KafkaError.INVALID_TRANSACTION_TIMEOUT: (
        SetupError,
        "lower kafka.transaction_timeout, or raise the broker's transaction.max.timeout.ms: the first must not exceed the second",
    ),
    KafkaError.INVALID_TIMESTAMP: (
        RunEnded,
        "this machine's clock and the brokers' are far apart: timedatectl set-ntp true on both; or let the brokers' clock count, with --add-config message.timestamp.type=LogAppendTime for this topic",
    ),
    KafkaError._INVALID_ARG: (UsageError, "correct kafka.options"),
    KafkaError._UNSUPPORTED_FEATURE: (
        SetupError,
        "give kafka.bootstrap brokers with transactions (InitProducerId, AddPartitionsToTxn, EndTxn), as of Kafka 3 or later",
    ),
}


def kafka_error_of(error: object) -> KafkaError | None:
    """Return the library's own error, in whatever form it was raised."""
    if isinstance(error, KafkaError):
        return error
    if isinstance(error, KafkaException) and error.args and isinstance(error.args[0], KafkaError):
        return error.args[0]
    if isinstance(error, SystemError) and error.__cause__ is not None:
        return kafka_error_of(error.__cause__)
    return None


def error_code(error: object) -> int | None:
    """Return the code of the library's own error; None for any other error, and for none."""
    kafka_error = kafka_error_of(error)
    return None if kafka_error is None else kafka_error.code()


def sort_error(error: object, doing: str) -> TwofoldError:
    """Return our error for an error of the library.

    Its class says what the user or the run does next. `doing` completes "Kafka: ... failed".
    """
    if isinstance(error, TwofoldError):
        return error
    kafka_error = kafka_error_of(error)
    if kafka_error is None:
        return RunEnded(f"Kafka: {doing} failed: {error!r}")
    text = f"Kafka: {doing} failed: {kafka_error.str()} ({kafka_error.name()})"
    kind, advice = _SORTED.get(kafka_error.code(), (RunEnded, "the run recovers by itself"))
    return kind(f"{text}{'; remedy' if issubclass(kind, SetupError | UsageError) else ''}: {advice}")


class sorted_errors:  # noqa: N801 - reads as what it does: `with sorted_errors("reading the progress"):`
    """A context that turns every error of the library into a `TwofoldError`, and passes others."""

    __slots__ = ("_doing",)

    def __init__(self, doing: str) -> None:
        self._doing = doing

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kafka_error_of(error) is not None or isinstance(error, SystemError):
            raise sort_error(error, self._doing) from (error if isinstance(error, BaseException) else None)
