"""What a topic must be like, where Kafka tells less than all: some services leave settings out of
their answers.
"""

from __future__ import annotations

import pytest

from twofold.errors import Refused, SetupError
from twofold.sink.topic_rules import ExistingTopic, RequiredTopic, TopicConfig, TopicPolicy, check, check_retention

TOLD = {"cleanup.policy": "delete", "min.insync.replicas": "2", "retention.ms": "-1", "retention.bytes": "-1"}


def found(without: str = "") -> ExistingTopic:
    return ExistingTopic(
        1, 3, TopicConfig("topic bank.commits", {name: TOLD[name] for name in TOLD if name != without})
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


def test_an_outbox_topic_may_have_any_partitions_and_is_not_compacted() -> None:
    wanted = RequiredTopic("bank.outbox.event.order", "events", 6)
    check(wanted, ExistingTopic(2, 3, TopicConfig("it", TOLD)), TopicPolicy())
    with pytest.raises(Refused, match=r"cleanup\.policy=compact, but must have delete"):
        check(wanted, ExistingTopic(6, 3, TopicConfig("it", {**TOLD, "cleanup.policy": "compact"})), TopicPolicy())
    with pytest.raises(Refused, match="has 2 partitions, but must have 1"):
        check(RequiredTopic("bank.commits", "commits"), ExistingTopic(2, 3, TopicConfig("it", TOLD)), TopicPolicy())
