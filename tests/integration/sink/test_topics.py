"""Topics: made as configured, checked and never changed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    ResourceType,
)
from confluent_kafka.cimpl import NewTopic

from fixtures.connector import wait_until
from twofold.errors import Refused, SetupError, UsageError
from twofold.kafka.client import KafkaSettings
from twofold.kafka.topic_rules import KnownTopic, RequiredTopic, TopicPolicy
from twofold.kafka.topics import Topics

pytestmark = pytest.mark.core


@pytest.fixture
def admin(kafka: Any) -> AdminClient:
    return AdminClient({"bootstrap.servers": kafka.bootstrap})


@pytest.fixture
def settings(kafka: Any) -> KafkaSettings:
    return KafkaSettings({"bootstrap.servers": kafka.bootstrap}, call_timeout_s=10)


@pytest.fixture
def topics(settings: KafkaSettings) -> Topics:
    return Topics(settings, TopicPolicy(1, 1))


@pytest.fixture
def table(prefix: str) -> str:
    return f"{prefix}.public.a"


def make(admin: AdminClient, name: str, partitions: int = 3, **config: str) -> None:
    settings = {"max_message_bytes": "8388608", **config}
    topic = NewTopic(name, partitions, 1, config={key.replace("_", "."): value for key, value in settings.items()})
    admin.create_topics([topic])[name].result(20)
    # The controller has answered; the broker may show the topic a moment later.
    wait_until(lambda: name in admin.list_topics(timeout=20).topics)


def config_of(admin: AdminClient, name: str) -> dict[str, str]:
    resource = ConfigResource(ResourceType.TOPIC, name)
    return {key: entry.value for key, entry in admin.describe_configs([resource])[resource].result(20).items()}


def partitions(found: Mapping[str, KnownTopic]) -> dict[str, int]:
    return {name: known.partitions for name, known in found.items()}


def test_what_is_missing_is_made_as_configured(topics: Topics, admin: AdminClient, prefix: str, table: str) -> None:
    names = {kind: f"{prefix}.{kind}" for kind in ("commits", "progress", "prepared", "messages")}
    wanted = [RequiredTopic(name, kind) for kind, name in names.items()] + [RequiredTopic(table, "table", 5)]  # type: ignore[arg-type]
    assert partitions(topics.ensure(wanted)) == {**dict.fromkeys(names.values(), 1), table: 5}
    assert config_of(admin, names["progress"])["cleanup.policy"] == "compact"
    assert config_of(admin, names["prepared"])["cleanup.policy"] == "compact"
    kept = {name: int(config_of(admin, name)["retention.ms"]) for name in (table, names["commits"])}
    assert kept[names["commits"]] > kept[table] > 0
    assert int(config_of(admin, table)["index.interval.bytes"]) > 4096, "Kafka's default costs the broker most"
    assert topics.ensure(wanted) == topics.ensure(wanted), "and found again"


def test_an_existing_table_keeps_its_partitions(topics: Topics, admin: AdminClient, table: str) -> None:
    make(admin, table, 7)
    assert partitions(topics.ensure([RequiredTopic(table, "table", 3)])) == {table: 7}


def test_a_compacted_topic_is_refused_for_a_table_and_left_as_it_is(
    topics: Topics, admin: AdminClient, table: str
) -> None:
    make(admin, table, cleanup_policy="compact")
    with pytest.raises(
        Refused,
        match=re.escape(
            f"kafka-configs --bootstrap-server ... --alter --topic {table} --add-config cleanup.policy=delete"
        ),
    ):
        topics.ensure([RequiredTopic(table, "table", 3, table="public.a")])
    assert config_of(admin, table)["cleanup.policy"] == "compact"


@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
def test_a_progress_topic_that_forgets_is_refused(topics: Topics, admin: AdminClient, prefix: str, policy: str) -> None:
    make(admin, f"{prefix}.progress", 1, cleanup_policy=policy)
    with pytest.raises(Refused, match=r"cleanup\.policy=compact"):
        topics.ensure([RequiredTopic(f"{prefix}.progress", "progress")])


def test_another_number_of_partitions_than_pinned_is_refused(topics: Topics, admin: AdminClient, table: str) -> None:
    make(admin, table, 3)
    assert partitions(topics.ensure([RequiredTopic(table, "table", 3, pinned=True)])) == {table: 3}
    with pytest.raises(
        Refused, match=r"has 3 partitions, but must have 6 as before[\s\S]*twofold backfill start public\.a"
    ):
        topics.ensure([RequiredTopic(table, "table", 6, pinned=True, table="public.a")])


def test_the_bookkeeping_has_one_partition(topics: Topics, admin: AdminClient, table: str) -> None:
    make(admin, table, 2)
    with pytest.raises(Refused, match="must have 1"):
        topics.ensure([RequiredTopic(table, "commits")])


def test_what_is_not_as_it_was_can_be_asked(topics: Topics, admin: AdminClient, table: str) -> None:
    """Of tables that are published no more: one whose topic is gone, one with more partitions, one
    as it was.
    """
    make(admin, table, 2)
    make(admin, f"{table}2", 2)
    wanted = [RequiredTopic(f"{table}{n}", "table", p, pinned=True) for n, p in (("", 1), ("2", 2), ("3", 1))]
    [(name, refusal)] = topics.mismatched(wanted)
    assert name == table
    assert "has 2 partitions, but must have 1 as before" in refusal.what


@pytest.mark.parametrize("kind", ["table", "progress"])
def test_a_topic_that_was_in_use_and_is_gone_is_refused_and_not_made_again(
    topics: Topics, admin: AdminClient, table: str, kind: Any
) -> None:
    with pytest.raises(Refused, match=r"is gone[\s\S]*twofold (backfill start|reset)"):
        topics.ensure(
            [RequiredTopic(table, kind, 3, pinned=True, table="public.a"), RequiredTopic(f"{table}2", "table", 3)]
        )
    assert not {table, f"{table}2"} & set(admin.list_topics(timeout=10).topics)


@pytest.mark.parametrize(
    ("config", "repair"),
    [
        ({"retention_ms": "1000"}, r"retention\.ms=-1"),
        ({"retention_ms": "-1", "retention_bytes": "1000"}, r"retention\.bytes=-1"),
    ],
)
def test_commit_records_must_outlive_the_rows(
    topics: Topics, admin: AdminClient, prefix: str, table: str, config: dict[str, str], repair: str
) -> None:
    make(admin, f"{prefix}.commits", 1, **config)
    with pytest.raises(Refused, match=repair):
        topics.ensure([RequiredTopic(f"{prefix}.commits", "commits"), RequiredTopic(table, "table", 3)])


def test_fewer_in_sync_replicas_than_asked_for_are_told(topics: Topics, settings: KafkaSettings, table: str) -> None:
    topics.ensure([RequiredTopic(table, "table", 3)])
    with pytest.raises(SetupError, match=r"min\.insync\.replicas"):
        Topics(settings, TopicPolicy(2, 2)).ensure([RequiredTopic(table, "table", 3)])


def test_a_replication_that_the_cluster_cannot_give_is_told(settings: KafkaSettings, table: str) -> None:
    with pytest.raises(SetupError, match=r"kafka\.replication"):
        Topics(settings, TopicPolicy(77, 1)).ensure([RequiredTopic(table, "table", 3)])
    with pytest.raises(UsageError, match="nothing could be written"):
        TopicPolicy(1, 2)


def test_the_brokers_limit_for_transactions_is_known(topics: Topics, admin: AdminClient) -> None:
    assert topics.broker_limits().transaction_timeout_s > 1


def test_settings_that_librdkafka_does_not_know_are_told(kafka: Any) -> None:
    with pytest.raises(UsageError, match=r"no\.such\.setting"):
        Topics(KafkaSettings({"bootstrap.servers": kafka.bootstrap, "no.such.setting": 1}), TopicPolicy(1, 1))


def test_names_that_kafka_takes_for_the_same_are_told_with_a_remedy(topics: Topics, prefix: str) -> None:
    topics.ensure([RequiredTopic(f"{prefix}.a_b.c", "table")])
    with pytest.raises(SetupError, match=re.escape(f"{prefix}.a.b_c")) as told:
        topics.ensure([RequiredTopic(f"{prefix}.a.b_c", "table")])
    assert "rename one of the two tables" in str(told.value)
    assert topics.missing([f"{prefix}.a_b.c", f"{prefix}.a.b_c"]) == {f"{prefix}.a.b_c"}


def test_a_topic_that_is_listed_and_not_known_is_looked_for_again(
    topics: Topics, admin: AdminClient, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several brokers one knows of a topic a moment before another; so it does when one is
    deleted.
    """
    make(admin, table)
    lists = topics._admin.list_topics

    def listed_once_more(*arguments: Any, **named: Any) -> Any:
        listed = lists(*arguments, **named)
        monkeypatch.undo()
        admin.delete_topics([table])[table].result(20)
        wait_until(lambda: table not in admin.list_topics(timeout=20).topics)
        return listed

    monkeypatch.setattr(topics._admin, "list_topics", listed_once_more)
    assert partitions(topics.ensure([RequiredTopic(table, "table", 5)])) == {table: 5}, "made as configured"
