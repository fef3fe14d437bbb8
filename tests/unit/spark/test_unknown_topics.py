"""How long a topic that a broker does not know is looked for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from twofold_spark.changelog import changelog_job
from twofold_spark.changelog.changelog_job import Changelog
from twofold_spark.sources import kafka_reader
from twofold_spark.sources.kafka_client import TopicState
from twofold_spark.sources.kafka_reader import wait_for_topic

UNKNOWN = "org.apache.kafka.common.errors.UnknownTopicOrPartitionException: This server does not host it."


class Reading:
    """Fails with these, then reads."""

    def __init__(self, *errors: str) -> None:
        self._errors = list(errors)
        self.times = 0

    def __call__(self) -> str:
        self.times += 1
        if self._errors:
            raise RuntimeError(self._errors.pop(0))
        return "rows"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (kafka_reader, changelog_job):
        monkeypatch.setattr(module, "ASKED_AGAIN_S", 0.0)


def test_a_broker_that_is_behind_is_waited_for() -> None:
    assert wait_for_topic(Reading(UNKNOWN, UNKNOWN)) == "rows"


def test_a_topic_that_no_broker_knows_is_gone() -> None:
    reading = Reading(*[UNKNOWN] * 3)
    with pytest.raises(RuntimeError, match="UnknownTopic"):
        wait_for_topic(reading, within_s=0)
    assert reading.times == 1


def test_no_other_error_is_waited_for() -> None:
    reading = Reading("out of range", UNKNOWN)
    with pytest.raises(RuntimeError, match="out of range"):
        wait_for_topic(reading)
    assert reading.times == 1


@pytest.mark.parametrize("is_deleted", [False, True])
def test_the_changelog_asks_again_before_it_takes_a_topic_for_deleted(
    monkeypatch: pytest.MonkeyPatch, *, is_deleted: bool
) -> None:
    topic = TopicState("bank.public.t", "", {0: 1})
    known, behind = {topic.name: topic}, dict[str, TopicState]()
    answers = [behind, behind if is_deleted else known]
    monkeypatch.setattr(changelog_job, "TOPIC_WITHIN_S", 0.0 if is_deleted else 60.0)
    admin = SimpleNamespace(describe_topics=lambda _: answers.pop(0), close=lambda: None)
    monkeypatch.setattr(changelog_job, "KafkaAdmin", lambda *_: admin)
    job = Changelog(cast("Any", None), cast("Any", None), cast("Any", None), ("bank",))
    finder = SimpleNamespace(
        pattern="bank.*", list_gone=lambda found: {} if found else {"public.t": topic.name, "never.read": ""}
    )
    monkeypatch.setattr(job, "_tables", finder)
    job._reached["public.t"] = {}
    found = job._find_deleted(behind)
    job.close()
    assert found == (({"public.t": topic.name}, behind) if is_deleted else ({}, known))
