"""What a person, or retention, does to topics."""

from __future__ import annotations

from confluent_kafka import TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from fixtures.connector import wait_until


def delete_topic(bootstrap: str, *topics: str) -> None:
    """Delete topics, and wait until nobody sees them."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for deleted in admin.delete_topics([*topics], operation_timeout=30).values():
        deleted.result(30)
    wait_until(lambda: not {*topics} & admin.list_topics(timeout=20).topics.keys(), 60, f"{topics} are gone")


def delete_records(bootstrap: str, topic: str, before: int = -1, *, partition: int | None = None) -> None:
    """Delete the records before the offset, as retention does; all records without one. In each
    partition, or in one.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap})
    partitions = admin.list_topics(topic, timeout=20).topics[topic].partitions if partition is None else [partition]
    for deleted in admin.delete_records([TopicPartition(topic, each, before) for each in partitions]).values():
        deleted.result(30)


def alter_topic(bootstrap: str, topic: str, setting: str, value: str) -> None:
    entry = ConfigEntry(setting, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": bootstrap})  # its end would end what it was asked for
    admin.incremental_alter_configs([resource])[resource].result(20)
