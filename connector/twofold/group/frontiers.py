"""Reads the last frontier of each member of a source group, for people."""

from __future__ import annotations

from collections.abc import Iterable

from twofold.kafka.client import KafkaSettings
from twofold.kafka.decoding import Decoder
from twofold.kafka.schema_registry import Registry
from twofold.kafka.topic_reader import TopicReader
from twofold_avro.records import Frontier

_FRONTIERS = ".frontiers"


def last_frontiers(settings: KafkaSettings, registry: Registry, prefixes: Iterable[str]) -> dict[str, Frontier]:
    """Return the last frontier by prefix; a member without one is left out."""
    reader, decoder = TopicReader(settings), Decoder(registry)
    topics = reader.partitions_of({prefix + _FRONTIERS for prefix in prefixes})
    last = {each.topic() or "": each for each in reader.read(reader.visible(topics)) if each.value() is not None}
    return {topic.removesuffix(_FRONTIERS): decoder.decode_message(Frontier, each) for topic, each in last.items()}
