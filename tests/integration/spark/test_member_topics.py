"""What a group's mirror reads of one member: only commit records that follow what it knows."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from helpers.spark.writer import Writer, table
from helpers.topic_changes import delete_records, delete_topic
from twofold_spark.errors import Refused
from twofold_spark.sources import group_topics, member_topics
from twofold_spark.sources.commit_topic import CommitTopic
from twofold_spark.sources.group_topics import GroupTopics
from twofold_spark.sources.kafka_client import Kafka, KafkaAdmin
from twofold_spark.sources.member_topics import UNKNOWN, MemberTopics
from twofold_spark.sources.registry import Registry

RECREATED = "the topics of this prefix were recreated"


@pytest.fixture
def writer(kafka: Any, registry: Any, prefix: str) -> Writer:
    writer = Writer(kafka.bootstrap, registry.url, prefix)
    writer.join_group()
    return writer


class Topics(MemberTopics):
    """Of a group of one."""

    def __init__(self, spark: SparkSession, writer: Writer) -> None:
        self.kafka = Kafka(writer.bootstrap)
        admin = KafkaAdmin(spark, self.kafka)
        super().__init__(admin, writer.prefix)
        self.group = GroupTopics(admin, Registry(writer.registry), {writer.prefix: self})


def commit(writer: Writer, many: int) -> None:
    for _ in range(many):
        with writer.commit():
            pass


def read(spark: SparkSession, writer: Writer, topics: Topics) -> int:
    """Return the last commit record that is known."""
    writer.visible()
    topics.group.read(spark)
    return topics.as_member({}).known


def recreate(writer: Writer) -> Writer:
    """Return who writes into the new topic, from number 1 on."""
    delete_topic(writer.bootstrap, f"{writer.prefix}.commits")
    return Writer(writer.bootstrap, writer.registry, writer.prefix)


@pytest.mark.core
@pytest.mark.parametrize("many", [0, 2, 3, 5], ids=["none", "fewer", "as many", "more"])
def test_recreated_topics_are_not_taken_for_the_old_ones(spark: SparkSession, writer: Writer, many: int) -> None:
    topics = Topics(spark, writer)
    commit(writer, 3)
    assert read(spark, writer, topics) == 3
    assert read(spark, writer, topics) == 3, "nothing is new"
    commit(writer, 1)
    assert read(spark, writer, topics) == 4
    topics.advance_to(3)
    writer = recreate(writer)
    commit(writer, many)
    with pytest.raises(Refused, match=RECREATED):
        read(spark, writer, topics)


def test_a_small_read_uses_the_consumers_of_the_one_before(spark: SparkSession, writer: Writer) -> None:
    """Only what is idle for seconds is closed: between some of these reads nothing is."""
    topics, uses = Topics(spark, writer), list[int]()
    for number in range(1, 6):
        commit(writer, 1)
        assert read(spark, writer, topics) == number
        uses += count_uses(spark, topics.kafka)
    assert max(uses, default=0) > 1


def count_uses(spark: SparkSession, kafka: Kafka) -> list[int]:
    """Return how often each of the consumers was used that Spark keeps for it."""
    found: Any = spark._jvm.java.lang.Class.forName("org.apache.spark.sql.kafka010.consumer.KafkaDataConsumer$")  # type: ignore[union-attr]
    of = found.getField("MODULE$").get(None)
    for name in ("consumerPool", "pool"):
        field = of.getClass().getDeclaredField(name)
        field.setAccessible(True)
        of = field.get(of)
    consumers = of.listAllObjects()
    return [each.getBorrowedCount() for key in consumers if kafka._name in key for each in consumers[key]]


def test_a_restart_does_not_take_them_for_the_old_ones_either(spark: SparkSession, writer: Writer) -> None:
    commit(writer, 3)
    writer.visible()
    topic = CommitTopic(Kafka(writer.bootstrap), Registry(writer.registry), writer.prefix)
    with closing(topic.read_after(spark, UNKNOWN)) as records:
        _, second, third = records

    def restart(sequence: int, offset: int) -> int:
        """Behind a commit record; the member's mirror has applied the third."""
        topics = Topics(spark, writer)
        topics.start_from(sequence, offset, third.identity)
        return read(spark, writer, topics)

    places = [(2, second.offset), (3, third.offset), (3, UNKNOWN)]
    assert [restart(*place) for place in places] == [3, 3, 3]
    writer = recreate(writer)
    for _ in range(5):
        for place in places:
            with pytest.raises(Refused, match=RECREATED):
                restart(*place)
        commit(writer, 1)


def test_what_retention_has_removed_is_no_recreated_topic(spark: SparkSession, writer: Writer) -> None:
    topics = Topics(spark, writer)
    commit(writer, 3)
    assert read(spark, writer, topics) == 3
    topics.advance_to(3)
    delete_records(writer.bootstrap, f"{writer.prefix}.commits", topics.offset + 1)
    assert read(spark, writer, topics) == 3
    commit(writer, 3)
    writer.visible()
    delete_records(writer.bootstrap, f"{writer.prefix}.commits", topics.offset + 3)
    with pytest.raises(Refused, match=r"commit record 4 of .* is missing: the next one that Kafka has is 5"):
        topics.group.read(spark)


def test_a_few_commit_records_are_held_as_they_are_read_again(
    spark: SparkSession, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = writer.table(table("t", {"id": "int8"}))
    for number in range(6):
        with writer.commit(kind="reload" if number == 3 else "batch") as tx:
            tx.upsert(name, {"id": number})
    topic = CommitTopic(Kafka(writer.bootstrap), Registry(writer.registry), writer.prefix)
    topics = Topics(spark, writer)
    assert read(spark, writer, topics) == 6
    with closing(topic.read_after(spark, UNKNOWN)) as records:
        whole = list(records)
    assert topics.find_records(6) == whole
    topics.advance_to(2)
    assert topics.find_records(4) == whole[2:4]
    monkeypatch.setattr(member_topics, "_HELD_RANGES", 3)
    few = Topics(spark, writer)
    assert read(spark, writer, few) == 6
    assert (few.find_records(3), few.find_records(4)) == (whole[:3], None)
    few.advance_to(6)
    with writer.commit() as tx:
        tx.upsert(name, {"id": 7})
    assert read(spark, writer, few) == 7
    assert [each.sequence for each in few.find_records(7) or ()] == [7]
    monkeypatch.setattr(group_topics, "_FEW_OFFSETS", 1)
    many = Topics(spark, writer)
    assert read(spark, writer, many) == 7
    assert many.find_records(1) is None


def test_a_newer_version_of_a_record_is_asked_for_and_what_has_none_is_refused(
    spark: SparkSession, writer: Writer
) -> None:
    topics = Topics(spark, writer)
    commit(writer, 1)
    assert read(spark, writer, topics) == 1
    writer.add_to_commits({"name": "more", "type": "int", "default": 0}, b"\0")
    commit(writer, 2)
    assert read(spark, writer, topics) == 3
    producer = Producer({"bootstrap.servers": writer.bootstrap})
    producer.produce(f"{writer.prefix}.frontiers", b"\\0\\0\\0\\0\\0no frontier")
    assert producer.flush(30) == 0
    with pytest.raises(Refused, match=r"offset 0 of .*\.frontiers cannot be decoded"):
        read(spark, writer, topics)


def test_the_members_are_found_while_somebody_deletes_the_topics_of_another_group(
    spark: SparkSession, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Writer(writer.bootstrap, writer.registry, f"{writer.prefix}_other")
    other.join_group()
    for each in (writer, other):
        each.write_frontier([each])
    listed = [f"{each.prefix}.frontiers" for each in (writer, other)]

    def list_and_delete(*_: object) -> list[str]:
        delete_topic(writer.bootstrap, listed[1])
        return listed

    monkeypatch.setattr(group_topics, "list_topics", list_and_delete)
    found = group_topics.find_members(spark, Kafka(writer.bootstrap), Registry(writer.registry), "group")
    assert found == (writer.prefix,)
