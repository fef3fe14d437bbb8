"""What a topic must be like, where Kafka tells less than all: some services leave settings out of
their answers.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from twofold.errors import Refused, SetupError
from twofold.kafka.record_sizes import RECORD_BYTES, too_large
from twofold.kafka.topic_rules import (
    ExistingTopic,
    KnownTopic,
    RequiredTopic,
    TopicConfig,
    TopicPolicy,
    check,
    check_retention,
    split_for_creation,
)

TOLD = {
    "cleanup.policy": "delete",
    "max.message.bytes": "8388608",
    "min.insync.replicas": "2",
    "retention.ms": "-1",
    "retention.bytes": "-1",
}


def found(without: str = "") -> ExistingTopic:
    return ExistingTopic(
        KnownTopic(1), 3, TopicConfig("topic bank.commits", {name: TOLD[name] for name in TOLD if name != without})
    )


def look(topic: ExistingTopic) -> None:
    wanted = RequiredTopic("bank.commits", "commits")
    check(wanted, topic, TopicPolicy())
    check_retention({wanted.name: wanted}, {wanted.name: topic})


def test_a_topic_with_all_that_it_must_have_is_taken() -> None:
    look(found())


@pytest.mark.parametrize("setting", TOLD)
def test_a_setting_that_kafka_does_not_tell_is_named(setting: str) -> None:
    with pytest.raises(SetupError, match=f"Kafka does not report {setting} of topic bank.commits"):
        look(found(without=setting))


def test_a_pinned_topic_is_known_by_its_id() -> None:
    """Where the brokers tell it, and the pin has it."""
    wanted = RequiredTopic("bank.public.t", "table", 2, pinned=True, id="one", table="public.t")
    for theirs, ours in (("one", "one"), (None, "one"), ("another", None)):
        topic = ExistingTopic(KnownTopic(2, theirs), 3, TopicConfig("it", TOLD))
        check(replace(wanted, id=ours), topic, TopicPolicy())
    with pytest.raises(Refused, match=r"bank\.public\.t was deleted and made again") as refused:
        check(wanted, ExistingTopic(KnownTopic(2, "another"), 3, TopicConfig("it", TOLD)), TopicPolicy())
    assert refused.value.repair == "twofold backfill start public.t"


def test_an_outbox_topic_may_have_any_partitions_and_is_not_compacted() -> None:
    wanted = RequiredTopic("bank.outbox.event.order", "events", 6)
    check(wanted, ExistingTopic(KnownTopic(2), 3, TopicConfig("it", TOLD)), TopicPolicy())
    with pytest.raises(Refused, match=r"cleanup\.policy=compact, but must have delete"):
        check(
            wanted,
            ExistingTopic(KnownTopic(6), 3, TopicConfig("it", {**TOLD, "cleanup.policy": "compact"})),
            TopicPolicy(),
        )
    with pytest.raises(Refused, match="has 2 partitions, but must have 1"):
        check(
            RequiredTopic("bank.commits", "commits"),
            ExistingTopic(KnownTopic(2), 3, TopicConfig("it", TOLD)),
            TopicPolicy(),
        )


def test_topics_are_made_in_requests_that_kafka_accepts_each_once() -> None:
    """Kafka's controller makes at most 10,000 records of a request: 833 topics of 6 partitions."""
    wide = [RequiredTopic(f"bank.wide.{n}", "table", 5_000) for n in range(2)]
    missing = [*(RequiredTopic(f"bank.public.{n}", "table", 6) for n in range(3_000)), *wide]
    batches = list(split_for_creation(missing))
    assert [topic for few in batches for topic in few] == missing
    for few in batches:
        records = sum(1 + len(TopicPolicy().config("table")) + topic.partitions for topic in few)
        assert records < 10_000
    assert len(batches) < 20


def test_a_small_bound_of_the_commit_records_topic_is_refused_with_the_command() -> None:
    topic = ExistingTopic(KnownTopic(1), 3, TopicConfig("it", {**TOLD, "max.message.bytes": "1048588"}))
    with pytest.raises(SetupError, match=r"--topic bank\.commits --add-config max\.message\.bytes=8388608"):
        look(topic)


@pytest.mark.parametrize(
    ("size", "needed", "brokers", "memory"),
    [(1_100_000, 3 << 20, False, None), (100_000_000, 97 << 20, False, 572), (200_000_000, 192 << 20, True, 1144)],
)
def test_a_row_that_is_too_large_is_refused_with_every_limit(
    size: int, needed: int, *, brokers: bool, memory: int | None
) -> None:
    refusal = too_large("bank.public.a", 3, size, "kafka:9092")
    assert f"has {size} bytes" in refusal.what
    is_above_the_clients_own = needed > RECORD_BYTES
    assert (f'"message.max.bytes" = {needed} in [kafka.options]' in refusal.repair) == is_above_the_clients_own
    assert refusal.repair.startswith("all of these, then twofold run: ") == is_above_the_clients_own
    assert refusal.repair.endswith("; then twofold run") == (not is_above_the_clients_own)
    assert (
        f"--bootstrap-server kafka:9092 --alter --topic bank.public.a --add-config max.message.bytes={needed}"
        in refusal.repair
    )
    assert ("socket.request.max.bytes" in refusal.repair) == brokers
    assert (f"have {memory} MiB of memory" in refusal.repair) == ("MiB" in refusal.repair) == (memory is not None)


def test_a_row_above_what_any_client_sends_has_another_repair() -> None:
    refusal = too_large("bank.public.a", 3, 1_000_000_000, "kafka:9092")
    assert "kafka-configs" not in refusal.repair
    assert "policy.columns" in refusal.repair
