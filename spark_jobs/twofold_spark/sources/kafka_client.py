"""Where the brokers are, Kafka's admin client, and the check that a broker answers."""

from __future__ import annotations

import re
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from twofold_avro.names import TopicNames
from twofold_spark.errors import SetupError, grant_command
from twofold_spark.java_classes import java_class
from twofold_spark.signals import catch_end_signals

Place = tuple[str, int]
"""A topic and the number of a partition."""

ANSWER_WITHIN_S: Final = 15
TOPIC_WITHIN_S: Final = 5.0
ASKED_AGAIN_S: Final = 0.5
"""Between two questions for a topic that a broker may not know yet."""
UNKNOWN_TOPIC: Final = "UnknownTopicOrPartition"
"""Kafka's error, as it stands in those of Java and of Spark."""
_CONNECT_S: Final = 5.0
_COMMITS: Final = TopicNames("").commits
_BROKER = re.compile(r"(?:\w+://)?\[?(.+?)\]?:(\d{1,5})")
_FETCH_WAIT = {"kafka.fetch.max.wait.ms": "1"}
"""How long the broker waits for more records than it has: 1 ms instead of 500 ms.

The client asks for the records behind a range before Spark asks for the partition's end, on the
same connection: each partition that is read waits so long. What is read is there already.
"""
_MAKES_NO_TOPIC = {"kafka.allow.auto.create.topics": "false"}
"""Brokers create a topic that a consumer asks for, unless either of the two forbids it. So a topic
that somebody has deleted would be there again, empty, and the connector would write into it.
"""


@dataclass(frozen=True, slots=True)
class Kafka:
    """Where the brokers are, and further client settings (`security.protocol` and the like)."""

    bootstrap: str
    client: Mapping[str, str] = field(default_factory=dict)
    _name: str = field(default_factory=lambda: f"twofold-{uuid.uuid4()}", init=False, repr=False, compare=False)

    def options(self, isolation: str, *, kept: str = "") -> dict[str, str]:
        """Make the options of Spark's Kafka source.

        By this name the consumers are kept for the next read, which gives the same other options. A
        consumer takes longer to make, and to connect, than a few records to read.
        """
        given = {f"kafka.{key}": value for key, value in self.client.items()}
        # Spark keeps consumers by their group. They join none: Spark assigns their partitions.
        name = {"kafka.group.id": f"{self._name}-{kept}-{isolation}"} if kept else {}
        own = {"kafka.bootstrap.servers": self.bootstrap, "kafka.isolation.level": isolation, **name}
        return {**_FETCH_WAIT, **given, **own, **_MAKES_NO_TOPIC}


def open_admin(spark: SparkSession, kafka: Kafka) -> Any:
    """Open Kafka's admin client, which Spark brings; the caller closes it."""
    settings = java_class(spark, "java.util.Properties")()
    for name, value in {**kafka.client, "bootstrap.servers": kafka.bootstrap}.items():
        settings.put(name, value)
    return java_class(spark, "org.apache.kafka.clients.admin.AdminClient").create(settings)


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic as it is now.

    One that was deleted and recreated has the same name and another id. Its offsets say nothing of
    what was read from the former topic.
    """

    name: str
    id: str
    """Empty where the broker gives topics no ids."""
    ends: Mapping[int, int]
    """Below these offsets all is decided; an open transaction, or the end, begins here."""


class KafkaAdmin:
    """Kafka's admin client, opened by the first question. Several threads may ask; the owner closes
    it.
    """

    def __init__(self, spark: SparkSession, kafka: Kafka) -> None:
        self._spark = spark
        self.kafka = kafka
        self._client: Any = None
        self._lock = threading.Lock()
        self._partitions: dict[Place, Any] = {}
        """Java's objects, kept because calls into the JVM take longer than all other work here."""

    @property
    def client(self) -> Any:
        with self._lock:
            self._client = self._client or open_admin(self._spark, self.kafka)
            return self._client

    def describe_topics(self, pattern: str) -> dict[str, TopicState]:
        """Describe every topic that exists now and whose name matches, by name."""
        listed = java_class(self._spark, "java.lang.String").join("\n", self.client.listTopics().names().get())
        wanted = java_class(self._spark, "java.util.ArrayList")()
        for name in filter(re.compile(pattern).fullmatch, listed.split("\n")):
            wanted.add(name)
        futures = self.client.describeTopics(wanted).topicNameValues()
        found = {name: topic for name in futures if (topic := _await_description(futures[name])) is not None}
        partitions = {name: range(topic.partitions().size()) for name, topic in found.items()}
        ends = self.list_stable_offsets((name, n) for name, numbers in partitions.items() for n in numbers)
        no_id = java_class(self._spark, "org.apache.kafka.common.Uuid").ZERO_UUID.toString()
        ids = {name: topic.topicId().toString() for name, topic in found.items()}
        return {
            name: TopicState(name, "" if ids[name] == no_id else ids[name], {n: ends[name, n] for n in numbers})
            for name, numbers in partitions.items()
        }

    def list_stable_offsets(self, places: Iterable[Place], *, within_ms: int | None = None) -> dict[Place, int]:
        """Return where each partition's oldest open transaction begins, or else its end.

        A limit of time, if one is given, takes the place of the client's own.
        """
        return self._list_offsets(places, "latest", within_ms)

    def list_first_offsets(self, places: Iterable[Place]) -> dict[Place, int]:
        """Return the first offset that Kafka still has of each partition."""
        return self._list_offsets(places, "earliest")

    def _list_offsets(self, places: Iterable[Place], which: str, within_ms: int | None = None) -> dict[Place, int]:
        partition_of = java_class(self._spark, "org.apache.kafka.common.TopicPartition")
        partitions = {place: self._partitions.get(place) or partition_of(*place) for place in places}
        if not partitions:
            return {}
        self._partitions |= partitions
        spec = getattr(java_class(self._spark, "org.apache.kafka.clients.admin.OffsetSpec"), which)()
        wanted = java_class(self._spark, "java.util.HashMap")()
        for partition in partitions.values():
            wanted.put(partition, spec)
        isolation = java_class(self._spark, "org.apache.kafka.common.IsolationLevel").READ_COMMITTED
        committed = java_class(self._spark, "org.apache.kafka.clients.admin.ListOffsetsOptions")(isolation)
        if within_ms is not None:
            committed = committed.timeoutMs(within_ms)
        answers = self.client.listOffsets(wanted, committed).all().get()
        return {place: int(answers[partition].offset()) for place, partition in partitions.items()}

    def close(self) -> None:
        if self._client is not None:
            self._client.close()


def _await_description(future: Any) -> Any | None:
    """Return a topic's description, or None if the topic was deleted since it was listed."""
    try:
        return future.get()
    except Py4JJavaError as error:
        if UNKNOWN_TOPIC in str(error.java_exception):
            return None
        raise


def require_connector(spark: SparkSession, kafka: Kafka, prefix: str) -> None:
    """Raise `SetupError` unless a broker answers within `ANSWER_WITHIN_S`, and has the topic of
    this prefix's commit records.

    The stream itself would ask for three minutes without a message. A broker that has just started
    does not know all topics yet: it is asked for some seconds.
    """
    deadline = time.monotonic() + TOPIC_WITHIN_S
    with _asking(spark, kafka) as ask:
        while True:
            names = ask()
            found = {name.removesuffix(_COMMITS) for name in names if name.endswith(_COMMITS)}
            if prefix in found:
                return
            if time.monotonic() > deadline:
                raise SetupError(_no_connector(kafka, prefix, found))
            time.sleep(ASKED_AGAIN_S)


def list_topics(spark: SparkSession, kafka: Kafka) -> list[str]:
    """Return the topics that this client may see."""
    with _asking(spark, kafka) as ask:
        return ask()


def _no_connector(kafka: Kafka, prefix: str, found: set[str]) -> str:
    known = f"the prefixes there are {', '.join(sorted(found))}" if found else "nor of any other prefix"
    return (
        f"Kafka at {kafka.bootstrap} has no topic {prefix}{_COMMITS}, {known}: "
        "correct --prefix or --bootstrap, run twofold init first, or grant Read on its topics: "
        + grant_command(kafka.bootstrap, f"--operation Read --topic {prefix}. --resource-pattern-type prefixed")
    )


@contextmanager
def _asking(spark: SparkSession, kafka: Kafka) -> Iterator[Callable[[], list[str]]]:
    """Yield a function that asks Kafka for the topics and waits for the answer.

    A signal only sets an event, because an exception during a call into the JVM would leave that
    call's answer to the next one. Then the whole ends with KeyboardInterrupt.
    """
    options = java_class(spark, "org.apache.kafka.clients.admin.ListTopicsOptions")()
    with catch_end_signals() as end:
        admin = open_admin(spark, kafka)

        def ask() -> list[str]:
            future = admin.listTopics(options.timeoutMs(ANSWER_WITHIN_S * 1000)).names()
            while not future.isDone():
                if end.wait(0.05):
                    raise KeyboardInterrupt
            try:
                return list(future.get())
            except Py4JJavaError as error:
                cause = error.java_exception
                while cause.getCause() is not None:
                    cause = cause.getCause()
                raise _no_broker(kafka.bootstrap, cause.getMessage()) from error

        try:
            yield ask
        finally:
            admin.close(java_class(spark, "java.time.Duration").ofSeconds(0))
        if end.is_set():  # it came with the last answer
            raise KeyboardInterrupt


def require_reachable(bootstrap: str | None) -> None:
    """Raise `SetupError` if no broker of the list takes a connection within some seconds.

    Spark takes long to start, and its client longer to say so. A starting broker is waited for.
    """
    places = [_BROKER.fullmatch(each.strip()) for each in (bootstrap or "").split(",")]
    if not all(places):
        return  # Kafka's own client says what is wrong with it
    deadline = time.monotonic() + ANSWER_WITHIN_S
    while True:
        cause: OSError | None = None
        for place in filter(None, places):
            try:
                socket.create_connection((place[1], int(place[2])), _CONNECT_S).close()
            except UnicodeError:
                return
            except OSError as error:
                cause = error
            else:
                return
        if isinstance(cause, socket.gaierror) or time.monotonic() > deadline:
            raise _no_broker(bootstrap or "", (cause and cause.strerror) or str(cause)) from cause
        time.sleep(0.5)


def _no_broker(bootstrap: str, cause: str) -> SetupError:
    return SetupError(
        f"no Kafka broker answers at {bootstrap} ({cause}): check --bootstrap, and the TLS and SASL settings of --kafka-file and --kafka"
    )
