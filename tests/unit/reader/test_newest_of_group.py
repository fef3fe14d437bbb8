"""A group's reader that starts at 'newest' while members prepare and commit: no global transaction
lies on both sides of the start.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator

import pytest

from twofold_avro.records import Commit, PreparedOutcome
from twofold_common.global_cut import Frontier
from twofold_reader import group_reader
from twofold_reader.group_reader import GroupReader
from twofold_reader.reader import FoundCommit
from twofold_reader.whole_transactions import WHOLE, Bookmark, Transaction


class Story:
    """What members do, one step after the other, and what their topics then have."""

    def __init__(self, seed: int) -> None:
        self._choice = random.Random(seed)
        self.prefixes = [f"m{number}" for number in range(self._choice.randint(2, 3))]
        self.records: dict[str, list[str]] = {prefix: [] for prefix in self.prefixes}
        """Each commit record's global transaction; empty: a member's own transaction."""
        self.frontiers: dict[str, Frontier] = {}
        self._in_doubt: dict[str, set[str]] = {prefix: set() for prefix in self.prefixes}
        self._looked: dict[str, dict[str, int]] = {}
        self._left = self._choice.randint(30, 120)
        self._prepared = 0

    @property
    def is_over(self) -> bool:
        return self._left <= 0

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self._left -= 1
            prefix = self._choice.choice(self.prefixes)
            if self._left > 0:
                self._step(prefix)
                continue
            for each in self.prefixes:
                for name in sorted(self._in_doubt[each]):
                    self._commit(each, name)
            self._looked.clear()
            for each in self.prefixes * 2:
                self._look_or_write(each)
            return

    def _step(self, prefix: str) -> None:
        match self._choice.choice(["prepare", "commit", "commit", "own", "frontier", "frontier"]):
            case "prepare":
                for each in self._choice.sample(self.prefixes, self._choice.randint(1, len(self.prefixes))):
                    self._in_doubt[each].add(f"g{self._prepared}")
                self._prepared += 1
            case "commit" if self._in_doubt[prefix]:
                self._commit(prefix, self._choice.choice(sorted(self._in_doubt[prefix])))
            case "own":
                self.records[prefix].append("")
            case "frontier":
                self._look_or_write(prefix)

    def _commit(self, prefix: str, name: str) -> None:
        self._in_doubt[prefix].remove(name)
        self.records[prefix].append(name)

    def _look_or_write(self, prefix: str) -> None:
        """A frontier says what was seen some steps before."""
        seen = self._looked.pop(prefix, None)
        if seen is None:
            self._looked[prefix] = {each: len(self.records[each]) for each in self.prefixes if each != prefix}
            return
        doubts = {name: (name,) for name in self._in_doubt[prefix]}
        streams = dict.fromkeys(seen, "stream")
        self.frontiers[prefix] = Frontier(len(self.records[prefix]), seen, doubts, streams=streams)


class Commits:
    """In place of a CommitReader."""

    def __init__(self, story: Story, prefix: str) -> None:
        self._story, self._records = story, story.records[prefix]
        self.pending: deque[FoundCommit] = deque()
        self._next = 0

    def find_last(self) -> Bookmark | None:
        return Bookmark("stream", len(self._records), 0, WHOLE) if self._records else None

    def begin(self, start: str) -> None:
        mark = Bookmark("stream", 0, 0, WHOLE) if start == "beginning" else Bookmark.parse(start)
        self._next = mark.sequence + (mark.done == WHOLE)
        self.pending.clear()

    @property
    def is_at_end(self) -> bool:
        return self._story.is_over and max(1, self._next) > len(self._records)

    def read_more(self, _wait_s: float) -> bool:
        if (at := max(1, self._next)) > len(self._records):
            return False
        self._next = at + 1
        name = self._records[at - 1]
        prepared = (PreparedOutcome(name, 0, name, 0, at, 0, name),) if name else ()
        self.pending.append(FoundCommit(at, Commit(at, "batch", 0, 0, 1, 0, prepared, stream_id="stream"), [], 0))
        return True

    def take_transactions(self) -> Iterator[Transaction]:
        offset, commit, *_ = self.pending.popleft()
        at = commit.sequence
        mark = Bookmark("stream", at, offset, WHOLE)
        yield Transaction("transaction", at, str(at), at, None, None, None, (), (), (), iter(()), 0, mark)


class Frontiers:
    """In place of FrontierTopics. The story goes on with each look."""

    def __init__(self, story: Story, choice: random.Random) -> None:
        self._story, self._choice = story, choice
        self.last: dict[str, Frontier] = {}

    def begin(self) -> None:
        self.last = {}

    @property
    def is_at_end(self) -> bool:
        return self._story.is_over

    def read_more(self, _wait_s: float) -> bool:
        self._story.run(self._choice.randint(0, 4))
        came = self.last != self._story.frontiers
        self.last = dict(self._story.frontiers)
        return came


@pytest.mark.parametrize("seed", range(200))
def test_a_start_at_newest_tears_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    story, choice = Story(seed), random.Random(seed)
    monkeypatch.setattr(group_reader, "CommitReader", lambda prefix, *_: Commits(story, prefix))
    monkeypatch.setattr(group_reader, "FrontierTopics", lambda *_: Frontiers(story, choice))
    story.run(choice.randint(0, 60))
    before = {prefix: len(records) for prefix, records in story.records.items()}
    transactions = GroupReader(story.prefixes, {}, lambda _: "").transactions("newest", follow=False)
    begun = {prefix: len(records) for prefix, records in story.records.items()}
    found = [(prefix, each.commit_lsn) for unit in transactions for prefix, each in unit.branches]
    shown: dict[str, set[bool]] = {}
    """Of each global transaction, whether its branches came."""
    for prefix, records in story.records.items():
        places = [at for each, at in found if each == prefix]
        first = places[0] if places else len(records) + 1
        assert places == [*range(first, len(records) + 1)]
        assert before[prefix] < first <= begun[prefix] + 1
        for at, name in enumerate(records, 1):
            shown.setdefault(name or f"{prefix} {at}", set()).add(at >= first)
    assert not [name for name, each in shown.items() if len(each) > 1]
