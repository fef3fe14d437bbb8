# ruff: noqa: SLF001 - the names of librdkafka's own error codes begin with an underscore
"""librdkafka's configuration from the user's settings, and one place that sorts its errors.

The user's settings are passed through by librdkafka's own names, so that every security and tuning option is there. Those that would break a promise are refused by name.
`KafkaError` is not an `Exception`, and a failing `flush()` can come out as `SystemError`: so calls into the library are wrapped in `sorted_errors`, which lets neither slip past.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from twofold.errors import (
    EndedElsewhere,
    Fenced,
    Refused,
    RunEnded,
    SetupError,
    TwofoldError,
    Unreachable,
    UsageError,
)
from twofold.sink.rate_limited_log import RateLimitedLog

_librdkafka = logging.getLogger("twofold.librdkafka")
_librdkafka.addFilter(RateLimitedLog())

RETRY_BACKOFF_MS = 1000
"""librdkafka sends no request a second time before 0.8 of this has passed: it draws the pause from 80 to 120 per cent."""
SENT_ONCE_S = 0.75 * RETRY_BACKOFF_MS / 1000
"""The end of a transaction that was answered within this time was sent once (`producer.TransactionalProducer._end`)."""

_REFUSED = {
    "acks": "every in-sync replica must acknowledge",
    "request.required.acks": "every in-sync replica must acknowledge",
    "enable.idempotence": "without it a retry writes rows twice",
    "transactional.id": "the ids are made from the prefix: recovery must know all of them",
    "isolation.level": "recovery must not read what is not committed",
    "transaction.timeout.ms": "it follows from kafka.transaction_timeout",
    "message.timeout.ms": "it follows from kafka.transaction_timeout",
    "delivery.timeout.ms": "it follows from kafka.transaction_timeout",
    "delivery.report.only.error": "the commit records' offset ranges come from the delivery reports",
    "queuing.strategy": "rows of one key must stay in order",
    "message.send.max.retries": "a message that is given up ends the run",
    "retries": "a message that is given up ends the run",
    "retry.backoff.ms": "how long an end of a transaction took tells whether it may have been sent twice, and that rests on this pause",
    "retry.backoff.max.ms": "how long an end of a transaction took tells whether it may have been sent twice, and that rests on this pause",
    "group.id": "Twofold reads without a group",
    "auto.offset.reset": "recovery reads from the first offset",
    "enable.auto.commit": "Twofold commits no consumer offsets",
    "enable.partition.eof": "recovery must see where a topic ends",
    "enable.auto.offset.store": "Twofold commits no consumer offsets",
    "allow.auto.create.topics": "topics are made with the configured partitions and replication",
}
_SOCKET_TIMEOUT = "socket.timeout.ms"
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
    """How to reach Kafka, and the bounds of every client."""

    client: Mapping[str, Any]
    """librdkafka's properties, by its names; `bootstrap.servers` among them."""
    transaction_timeout_ms: int = 60_000
    """After this the broker aborts what a dead process left open. More than `prepared.hold`, less than the broker's transaction.max.timeout.ms."""
    queue_kbytes_max: int = 65_536
    """Rows a producer may hold unsent: librdkafka's own bound is 1 GiB, each."""
    call_timeout_s: float = 60.0
    """Past this a call's outcome is unknown and the run ends."""

    def __post_init__(self) -> None:
        if not self.client.get("bootstrap.servers"):
            raise UsageError("Kafka's brokers are not named: set kafka.bootstrap to host:port of one or more")
        for name, why in _REFUSED.items():
            if name in self.client:
                raise UsageError(f"kafka.options must not set {name!r}: {why}; remove it")
        for name in _IN_FLIGHT:
            if int(self.client.get(name, 5)) > 5:
                raise UsageError(
                    f"kafka.options sets {name!r} above 5: retries could then change the order of rows; set 5 or less, or remove it"
                )
        if float(self.client.get(_SOCKET_TIMEOUT, math.inf)) < (least_ms := self._socket_timeout_ms):
            raise UsageError(
                f"kafka.options sets {_SOCKET_TIMEOUT!r} below {least_ms}, the lesser of kafka.call_timeout and kafka.transaction_timeout: requests would be given up and sent again"
                f" while the broker still has them; set it to {least_ms} or more, or remove it"
            )
        if self.transaction_timeout_ms < 1000:
            raise UsageError(
                f"a transaction timeout of {self.transaction_timeout_ms} ms is shorter than a commit may take: at least 1000"
            )

    @property
    def _socket_timeout_ms(self) -> int:
        """A request is waited for as long as its call is; librdkafka wants no more than the transaction's timeout."""
        return min(int(self.call_timeout_s * 1000), self.transaction_timeout_ms)

    def producer(self, transactional_id: str) -> dict[str, Any]:
        return {
            "queue.buffering.max.kbytes": self.queue_kbytes_max,
            _SOCKET_TIMEOUT: self._socket_timeout_ms,
            "compression.type": "lz4",  # a third of the bytes for a twentieth of the CPU (docs/inside/performance.md)
            **self.client,
            "transactional.id": transactional_id,
            "enable.idempotence": True,
            "acks": "all",
            "transaction.timeout.ms": self.transaction_timeout_ms,
            "message.timeout.ms": self.transaction_timeout_ms,
            "retry.backoff.ms": RETRY_BACKOFF_MS,
            "retry.backoff.max.ms": RETRY_BACKOFF_MS,
            "logger": _librdkafka,
        }

    def plain_producer(self) -> dict[str, Any]:
        """For a record that belongs to no transaction."""
        return {**self._common(), "enable.idempotence": True, "acks": "all", "logger": _librdkafka}

    def consumer(self) -> dict[str, Any]:
        return {
            **self._common(),
            "group.id": "twofold",  # the library insists on one; nothing is ever committed for it
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,  # a fetch that finds nothing tells a topic's end; by default it waits half a second
            "allow.auto.create.topics": False,
            "logger": _librdkafka,
        }

    def admin(self) -> dict[str, Any]:
        return {**self._common(), "logger": _librdkafka}

    def _common(self) -> dict[str, Any]:
        return {k: v for k, v in self.client.items() if not k.startswith(_PRODUCER_ONLY)}


QUEUE_FULL, TIMED_OUT, PARTITION_EOF = KafkaError._QUEUE_FULL, KafkaError._TIMED_OUT, KafkaError._PARTITION_EOF
FATAL = KafkaError._FATAL
PURGED = KafkaError._PURGE_QUEUE
"""What librdkafka says of records that a failed transaction never sent."""
NOT_ALLOWED = KafkaError.TOPIC_AUTHORIZATION_FAILED
UNKNOWN_TOPIC = KafkaError.UNKNOWN_TOPIC_OR_PART
MOVING = frozenset(
    {
        UNKNOWN_TOPIC,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.FENCED_LEADER_EPOCH,
    }
)
"""A partition is being made, or has another leader since a moment: its broker is asked again."""
WRONG_STATE, MSG_SIZE_TOO_LARGE, TOPIC_ALREADY_EXISTS, TOPIC_EXCEPTION = (
    KafkaError._STATE,
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.TOPIC_ALREADY_EXISTS,
    KafkaError.TOPIC_EXCEPTION,
)

_TOOK_OVER = "another instance took over this prefix, or the broker timed the transaction out"
_AWAY = "check that the brokers of kafka.bootstrap run, take our credentials and have enough replicas in sync"

_ENDED_ELSEWHERE = "the broker has no open transaction of this producer: it was ended by a request that came late, or by somebody else; the run recovers and compares what is visible with the commit records"

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
    KafkaError._AUTHENTICATION: (SetupError, "check sasl.* and ssl.* in kafka.options"),
    KafkaError.SASL_AUTHENTICATION_FAILED: (SetupError, "check sasl.* in kafka.options"),
    KafkaError._SSL: (SetupError, "check ssl.* in kafka.options"),
    KafkaError.TOPIC_AUTHORIZATION_FAILED: (
        SetupError,
        "grant Describe, Create, Read, Write and DescribeConfigs on the prefix's topics",
    ),
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: (
        SetupError,
        "grant DescribeConfigs on the cluster (and IdempotentWrite, on brokers before 3.0)",
    ),
    KafkaError.GROUP_AUTHORIZATION_FAILED: (SetupError, "grant Describe on the group twofold"),
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: (
        SetupError,
        "grant Write and Describe on the transactional ids that begin with the prefix",
    ),
    KafkaError.INVALID_TRANSACTION_TIMEOUT: (
        SetupError,
        "kafka.transaction_timeout is above the broker's transaction.max.timeout.ms; lower the one or raise the other",
    ),
    KafkaError._INVALID_ARG: (UsageError, "see kafka.options in the configuration"),
}


def kafka_error_of(error: object) -> KafkaError | None:
    """The library's own error in whatever it came out as."""
    if isinstance(error, KafkaError):
        return error
    if isinstance(error, KafkaException) and error.args and isinstance(error.args[0], KafkaError):
        return error.args[0]
    if isinstance(error, SystemError) and error.__cause__ is not None:
        return kafka_error_of(error.__cause__)
    return None


def sort_error(error: object, doing: str) -> TwofoldError:
    """What the user, or the run, does next about an error of the library. `doing` completes "Kafka: ... failed"."""
    if isinstance(error, TwofoldError):
        return error
    found = kafka_error_of(error)
    if found is None:
        return RunEnded(f"Kafka: {doing} failed: {error!r}")
    text = f"Kafka: {doing} failed: {found.str()} ({found.name()})"
    if found.code() in {MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE}:
        return too_large(text)
    kind, advice = _SORTED.get(found.code(), (RunEnded, "the run recovers by itself"))
    return kind(f"{text}: {advice}")


def too_large(what: str) -> Refused:
    """A record is above a limit of the topic or of the client."""
    return Refused(
        what,
        at_stake="the row cannot be delivered, and skipping it would lose it",
        repair="raise the topic's max.message.bytes (kafka-configs --alter --topic ... --add-config max.message.bytes=N) and message.max.bytes in kafka.options to the same N",
    )


class sorted_errors:  # noqa: N801 - reads as what it does: `with sorted_errors("reading the progress"):`
    """Whatever the library throws inside leaves as a `TwofoldError`. Anything that is not the library's passes untouched."""

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
