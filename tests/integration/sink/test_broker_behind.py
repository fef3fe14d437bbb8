"""A broker that stood still answers, for a moment, with what it knew before.

Nothing is concluded from what it does not show.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from fixtures.connector import frozen, wait_until
from twofold.errors import Unreachable
from twofold.kafka.client import TOPIC_ALREADY_EXISTS, KafkaSettings, kafka_error_of
from twofold.kafka.metadata import existing_topics
from twofold.kafka.topic_rules import RequiredTopic, TopicPolicy
from twofold.kafka.topics import Topics
from twofold.stack import KafkaCluster

CLIENTS = 8


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_topic_that_a_broker_has_not_heard_of_is_not_gone(own_kafka: Callable[..., KafkaCluster]) -> None:
    """Asked as often as it takes until one was behind: a quick machine's broker has mostly caught
    up before it answers.
    """
    kafka = own_kafka(brokers=3)
    behind, others = kafka.nodes[2], kafka.nodes[:2]
    bootstrap = ",".join(node.address for node in others)
    settings = KafkaSettings({"bootstrap.servers": behind.address}, call_timeout_s=60)
    deadline, hidden, attempt = time.monotonic() + 480, 0, 0
    while not hidden and time.monotonic() < deadline:
        attempt += 1
        name = f"bank{attempt}.public.account"
        clients = [Topics(settings, TopicPolicy(2, 2)) for _ in range(CLIENTS)]
        with ThreadPoolExecutor(CLIENTS) as pool:
            with frozen(behind.pid):
                wait_until(partial(is_made, bootstrap, name))
                asked = [pool.submit(concluded, client, name) for client in clients]
            hidden += sum(answer.result() for answer in asked)
    assert hidden, f"in {attempt} attempts no broker was behind: the test has seen nothing"


def is_made(bootstrap: str, name: str) -> bool:
    """The request may have gone to the broker that stands still; a new client asks another one."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    topic = NewTopic(name, 1, 2, config=TopicPolicy(2, 2).config("table"))
    error = admin.create_topics([topic], request_timeout=2)[name].exception()
    found = kafka_error_of(error)
    return error is None or (found is not None and found.code() == TOPIC_ALREADY_EXISTS)


def concluded(topics: Topics, name: str) -> int:
    """How often the topic was not shown, until it was."""
    hidden = 0
    while True:
        try:
            missing, made = topics.missing([name]), topics.ensure([RequiredTopic(name, "table", 1, pinned=True)])
        except Unreachable as error:
            # The broker that was fenced may also not answer at all: nothing is concluded of that
            # either.
            hidden += "does not show them" in str(error)
        else:
            assert (missing, made[name].partitions) == (set(), 1)
            return hidden


def test_the_controller_says_which_topics_exist(kafka: Any, prefix: str) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    here, gone, alike = f"{prefix}.public.a_b", f"{prefix}.public.b", f"{prefix}.public_a.b"
    admin.create_topics([NewTopic(here, 1)])[here].result(20)
    assert existing_topics(admin, [here, gone, alike], 20) == {here}
    assert existing_topics(admin, [], 20) == set()
    assert not {gone, alike} & admin.list_topics(timeout=20).topics.keys(), "nothing was made"
