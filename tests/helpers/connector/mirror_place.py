"""Writes to Kafka how far a mirror is, as a mirror does."""

from __future__ import annotations

from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from fixtures.connector import Installation, wait_until


def write_place(here: Installation, text: str, *, offset: int = 5) -> None:
    """Store the text beside the offset in the mirror's consumer group."""
    place = TopicPartition(f"{here.prefix}.commits", 0, offset, text)
    asked = ConsumerGroupTopicPartitions(f"{here.prefix}.mirror", [place])
    admin = AdminClient({"bootstrap.servers": here.reader.bootstrap})

    def is_written() -> bool:
        (answer,) = admin.alter_consumer_group_offsets([asked]).values()
        return all(each.error is None for each in answer.result(20).topic_partitions)

    wait_until(is_written, 30, "the group's coordinator takes it")
