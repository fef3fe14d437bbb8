"""Where the brokers are, Kafka's admin client, and the check that a broker answers."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, cast

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from twofold_avro.names import TopicNames
from twofold_spark.errors import SetupError, grant_command
from twofold_spark.java_classes import java_class
from twofold_spark.signals import catch_end_signals

ANSWER_WITHIN_S: Final = 15
TOPIC_WITHIN_S: Final = 5.0
_CONNECT_S: Final = 5.0
_COMMITS: Final = TopicNames("").commits
_BROKER = re.compile(r"(?:\w+://)?\[?(.+?)\]?:(\d{1,5})")
_FETCH_WAIT = {"kafka.fetch.max.wait.ms": "10"}
"""How long the broker waits for more records than it has: 10 ms instead of 500 ms.

The client asks for the records behind a range before Spark asks for the partition's end, on the
same connection. With 500 ms each task and each batch of the stream waited that long.
"""


@dataclass(frozen=True, slots=True)
class Kafka:
    """Where the brokers are, and further client settings (`security.protocol` and the like)."""

    bootstrap: str
    client: Mapping[str, str] = field(default_factory=dict)

    def options(self, isolation: str) -> dict[str, str]:
        """Make the options of Spark's Kafka source."""
        given = {f"kafka.{key}": value for key, value in self.client.items()}
        return {**_FETCH_WAIT, **given, "kafka.bootstrap.servers": self.bootstrap, "kafka.isolation.level": isolation}


def open_admin(spark: SparkSession, kafka: Kafka) -> Any:
    """Open Kafka's admin client, which Spark brings; the caller closes it."""
    jvm: Any = spark._jvm
    settings = jvm.java.util.Properties()
    for name, value in {**kafka.client, "bootstrap.servers": kafka.bootstrap}.items():
        settings.put(name, value)
    return jvm.org.apache.kafka.clients.admin.AdminClient.create(settings)


def list_stable_offsets(
    spark: SparkSession, admin: Any, places: Iterable[tuple[str, int]], *, within_ms: int | None = None
) -> dict[tuple[str, int], int]:
    """Return the last stable offset of each partition, which is given by its topic and number.

    A limit of time, if one is given, takes the place of the client's own.
    """
    partition_of = java_class(spark, "org.apache.kafka.common.TopicPartition")
    partitions = {place: partition_of(*place) for place in places}
    latest = java_class(spark, "org.apache.kafka.clients.admin.OffsetSpec").latest()
    wanted = java_class(spark, "java.util.HashMap")()
    for partition in partitions.values():
        wanted.put(partition, latest)
    isolation = java_class(spark, "org.apache.kafka.common.IsolationLevel").READ_COMMITTED
    committed = java_class(spark, "org.apache.kafka.clients.admin.ListOffsetsOptions")(isolation)
    if within_ms is not None:
        committed = committed.timeoutMs(within_ms)
    answers = admin.listOffsets(wanted, committed).all().get()
    return {place: answers[partition].offset() for place, partition in partitions.items()}


def read_first_offset(spark: SparkSession, kafka: Kafka, topic: str) -> int:
    """Return the first offset that Kafka still has of a topic of one partition."""
    jvm: Any = spark._jvm
    place = jvm.org.apache.kafka.common.TopicPartition(topic, 0)
    wanted = jvm.java.util.HashMap()
    wanted.put(place, jvm.org.apache.kafka.clients.admin.OffsetSpec.earliest())
    admin = open_admin(spark, kafka)
    try:
        return int(admin.listOffsets(wanted).all().get()[place].offset())
    finally:
        admin.close()


def require_connector(spark: SparkSession, kafka: Kafka, prefix: str) -> None:
    """Raise `SetupError` unless a broker answers within `ANSWER_WITHIN_S`, and has the topic of
    this prefix's commit records.

    The stream itself would ask for three minutes without a message. A broker that has just started
    does not know all topics yet: it is asked for some seconds.
    """
    deadline = time.monotonic() + TOPIC_WITHIN_S
    with _asking(spark, kafka) as ask:
        while True:
            names = _list_topics(spark, ask)
            found = {name.removesuffix(_COMMITS) for name in names if name.endswith(_COMMITS)}
            if prefix in found:
                return
            if time.monotonic() > deadline:
                raise SetupError(_no_connector(kafka, prefix, found))
            time.sleep(0.5)


def list_topics(spark: SparkSession, kafka: Kafka) -> list[str]:
    """Return the topics that this client may see."""
    with _asking(spark, kafka) as ask:
        return list(_list_topics(spark, ask))


def _list_topics(spark: SparkSession, ask: Callable[[Callable[[Any], Any]], Any]) -> Any:
    options = cast("Any", spark._jvm).org.apache.kafka.clients.admin.ListTopicsOptions()
    return ask(lambda admin: admin.listTopics(options.timeoutMs(ANSWER_WITHIN_S * 1000)).names())


def _no_connector(kafka: Kafka, prefix: str, found: set[str]) -> str:
    known = f"the prefixes there are {', '.join(sorted(found))}" if found else "nor of any other prefix"
    return (
        f"Kafka at {kafka.bootstrap} has no topic {prefix}{_COMMITS}, {known}: "
        "correct --prefix or --bootstrap, run twofold init first, or grant Read on its topics: "
        + grant_command(kafka.bootstrap, f"--operation Read --topic {prefix}. --resource-pattern-type prefixed")
    )


@contextmanager
def _asking(spark: SparkSession, kafka: Kafka) -> Iterator[Callable[[Callable[[Any], Any]], Any]]:
    """Yield a function that asks Kafka's admin client a question and waits for the answer.

    A signal only sets an event, because an exception during a call into the JVM would leave that
    call's answer to the next one. Then the whole ends with KeyboardInterrupt.
    """
    jvm: Any = spark._jvm
    with catch_end_signals() as end:
        admin = open_admin(spark, kafka)

        def ask(question: Callable[[Any], Any]) -> Any:
            future = question(admin)
            while not future.isDone():
                if end.wait(0.05):
                    raise KeyboardInterrupt
            try:
                return future.get()
            except Py4JJavaError as error:
                raise _no_answer(kafka, error) from error

        try:
            yield ask
        finally:
            admin.close(jvm.java.time.Duration.ofSeconds(0))
        if end.is_set():  # it came with the last answer
            raise KeyboardInterrupt


def _no_answer(kafka: Kafka, error: Py4JJavaError) -> SetupError:
    cause = error.java_exception
    while cause.getCause() is not None:
        cause = cause.getCause()
    return _no_broker(kafka.bootstrap, cause.getMessage())


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
