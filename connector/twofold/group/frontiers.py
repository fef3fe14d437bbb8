"""Reads the last frontier of each member of a source group, for people."""

from __future__ import annotations

import time
from collections.abc import Iterable

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from twofold.errors import Unreachable
from twofold.kafka.client import PARTITION_EOF, UNKNOWN_TOPIC, KafkaSettings, sort_error, sorted_errors
from twofold.kafka.decoding import Decoder, RecordPlace, place_of
from twofold.kafka.schema_registry import Registry
from twofold_avro.records import Frontier

_FRONTIERS = ".frontiers"


def last_frontiers(settings: KafkaSettings, registry: Registry, prefixes: Iterable[str]) -> dict[str, Frontier]:
    """Return the last frontier by prefix; a member without one is left out."""
    decode = Decoder(registry).decode
    last: dict[str, tuple[bytes, RecordPlace]] = {}
    unread = {prefix + _FRONTIERS for prefix in prefixes}
    with sorted_errors("reading the frontiers of the group's members"):
        consumer = settings.secrets.open(Consumer, settings.consumer())
        try:
            consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING) for topic in unread])
            deadline = time.monotonic() + settings.call_timeout_s
            while unread:
                for message in consumer.consume(1000, 0.05):
                    deadline = time.monotonic() + settings.call_timeout_s
                    topic, error, value = message.topic() or "", message.error(), message.value()
                    if error is None:
                        if value is not None:
                            last[topic.removesuffix(_FRONTIERS)] = value, place_of(message)
                    elif error.code() in {PARTITION_EOF, UNKNOWN_TOPIC}:
                        unread.discard(topic)
                    else:
                        raise sort_error(error, f"reading {topic}")
                if time.monotonic() > deadline:
                    raise Unreachable(
                        f"Kafka delivered nothing of {', '.join(sorted(unread))} for {settings.call_timeout_s:.0f} s"
                    )
        finally:
            consumer.close()
    return {prefix: decode(Frontier, *found) for prefix, found in last.items()}
