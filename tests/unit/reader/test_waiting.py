"""What a waiter makes of the ends of the progress topic: of which stream the numbers are, and
whether the connector has refused to go on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from twofold_avro.records import Progress
from twofold_avro.schemas import fixed
from twofold_common.errors import Refused, Unreachable
from twofold_common.positions import Lsn
from twofold_reader.waiting import Heard, PositionWaiter

KEY = b"bank"
REFUSAL = {"exit_status": 5, "what": "the server is on timeline 2", "at_stake": "-", "repair": "start over"}


def progress(applied: int, stream_id: str = "first") -> Progress:
    return Progress(applied, 7, "1", 1, "db", "slot", 0, 0, stream_id)


def heard(refusal: Mapping[str, object] | bytes, key: bytes = b"bank/refusal") -> Heard:
    """What is told by progress at 0/5000, and then a refusal."""
    told = Heard()
    told.note_progress(KEY, progress(0x5000))
    told.note_refusal(key, refusal if isinstance(refusal, bytes) else json.dumps(refusal).encode())
    return told


def test_a_refusal_behind_the_progress_ends_the_wait() -> None:
    with pytest.raises(Refused) as found:
        heard(REFUSAL).refuse(Lsn(0x3100))
    assert found.value.what == "the connector has refused to go on: the server is on timeline 2"
    assert "whether 0/3100 is visible" in found.value.at_stake
    assert found.value.repair == "start over"


def test_a_refusal_that_was_overcome_ends_no_wait() -> None:
    later, removed = heard(REFUSAL), heard(REFUSAL)
    later.note_progress(KEY, progress(0x6000))
    later.refuse(Lsn(0x3100))
    removed.note_refusal(b"bank/refusal", None)
    removed.refuse(Lsn(0x3100))


@pytest.mark.parametrize(
    ("refusal", "key"),
    [
        (REFUSAL, b"another/refusal"),  # it was refused here, because the topics are bank's
        ({**REFUSAL, "exit_status": 3}, b"bank/refusal"),  # what is visible remains so
        ({"exit_status": 5}, b"bank/refusal"),
        ([], b"bank/refusal"),
        (b"nonsense", b"bank/refusal"),
    ],
)
def test_what_does_not_concern_positions_ends_no_wait(refusal: Mapping[str, object] | bytes, key: bytes) -> None:
    heard(refusal, key).refuse(Lsn(0x3100))


def test_progress_of_another_stream_has_the_topics_read_again() -> None:
    told = Heard()
    told.note_progress(KEY, progress(0x5000))
    told.note_progress(KEY, progress(0x5001))
    assert told.is_current
    told.note_progress(KEY, progress(0x3000, "second"))
    assert not told.is_current


class HalfAway:
    """A consumer whose broker of the commits topic is away until `commits` is set."""

    commits: bytes = b""

    def assign(self, _: object) -> None:
        self._left = [Message("bank.progress", KEY, progress(0x5000).to_bytes(1))]

    def get_watermark_offsets(self, place: TopicPartition, timeout: float) -> tuple[int, int]:
        assert timeout > 0
        return 0, 1

    def consume(self, _count: int, _wait_s: float) -> list[Message]:
        found, self._left = self._left, []
        if self.commits:
            found, HalfAway.commits = [*found, Message("bank.commits", self.commits, b"")], b""
        return found

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class Message:
    name: str
    number: bytes
    data: bytes

    def topic(self) -> str:
        return self.name

    def key(self) -> bytes:
        return self.number

    def value(self) -> bytes:
        return self.data

    def offset(self) -> int:
        return 0

    def error(self) -> None:
        return None


def test_a_commits_topic_that_could_not_be_read_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """One wait that came to nothing made the next one say that all was visible."""
    monkeypatch.setattr("twofold_reader.waiting._ASKED_S", 0.1)
    opened: Any = HalfAway
    with PositionWaiter("bank", lambda _: opened(), lambda _: json.dumps(fixed("progress"))) as waiter:
        for _ in range(3):
            with pytest.raises(Unreachable, match="is not visible in Kafka within"):
                waiter.wait("0/3000", timeout_s=0.1)
        monkeypatch.setattr(HalfAway, "commits", b"7/")
        waiter.wait("0/3000", timeout_s=60)
