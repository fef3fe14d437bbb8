"""Bookkeeping that changes between the look at its bounds and the read: else a state would be
believed from which records are missing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from integration.sink.sink_ground import Ground, eventually
from twofold.errors import Unreachable
from twofold.group.ledgers import Ledgers
from twofold.group.member_commits import last_frontiers
from twofold.kafka.progress import ProgressReader
from twofold.kafka.schema_registry import register_fixed
from twofold.kafka.topic_reader import Bounds, PartitionId, TopicReader
from twofold_avro.records import Frontier

Change = Callable[[AdminClient, str], None]


def delete_the_first_record(admin: AdminClient, topic: str) -> None:
    place = TopicPartition(topic, 0, 1)
    admin.delete_records([place])[place].result(20)


def create_again(admin: AdminClient, topic: str) -> None:
    def is_deleted() -> bool:
        with suppress(KafkaException):  # there is none
            admin.delete_topics([topic], operation_timeout=20)[topic].result(20)
        return topic not in admin.list_topics(timeout=20).topics

    def is_created() -> bool:
        with suppress(KafkaException):  # the former one is still being deleted
            admin.create_topics([NewTopic(topic, 1, 1)], operation_timeout=20)[topic].result(20)
        return topic in admin.list_topics(timeout=20).topics

    eventually(is_deleted)
    eventually(is_created)


NOTICED: dict[Change, str] = {
    delete_the_first_record: r"reading {} \[0\] at offset .* failed: .* records are gone that were there a moment ago",
    create_again: r"Kafka has lost records of {} \[0\]: it ended at offset 2 when this read began, and ends at 0 now",
}


def read_progress(ground: Ground) -> Any:
    return ProgressReader(TopicReader(ground.settings), ground.names, ground.registry).read()


def read_frontiers(ground: Ground) -> Any:
    return last_frontiers(ground.settings, ground.registry, [ground.names.prefix])


def read_ledgers(ground: Ground) -> Any:
    """For people: what was not read is named, and the rest is shown."""
    found = Ledgers(ground.settings, ground.registry, [ground.names.prefix], ()).branches([], 0)
    for each in found.unread:
        raise Unreachable(each)


READS: dict[str, Callable[[Ground], Any]] = {
    "progress": read_progress,
    "frontiers": read_frontiers,
    "prepared": read_ledgers,
}


@pytest.mark.parametrize("change", NOTICED, ids=lambda change: change.__name__)
@pytest.mark.parametrize("topic", READS)
def test_lost_bookkeeping_is_noticed(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, topic: str, change: Change
) -> None:
    admin = AdminClient({"bootstrap.servers": ground.bootstrap})
    ground.options["call_timeout_s"] = 5  # a busy broker creates a topic within it
    name = f"{ground.names.prefix}.{topic}"
    create_again(admin, name)
    fill(ground, name)
    look, looks = TopicReader.bounds, iter([change])

    def then_change(self: TopicReader, places: Iterable[PartitionId]) -> dict[PartitionId, Bounds]:
        found = look(self, places)
        if any(place.topic == name for place in found) and (do := next(looks, None)):
            do(admin, name)
        return found

    monkeypatch.setattr(TopicReader, "bounds", then_change)
    with pytest.raises(Unreachable, match=NOTICED[change].format(re.escape(name))):
        READS[topic](ground)
    READS[topic](ground)  # the next read looks again


def fill(ground: Ground, topic: str) -> None:
    """Two records, as of another version of that kind."""
    schema_id = register_fixed(ground.registry, ground.names, in_group=True).frontier
    frontier = Frontier("group", 1, 1, (), (), 0).to_bytes(schema_id or 0)
    producer = Producer({"bootstrap.servers": ground.bootstrap})
    for number in range(2):
        value = frontier if topic.endswith("frontiers") else b"start"
        producer.produce(topic, value, f"{ground.names.name}/backfill/{number}/load", 0)
    assert producer.flush(20) == 0
