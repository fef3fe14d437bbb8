"""A read of topics ends by its position, and only silence of Kafka ends it early."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException, Message

from twofold.errors import SetupError, TwofoldError, Unreachable
from twofold.kafka import topic_reader
from twofold.kafka.client import MOVING, NO_GROUP, PARTITION_EOF
from twofold.kafka.topic_reader import Bounds, PartitionId, TopicReader

A, B = PartitionId("a", 0), PartitionId("b", 0)


def said(place: PartitionId, at: int, code: int | None = None) -> Message:
    """A record, the end of a partition, or an error."""
    error = None if code is None else KafkaError(code)
    return Message(topic=place.topic, partition=place.partition, offset=at, error=error)


class Consumer:
    """Gives the batches one by one, and then nothing; each question takes a second."""

    def __init__(self, clock: list[float], *batches: list[Message], high: int = -1001) -> None:
        self._clock, self._batches, self._high = clock, [*batches], high
        self.paused: list[PartitionId] = []
        self.is_closed = False

    def assign(self, _: Any) -> None: ...

    def consume(self, *_: Any) -> list[Message]:
        self._clock[0] += 1
        return self._batches.pop(0) if self._batches else []

    def get_watermark_offsets(self, _: Any, *, cached: bool) -> tuple[int, int]:
        assert cached, "a server that is silent is asked nothing"
        return 0, self._high

    def pause(self, places: list[Any]) -> None:
        self.paused += [PartitionId(each.topic, each.partition) for each in places]

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    clock = [0.0]
    monkeypatch.setattr(topic_reader, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    return clock


def reader(consumer: Consumer) -> TopicReader:
    settings = SimpleNamespace(call_timeout_s=5.0, open_admin=lambda: None, open_consumer=lambda _: consumer)
    return TopicReader(cast("Any", settings))


def test_it_ends_by_position_behind_markers_and_before_later_records(clock: list[float]) -> None:
    batches = [said(A, 3), said(A, 5), said(B, 0)], [said(B, 4, PARTITION_EOF), said(A, 6)], [said(B, 7), said(A, 9)]
    consumer = Consumer(clock, *batches)
    found = [(each.topic(), each.offset()) for each in reader(consumer).read({A: (3, 8), B: (0, 4)})]
    assert found == [("a", 3), ("a", 5), ("b", 0), ("a", 6)]
    assert consumer.paused == [B, A]
    assert consumer.is_closed


def test_only_silence_ends_it_and_is_named(clock: list[float]) -> None:
    """A caller that takes its time with the records is no silence."""
    read = reader(Consumer(clock, [said(A, 3)], [], [said(A, 4)])).read({A: (3, 8), B: (0, 4)})
    for at in (3, 4):
        assert next(read).offset() == at
        clock[0] += 600
    with pytest.raises(Unreachable, match=r"nothing more of a \[0\] from offset 5 to 8 and 1 more partition for 5 s"):
        next(read)


@pytest.mark.parametrize("high", [-1001, 8, 9])
def test_a_partition_that_is_shorter_now_has_lost_records(clock: list[float], high: int) -> None:
    """Not one whose end nobody knows, or that has an open transaction before its end."""
    batch = [said(A, 3), said(A, 4, PARTITION_EOF)]
    with pytest.raises(Unreachable, match=r"lost records of a \[0\]: it ended at offset 8 .* and ends at 4 now"):
        [*reader(Consumer(clock, batch, high=4)).read({A: (3, 8)})]
    with pytest.raises(Unreachable, match="a transaction is open there"):
        [*reader(Consumer(clock, batch, high=high)).read({A: (3, 8)})]


def test_an_error_names_its_place_and_is_raised_or_noted(clock: list[float]) -> None:
    batch = [said(A, 3), said(A, -1, KafkaError.TOPIC_AUTHORIZATION_FAILED), said(B, 3)]
    failed: dict[PartitionId, TwofoldError] = {}
    found = [each.offset() for each in reader(Consumer(clock, batch)).read({A: (3, 8), B: (0, 4)}, failed=failed)]
    assert found == [3, 3]
    assert [place for place, error in failed.items() if "reading a [0] at offset 4 failed" in str(error)] == [A]
    with pytest.raises(SetupError, match=r"reading a \[0\] at offset 4 failed: .*remedy: grant"):
        [*reader(Consumer(clock, batch)).read({A: (3, 8), B: (0, 4)})]


def test_an_error_counts_as_long_as_something_is_left(clock: list[float]) -> None:
    """And a read has no group: that it may not ask for one is no error of the read."""
    anywhere = Message(topic=None, partition=-1, offset=-1, error=KafkaError(KafkaError._ALL_BROKERS_DOWN))
    group = Message(topic=None, partition=-1, offset=-1, error=KafkaError(NO_GROUP))
    assert len([*reader(Consumer(clock, [group, said(A, 3), anywhere])).read({A: (3, 4)})]) == 1
    with pytest.raises(Unreachable, match=r"reading a \[0\] from offset 4 to 5 failed"):
        [*reader(Consumer(clock, [said(A, 3), anywhere])).read({A: (3, 5)})]


class Admin:
    """Answers what is there to say first, then offset 7."""

    def __init__(self, *first: Exception | int) -> None:
        self.first = [*first]
        self.asked: list[int] = []

    def list_offsets(self, asked: dict[Any, Any], **_: Any) -> dict[Any, Admin]:
        self.asked.append(len(asked))
        return dict.fromkeys(asked, self)

    def result(self) -> SimpleNamespace:
        said = self.first.pop() if self.first else 7
        if isinstance(said, Exception):
            raise said
        return SimpleNamespace(offset=said)


@pytest.mark.parametrize("first", [*(KafkaException(KafkaError(code)) for code in sorted(MOVING)), -1, -1001])
def test_a_partition_that_no_broker_is_ready_to_speak_of_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, first: Exception | int
) -> None:
    """It is being created, or has just got another leader, or its broker comes back."""
    monkeypatch.setattr(topic_reader, "_PAUSE_S", 0.0)
    admin = Admin(first)
    settings: Any = SimpleNamespace(call_timeout_s=5.0, open_admin=lambda: admin)
    assert TopicReader(settings).bounds([A])[A] == Bounds(7, 7, 7)
    assert not admin.first
    settings.call_timeout_s = 0.0
    admin.first = [first] * 9
    with pytest.raises(TwofoldError):
        TopicReader(settings).bounds([A])


def test_many_partitions_are_asked_for_in_portions() -> None:
    """librdkafka's time grows with the square of their number."""
    admin, places = Admin(), [PartitionId("a", partition) for partition in range(1200)]
    settings: Any = SimpleNamespace(call_timeout_s=5.0, open_admin=lambda: admin)
    assert TopicReader(settings).bounds(places) == dict.fromkeys(places, Bounds(7, 7, 7))
    assert admin.asked == [500, 500, 200] * 3
