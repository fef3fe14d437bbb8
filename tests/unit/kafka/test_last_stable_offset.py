"""The question for a last stable offset, and the answers that are none."""

from __future__ import annotations

import logging
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException

from twofold.errors import RunEnded, TwofoldError, Unreachable
from twofold.kafka.client import KafkaSettings
from twofold.kafka.open_check import OpenCheck
from twofold.kafka.watch import Watch


class NoAnswer:
    """A client whose question ends with an error of librdkafka."""

    def __init__(self, code: int) -> None:
        self.code, self.asked = code, 0

    def offsets_for_times(self, *_: Any) -> NoReturn:
        self.asked += 1
        raise KafkaException(KafkaError(self.code))


SETTINGS = KafkaSettings({"bootstrap.servers": "127.0.0.1:1"}, call_timeout_s=0.1)


def ask(client: Any, settings: KafkaSettings = SETTINGS) -> int:
    with closing(Watch()) as watch:
        check = OpenCheck(settings, watch)
        check.close()
        check._consumer = client
        return check.stable_offset("bank.public.accounts", 0)


def test_a_lost_connection_is_asked_again_and_is_no_unknown_partition() -> None:
    client = NoAnswer(KafkaError._UNKNOWN_PARTITION)
    with pytest.raises(Unreachable, match=r"the partition's leader does not answer.*check that the brokers") as raised:
        ask(client)
    assert "nknown partition" not in str(raised.value)
    assert client.asked > 1


def test_a_deleted_topic_is_said_at_once() -> None:
    client = NoAnswer(KafkaError.UNKNOWN_TOPIC_OR_PART)
    with pytest.raises(RunEnded, match="UNKNOWN_TOPIC_OR_PART"):
        ask(client)
    assert client.asked == 1


@pytest.mark.parametrize("code", [KafkaError.FENCED_LEADER_EPOCH, KafkaError.UNKNOWN_LEADER_EPOCH])
def test_a_leader_that_has_just_changed_is_asked_again(code: int) -> None:
    client = NoAnswer(code)
    with pytest.raises(RunEnded):
        ask(client)
    assert client.asked > 1


@pytest.mark.parametrize(
    "answer",
    [
        SimpleNamespace(offset=OFFSET_END, error=None),
        SimpleNamespace(offset=7, error=KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)),
    ],
)
def test_an_answer_without_an_offset_is_no_answer(answer: Any) -> None:
    """A negative offset would lie before every transaction, so every one would pass for open."""
    with pytest.raises(TwofoldError):
        ask(SimpleNamespace(offsets_for_times=lambda *_: [answer]))


def test_a_question_is_one_request_for_the_end_of_what_is_committed(caplog: pytest.LogCaptureFixture) -> None:
    """Each Kafka transaction asks up to two questions. librdkafka's own broker answers this one."""
    caplog.set_level(logging.DEBUG, "asked")
    mock: dict[str, Any] = {"test.mock.num.brokers": 1, "allow.auto.create.topics": True}
    mock |= {"debug": "protocol", "logger": logging.getLogger("asked")}
    client = Consumer({**SETTINGS.consumer(), **mock})
    try:
        client.list_topics("bank.public.accounts", 10)
        assert ask(client, replace(SETTINGS, call_timeout_s=10)) == 0
        client.poll(0.1)
    finally:
        client.close()
    assert len([line for line in caplog.messages if "Sent ListOffsetsRequest" in line]) == 1
    assert SETTINGS.consumer()["isolation.level"] == "read_committed"
