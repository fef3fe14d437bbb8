"""What the changelog's tests share: rows written and read, SQL on the changelog's table, and what
befalls topics."""

from __future__ import annotations

from typing import Any

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from fixtures.connector import wait_until
from fixtures.spark import Lake
from helpers.topic_changes import delete_records, delete_topic


def log(lake: Lake, name: str) -> list[tuple[str, int | None, str | None]]:
    rows = lake.spark.table(f"{lake.catalog}.public_changelog.{name}").orderBy("lsn", "op").collect()
    return [
        (row["op"], (row["after"] or row["before"] or {"id": None})["id"], row["after"]["v"] if row["after"] else None)
        for row in rows
    ]


def ids(lake: Lake, name: str) -> list[int | None]:
    return [i for _, i, _ in log(lake, name)]


def sql(lake: Lake, statement: str) -> list[Any]:
    return lake.spark.sql(statement.format(table=f"{lake.catalog}.public_changelog.events", c=lake.catalog)).collect()


def written(lake: Lake, name: str, *ids: int, value: str = "v") -> None:
    with lake.writer.commit() as tx:
        for i in ids:
            tx.upsert(name, {"id": i, "v": value}, op="c")


def lose(lake: Lake, name: str, *, before: int, partition: int = 0) -> None:
    """As retention does."""
    lake.writer.visible()
    delete_records(lake.writer.bootstrap, lake.writer.topics[name].name, before, partition=partition)


def delete(lake: Lake, name: str) -> None:
    delete_topic(lake.writer.bootstrap, lake.writer.topics[name].name)


def recreate_topic(lake: Lake, name: str) -> None:
    delete(lake, name)
    admin, topic = AdminClient({"bootstrap.servers": lake.writer.bootstrap}), lake.writer.topics[name]
    for future in admin.create_topics([NewTopic(topic.name, topic.partitions, 1)]).values():
        future.result(30)

    def is_there() -> bool:
        there = admin.list_topics(timeout=30).topics.get(topic.name)
        return there is not None and len(there.partitions) == topic.partitions

    wait_until(is_there, what=topic.name)
