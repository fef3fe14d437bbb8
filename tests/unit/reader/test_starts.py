"""Where a reader begins, and which commit records it then takes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from twofold_avro.records import Commit, Progress, Range
from twofold_avro.schemas import fixed
from twofold_common.errors import Refused
from twofold_reader import reader
from twofold_reader.reader import CommitReader
from twofold_reader.topics import Closing, Place
from twofold_reader.waiting import PositionWaiter
from twofold_reader.whole_transactions import WHOLE, Bookmark


class Message:
    """A commit record as confluent_kafka has it."""

    def __init__(self, offset: int, commit: Commit) -> None:
        self._offset, self._value = offset, commit.to_bytes(1)

    def topic(self) -> str:
        return "bank.commits"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes | None:
        return None

    def value(self) -> bytes:
        return self._value


class Topics:
    """In place of PrefixTopics: commit records, each with a marker behind it."""

    def __init__(self) -> None:
        self.first = self.end = 0
        self.lows: dict[Place, int] = {}
        """The first offset that each partition of rows has."""
        self._messages: list[Message] = []
        self._next = 0

    def write(self, *commits: Commit) -> None:
        for each in commits:
            self._messages.append(Message(self.end, each))
            self.end += 2

    def partitions(self, _prefix: str) -> list[Place]:
        return [*self.lows]

    def bounds(self, places: Iterable[Place]) -> dict[Place, tuple[int, int]]:
        return {place: (self.lows[place], 1000) for place in places}

    def commits_bounds(self) -> tuple[int, int]:
        return self.first, self.end

    def read_commit_at(self, offset: int) -> Message | None:
        return next((each for each in self._messages if each.offset() >= max(offset, self.first)), None)

    def begin(self, offset: int) -> None:
        self._next = offset

    def read_commits(self, _wait_s: float = 0) -> Sequence[Message]:
        found = [each for each in self._messages if each.offset() >= self._next]
        self._next = self.end
        return found

    def open(self, ranges: Sequence[Range]) -> None:
        pass

    @property
    def is_at_end(self) -> bool:
        return self._next >= self.end

    def forget(self, count: int) -> None:
        """As retention does with the first commit records."""
        del self._messages[:count]
        self.first = self._messages[0].offset() if self._messages else self.end


class Waiter(Closing):
    """In place of a PositionWaiter."""

    def __init__(self, sequence: int) -> None:
        self._sequence = sequence

    def read_progress(self) -> Progress:
        return Progress(0x38, self._sequence, "", 0, "", "", 0, 0, "one", outcome_lsn=0x30)


@pytest.fixture
def topics(monkeypatch: pytest.MonkeyPatch) -> Topics:
    found = Topics()
    monkeypatch.setattr(reader, "PrefixTopics", lambda *_: found)
    monkeypatch.setattr(PositionWaiter, "at", lambda *_: Waiter(found.end // 2))
    return found


def commits() -> CommitReader:
    return CommitReader("bank", {}, lambda _: json.dumps(fixed("commit")), None)


def batch(sequence: int, applied_lsn: int, **more: Any) -> Commit:
    return Commit(sequence, more.pop("kind", "batch"), applied_lsn, 0, 1, 0, stream_id="one", **more)


def mark(sequence: int, done: int = WHOLE) -> str:
    return str(Bookmark("one", sequence, 2 * (sequence - 1), done))


def taken(commits: CommitReader) -> list[tuple[int, int]]:
    """What has come: numbers, and up to where transactions are left out."""
    commits.read_more()
    return [(each.commit.sequence, each.done) for each in commits.pending]


@pytest.mark.parametrize(("low", "first"), [(0, 1), (3, 2), (10, 2), (11, 4), (31, 4), (41, 5)])
def test_the_beginning_is_behind_all_whose_rows_retention_has_deleted(topics: Topics, low: int, first: int) -> None:
    """The third has a prepared transaction, whose rows lie before those of the second."""

    def rows(*places: int) -> tuple[Range, ...]:
        return tuple(Range("bank.public.t", 0, each, each, 1) for each in places)

    topics.lows[Place("bank.public.t", 0)] = low
    topics.write(batch(1, 0x10, ranges=rows(0)), batch(2, 0x20, ranges=rows(20)))
    topics.write(batch(3, 0x30, ranges=rows(10, 30)), batch(4, 0x40, ranges=rows(40)))
    found = commits()
    found.begin("beginning")
    assert [sequence for sequence, _ in taken(found)] == [*range(first, 5)]


@pytest.mark.parametrize("before", range(7))
def test_a_position_leaves_out_what_a_connector_that_lags_brings_of_before(topics: Topics, before: int) -> None:
    records = [
        batch(1, 0x10),
        batch(2, 0x20),
        batch(3, 0x20, kind="backfill"),
        batch(4, 0x30),
        batch(5, 0x40),
        batch(6, 0x50),
    ]
    topics.write(*records[:before])
    found = commits()
    found.begin("0/30")
    topics.write(*records[before:])
    assert taken(found) == [(5, 0x2F), (6, 0)]


@pytest.mark.parametrize("gone", [1, 2, 3])
def test_a_position_is_refused_where_what_is_behind_it_was_deleted(topics: Topics, gone: int) -> None:
    topics.write(batch(1, 0x10), batch(2, 0x20), batch(3, 0x30))
    topics.forget(gone)
    with pytest.raises(Refused, match="no longer has all commit records since 0/F"):
        commits().begin("0/F")


@pytest.mark.parametrize("position", ["0/30", "0/34", "0/38", "0/40"])
def test_a_position_behind_all_that_was_deleted_continues(topics: Topics, position: str) -> None:
    """Also one that an idle source's progress has passed."""
    topics.write(batch(1, 0x10), batch(2, 0x20), batch(3, 0x30))
    topics.forget(3)
    found = commits()
    found.begin(position)
    topics.write(batch(4, 0x50))
    assert [sequence for sequence, _ in taken(found)] == [4]


def test_a_bookmark_leaves_out_of_its_own_commit_record(topics: Topics) -> None:
    topics.write(batch(1, 0x10), batch(2, 0x20), batch(3, 0x30))
    found = commits()
    found.begin(mark(2, 0x18))
    assert taken(found) == [(2, 0x18), (3, 0)]
    found.begin(mark(2))
    assert taken(found) == [(3, 0)]


@pytest.mark.parametrize("gone", [2, 3])
def test_a_bookmark_continues_where_retention_has_deleted_only_what_was_read(topics: Topics, gone: int) -> None:
    topics.write(batch(1, 0x10), batch(2, 0x20), batch(3, 0x30))
    topics.forget(gone)
    found = commits()
    found.begin(mark(gone))
    topics.write(batch(4, 0x40))
    assert taken(found) == [(each, 0) for each in range(gone + 1, 5)]


@pytest.mark.parametrize("gone", [2, 3])
@pytest.mark.parametrize("done", [WHOLE, 0x8])
def test_a_bookmark_is_refused_where_more_was_deleted(topics: Topics, gone: int, done: int) -> None:
    topics.write(batch(1, 0x10), batch(2, 0x20), batch(3, 0x30))
    topics.forget(gone)
    at = 1 if done == WHOLE else gone
    with pytest.raises(Refused, match=f"no longer has commit record {at}, which the bookmark names"):
        commits().begin(mark(at, done))


def test_a_bookmark_is_refused_if_another_commit_record_then_comes(topics: Topics) -> None:
    topics.write(batch(1, 0x10))
    topics.forget(1)
    found = commits()
    found.begin(mark(1))
    topics.write(batch(3, 0x30))
    with pytest.raises(Refused, match="its place has another one"):
        found.read_more()


@pytest.mark.parametrize("gone", [0, 2, 3])
def test_the_last_commit_record_is_known_when_retention_has_deleted_it(topics: Topics, gone: int) -> None:
    assert commits().find_last() is None
    topics.write(batch(1, 0x10), batch(2, 0x20), batch(3, 0x30))
    topics.forget(gone)
    found = commits()
    last = found.find_last()
    assert last is not None
    assert (last.stream_id, last.sequence, last.done) == ("one", 3, WHOLE)
    found.begin(str(last))
    topics.write(batch(4, 0x40))
    assert taken(found) == [(4, 0)]
