"""A group's frontiers are taken in their order, also by a reader that begins once more."""

from __future__ import annotations

import json
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError

from twofold_avro.records import BranchInDoubt, Frontier
from twofold_avro.schemas import fixed
from twofold_common.errors import SetupError
from twofold_common.global_loads import Decisions
from twofold_reader import frontiers
from twofold_reader.frontiers import FrontierTopics


@dataclass(frozen=True)
class Message:
    sequence: int
    in_doubt: tuple[str, ...]

    def topic(self) -> str:
        return "east.frontiers"

    def error(self) -> None:
        return None

    def value(self) -> bytes:
        branches = tuple(BranchInDoubt(each, each, 1) for each in self.in_doubt)
        return Frontier("bank", self.sequence, 0, (), branches, 0).to_bytes(1)


class OneByOne:
    """A consumer that brings the frontiers one after the other."""

    def __init__(self, _settings: Any) -> None:
        self._left: list[Message] = []

    def assign(self, _: object) -> None:
        self._left = [Message(1, ()), Message(2, ("half",)), Message(3, ("half",))]

    def consume(self, _count: int, _wait_s: float) -> list[Message]:
        return [self._left.pop(0)] if self._left else []


def test_a_second_beginning_does_not_go_on_from_the_last_frontier(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind it an earlier one came, which has nothing in doubt: a load or a start at newest took
    the branch that is in doubt for decided, and showed half of its global transaction.
    """
    monkeypatch.setattr(frontiers, "Consumer", OneByOne)
    found = FrontierTopics(["east"], {"bootstrap.servers": "x"}, lambda _: json.dumps(fixed("frontier")))
    for _ in range(2):
        decisions = Decisions("east", {"east": 2})
        found.begin()
        decisions.follow(found.last.get("east"))  # as a reader does whose commit records come first
        while found.read_more(0):
            decisions.follow(found.last["east"])
        assert (decisions.in_doubt, decisions.least) == ({"half"}, None)


class MadeAgain(OneByOne):
    """A consumer whose topic has no such offset any more."""

    def consume(self, _count: int, _wait_s: float) -> list[Any]:
        error = KafkaError(KafkaError._AUTO_OFFSET_RESET, "fetch failed due to requested offset not available")
        return [SimpleNamespace(topic=lambda: "east.frontiers", error=lambda: error, value=lambda: None)]


def test_a_topic_that_was_made_again_ends_the_reading_with_what_happened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frontiers, "Consumer", MadeAgain)
    found = FrontierTopics(["east"], {"bootstrap.servers": "x"}, lambda _: json.dumps(fixed("frontier")))
    found.begin()
    with pytest.raises(SetupError, match=r"east\.frontiers was deleted and made again .*start the reader again"):
        found.read_more(0)
