"""The question for a last stable offset, where the partition's leader is away."""

from __future__ import annotations

from contextlib import closing
from typing import Any, NoReturn

import pytest
from confluent_kafka import KafkaError, KafkaException

from twofold.errors import RunEnded, Unreachable
from twofold.kafka.client import KafkaSettings
from twofold.kafka.open_check import OpenCheck
from twofold.kafka.watch import Watch


class NoAnswer:
    """A client whose question ends with an error of librdkafka."""

    def __init__(self, code: int) -> None:
        self.code, self.asked = code, 0

    def get_watermark_offsets(self, *_: Any) -> NoReturn:
        self.asked += 1
        raise KafkaException(KafkaError(self.code))


def ask(client: NoAnswer) -> None:
    with closing(Watch()) as watch:
        check = OpenCheck(KafkaSettings({"bootstrap.servers": "127.0.0.1:1"}, call_timeout_s=0.1), watch)
        check.close()
        check._consumer = client  # type: ignore[assignment]
        check.stable_offset("bank.public.accounts", 0)


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
