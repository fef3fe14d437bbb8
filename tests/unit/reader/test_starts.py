"""Where a reader begins, and which commit records it then takes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from twofold_avro.records import Commit, Range
from twofold_avro.schemas import fixed
from twofold_reader import reader
from twofold_reader.reader import CommitReader
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
        self._messages: list[Message] = []
        self._next = 0

    def write(self, *commits: Commit) -> None:
        for each in commits:
            self._messages.append(Message(self.end, each))
            self.end += 2

    def commits_bounds(self) -> tuple[int, int]:
        return self.first, self.end

    def read_commit_at(self, offset: int) -> Message | None:
        return next((each for each in self._messages if each.offset() >= max(offset, self.first)), None)

    def begin(self, offset: int) -> None:
        self._next = offset

    def read_commits(self, _wait_s: float) -> Sequence[Message]:
        found = [each for each in self._messages if each.offset() >= self._next]
        self._next = self.end
        return found

    def open(self, ranges: Sequence[Range]) -> None:
        pass


@pytest.fixture
def topics(monkeypatch: pytest.MonkeyPatch) -> Topics:
    found = Topics()
    monkeypatch.setattr(reader, "PrefixTopics", lambda *_: found)
    return found


def commits() -> CommitReader:
    return CommitReader("bank", {}, lambda _: json.dumps(fixed("commit")), None)


def batch(sequence: int, applied_lsn: int, **more: Any) -> Commit:
    return Commit(sequence, more.pop("kind", "batch"), applied_lsn, 0, 1, 0, stream_id="one", **more)


def taken(commits: CommitReader) -> list[tuple[int, int]]:
    """What has come: numbers, and up to where transactions are left out."""
    commits.read_more()
    return [(each.commit.sequence, each.done) for each in commits.pending]


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


def test_a_bookmark_leaves_out_of_its_own_commit_record(topics: Topics) -> None:
    topics.write(batch(1, 0x10), batch(2, 0x20), batch(3, 0x30))
    found = commits()
    found.begin(str(Bookmark("one", 2, 2, 0x18)))
    assert taken(found) == [(2, 0x18), (3, 0)]
    found.begin(str(Bookmark("one", 2, 2, WHOLE)))
    assert taken(found) == [(3, 0)]
