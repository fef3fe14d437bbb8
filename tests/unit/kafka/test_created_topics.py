"""Topics that were just created: how long a slow broker may take to show them, and what is asked of
it meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Uuid

from twofold.errors import Unreachable
from twofold.kafka import topics as module
from twofold.kafka.topic_rules import KnownTopic, RequiredTopic, TopicPolicy
from twofold.kafka.topics import Topics

NAMES = [f"bank.public.t{number:03}" for number in range(450)]
SETTINGS = {"cleanup.policy": "delete", "min.insync.replicas": "1", "retention.ms": "1000", "retention.bytes": "-1"}
TIMEOUT_S = 30.0


class Broker:
    """It creates ten topics a second, and takes half a second for an answer about all."""

    def __init__(self, makes: int) -> None:
        self.now, self.makes, self.asked = 0.0, makes, 0
        self.described: list[int] = []

    def metadata(self, _admin: Any, _timeout_s: float) -> Any:
        self.asked += 1
        self.now += 0.5
        topic = SimpleNamespace(partitions={0: SimpleNamespace(replicas=[1])})
        return SimpleNamespace(topics=dict.fromkeys(NAMES[: min(self.makes, int(10 * self.now))], topic))

    def create_topics(self, new: list[Any], **_: Any) -> Mapping[str, Any]:
        return {each.topic: SimpleNamespace(exception=lambda: None) for each in new}

    def describe_configs(self, asked: list[Any], **_: Any) -> Mapping[Any, Any]:
        self.described.append(len(asked))
        entries = {name: SimpleNamespace(value=value) for name, value in SETTINGS.items()}
        return dict.fromkeys(asked, SimpleNamespace(exception=lambda: None, result=lambda: entries))

    def describe_topics(self, asked: Any, **_: Any) -> Mapping[str, Any]:
        described = SimpleNamespace(topic_id=Uuid(0, 0))
        return dict.fromkeys(asked.topic_names, SimpleNamespace(exception=lambda: None, result=lambda: described))

    def sleep(self, s: float) -> None:
        self.now += s


def topics(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Topics:
    monkeypatch.setattr(module, "cluster_metadata", broker.metadata)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: broker.now, sleep=broker.sleep))
    client = {"bootstrap.servers": "x"}
    settings: Any = SimpleNamespace(client=client, call_timeout_s=TIMEOUT_S, open_admin=lambda: broker)
    return Topics(settings, TopicPolicy(1, 1))


WANTED = [RequiredTopic(name, "table") for name in NAMES]


def test_a_broker_may_take_its_time_for_many_topics_as_long_as_it_makes_some(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker(len(NAMES))
    assert topics(broker, monkeypatch).ensure(WANTED) == dict.fromkeys(NAMES, KnownTopic(1))
    assert broker.now > TIMEOUT_S
    assert broker.asked < 25, "most of the time it is left alone"
    assert broker.described == [5, 200, 200, 45], (
        "settings are asked for once, in portions: of what is there, and of what was made"
    )


def test_topics_that_are_not_shown_are_named_the_first_of_many(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker(400)
    with pytest.raises(Unreachable, match=r"created the topics bank\.public\.t400, \S+t401, \S+t402 and 47 more but"):
        topics(broker, monkeypatch).ensure(WANTED)
    assert 40 + TIMEOUT_S < broker.now < 50 + TIMEOUT_S
