"""Reads the last frontier of each member of a source group, for people."""

from __future__ import annotations

from collections.abc import Iterable

from twofold.kafka.client import KafkaSettings
from twofold.kafka.decoding import Decoder
from twofold.kafka.schema_registry import Registry
from twofold.kafka.topic_reader import TopicReader
from twofold_avro.names import TopicNames
from twofold_avro.records import Frontier


def last_frontiers(settings: KafkaSettings, registry: Registry, prefixes: Iterable[str]) -> dict[str, Frontier]:
    """Return the last frontier by prefix; a member without one is left out."""
    reader, decoder = TopicReader(settings), Decoder(registry)
    prefix_of = {TopicNames(prefix).frontiers: prefix for prefix in prefixes}
    topics = reader.partitions_of(prefix_of)
    last = {each.topic() or "": each for each in reader.read(reader.visible(topics)) if each.value() is not None}
    return {prefix_of[topic]: decoder.decode_message(Frontier, each) for topic, each in last.items()}
