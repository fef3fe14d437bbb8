"""A group's reader on random commit records: each global transaction comes whole, every member's
order is kept, and any bookmark continues with what is left.
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from twofold_avro.records import Commit, PreparedOutcome
from twofold_common.errors import UsageError
from twofold_common.gids import parser
from twofold_common.global_cut import Frontier
from twofold_reader import group_reader
from twofold_reader.changes import Change, Op
from twofold_reader.group_reader import GroupReader
from twofold_reader.reader import FoundCommit
from twofold_reader.whole_transactions import WHOLE, Bookmark, Transaction

NO_SCHEMA: Any = None
Branch = tuple[int, str]
"""Where its commit begins, and its global id; empty: a member's own transaction."""


class RandomGroup:
    """What the members' topics have. `doubtful` is committed in all members but one."""

    def __init__(self, seed: int, doubtful: str = "") -> None:
        choice = random.Random(seed)
        self.prefixes = [f"m{number}" for number in range(choice.randint(2, 3))]
        self.records: dict[str, list[list[Branch]]] = {}
        self.branches: dict[str, set[str]] = {}
        own: dict[str, list[str]] = {prefix: [""] * choice.randint(0, 6) for prefix in self.prefixes}
        for number in range(choice.randint(1, 8)):
            name = f"g{number}"
            self.branches[name] = {*choice.sample(self.prefixes, choice.randint(1, len(self.prefixes)))}
            for prefix in self.branches[name]:
                # Mostly in the order of their numbers, sometimes in another.
                own[prefix].insert(max(0, len(own[prefix]) - choice.choice([0, 0, 0, 1, 2])), name)
        self.in_doubt = {prefix: set[str]() for prefix in self.prefixes}
        self.gid_patterns: dict[str, tuple[str, ...]] = {}
        if doubtful and len(self.branches.get(doubtful, ())) > 1:
            prefix = min(self.branches[doubtful])
            own[prefix] = [each for each in own[prefix] if each != doubtful]
            self.in_doubt[prefix].add(doubtful)
        for prefix, names in own.items():
            left = deque((lsn, name) for lsn, name in enumerate(names, 1))
            self.records[prefix] = []
            while left:
                count = min(len(left), choice.randint(1, 3))
                self.records[prefix].append([left.popleft() for _ in range(count)])

    def changes(self, prefix: str, at: int, name: str) -> list[Change]:
        """In a global transaction a row moves to the first of its members, from all others. A
        member's own one has two changes.
        """
        key = b"\0\0\0\0\1" + (name or str(at)).encode()
        op: Op = "d" if name and prefix != min(self.branches[name]) else "c"
        count = 1 if name else 2
        return [Change("public.t", op, None, None, [], [], number, key, NO_SCHEMA) for number in range(count)]

    def frontier(self, prefix: str) -> Frontier:
        seen = {each: len(self.records[each]) for each in self.prefixes if each != prefix}
        patterns = self.gid_patterns.get(prefix, ())
        doubts = {parser(patterns)(gid).global_id or gid: (gid,) for gid in self.in_doubt[prefix]}
        streams = dict.fromkeys(seen, "stream")
        return Frontier(len(self.records[prefix]), seen, doubts, streams=streams, gid_patterns=patterns)


class Commits:
    """In place of a CommitReader."""

    def __init__(self, group: RandomGroup, prefix: str) -> None:
        self._group, self._prefix = group, prefix
        self.pending: deque[FoundCommit] = deque()
        self._coming: deque[FoundCommit] = deque()
        self.is_at_end = False

    def begin(self, start: str) -> None:
        mark = Bookmark("stream", 0, 0, WHOLE) if start == "beginning" else Bookmark.parse(start)
        self._coming.clear()
        for sequence, branches in enumerate(self._group.records[self._prefix], 1):
            prepared = tuple(PreparedOutcome(str(at), 0, name, 0, at, 0, name) for at, name in branches if name)
            commit = Commit(sequence, "batch", 0, 0, len(branches), 0, prepared, stream_id="stream")
            done = mark.done if sequence == mark.sequence else 0
            if sequence > mark.sequence or (sequence == mark.sequence and done != WHOLE):
                self._coming.append(FoundCommit(sequence * 10, commit, [], done))

    def read_more(self, _wait_s: float) -> bool:
        if self._coming:
            self.pending.append(self._coming.popleft())
            return True
        self.is_at_end = True
        return False

    def take_transactions(self) -> Iterator[Transaction]:
        offset, commit, _, done = self.pending.popleft()
        for at, name in self._group.records[self._prefix][commit.sequence - 1]:
            if at > done:
                mark = Bookmark("stream", commit.sequence, offset, WHOLE if commit.transactions == 1 else at)
                changes = iter(self._group.changes(self._prefix, at, name))
                yield Transaction(
                    "transaction", at, str(at), commit.sequence, None, name or None, None, (), (), (), changes, 0, mark
                )


class Frontiers:
    """In place of FrontierTopics."""

    is_at_end = True

    def __init__(self, group: RandomGroup) -> None:
        self.last = {prefix: group.frontier(prefix) for prefix in group.prefixes}

    def begin(self) -> None:
        pass

    def read_more(self, _wait_s: float) -> bool:
        return False


Seen = tuple[tuple[str, ...], list[tuple[str, int, str]], str]
Opening = Callable[[RandomGroup], GroupReader]


@pytest.fixture
def open_group(monkeypatch: pytest.MonkeyPatch) -> Opening:
    def open_reader(group: RandomGroup) -> GroupReader:
        monkeypatch.setattr(group_reader, "CommitReader", lambda prefix, *_: Commits(group, prefix))
        monkeypatch.setattr(group_reader, "FrontierTopics", lambda *_: Frontiers(group))
        return GroupReader(group.prefixes, {}, lambda _: "")

    return open_reader


@pytest.fixture
def read(open_group: Opening) -> Any:
    def read_group(group: RandomGroup, start: str = "beginning", *, without_branches: bool = False) -> list[Seen]:
        return [
            (
                each.global_ids,
                [] if without_branches else [(p, t.commit_lsn, t.global_id or "") for p, t in each.branches],
                each.bookmark,
            )
            for each in open_group(group).transactions(start, follow=False)
        ]

    return read_group


def check(group: RandomGroup, found: list[Seen], done: dict[str, int] | None = None) -> None:
    """Each member's order without a gap, and each global transaction at once."""
    done = done or dict.fromkeys(group.prefixes, 0)
    for names, branches, _ in found:
        for prefix, at, _ in branches:
            assert at == done[prefix] + 1
            done[prefix] = at
        for prefix in {prefix for prefix, *_ in branches} if names else ():
            own = [name for each, _, name in branches if each == prefix]
            assert own[0], "what lies before does not belong to it"
            assert own[-1], "what lies behind does not belong to it"
        there = {(name, prefix) for prefix, _, name in branches if name}
        assert there == {(name, prefix) for name in names for prefix in group.branches[name]}


@pytest.mark.parametrize("seed", range(150))
def test_each_comes_whole_and_in_every_member_s_order(seed: int, read: Any) -> None:
    group = RandomGroup(seed)
    found = read(group)
    check(group, found)
    there = sum(len(record) for records in group.records.values() for record in records)
    assert sum(len(branches) for _, branches, _ in found) == there
    assert read(group, without_branches=True) == [(names, [], mark) for names, _, mark in found]
    done = dict.fromkeys(group.prefixes, 0)
    for number, (_, branches, bookmark) in enumerate(found, 1):
        done |= {prefix: at for prefix, at, _ in branches}
        rest = read(group, bookmark)
        check(group, rest, dict(done))
        assert sorted(map(sorted, (b for _, b, _ in rest))) == sorted(map(sorted, (b for _, b, _ in found[number:])))


@pytest.mark.parametrize("seed", range(50))
def test_a_reader_that_ends_after_each_one_sees_all_once(seed: int, read: Any) -> None:
    group = RandomGroup(seed)
    found: list[Seen] = []
    while left := read(group, found[-1][2] if found else "beginning"):
        found.append(left[0])
    check(group, found)
    assert len(found) == len(read(group))


def test_nothing_comes_while_members_read_gids_by_several_patterns(read: Any) -> None:
    group = RandomGroup(1)
    group.gid_patterns["m0"] = ("t-(?P<global>.)",)
    assert read(group) == []
    group.gid_patterns = dict.fromkeys(group.prefixes, group.gid_patterns["m0"])
    assert read(group)


@pytest.mark.parametrize("seed", range(50))
def test_what_is_in_doubt_somewhere_does_not_come(seed: int, read: Any) -> None:
    group = RandomGroup(seed, doubtful="g0")
    found = read(group)
    check(group, found)
    hidden = {name for names in group.in_doubt.values() for name in names}
    assert not hidden & {name for names, _, _ in found for name in names}


@pytest.mark.parametrize("seed", range(50))
def test_what_is_in_doubt_does_not_come_though_its_commit_records_have_a_name_by_other_patterns(
    seed: int, read: Any
) -> None:
    group = RandomGroup(seed, doubtful="g0")
    group.gid_patterns = dict.fromkeys(group.prefixes, ("(?P<branch>g)(?P<global>[0-9]+)",))
    found = read(group)
    hidden = {gid.removeprefix("g") for gids in group.in_doubt.values() for gid in gids}
    assert {name for names, _, _ in found for name in names} <= {*map(str, range(8))} - hidden
    group.gid_patterns = {}
    assert [branches for _, branches, _ in read(group)] == [branches for _, branches, _ in found]


@pytest.mark.parametrize("seed", range(50))
def test_the_changes_are_those_of_the_branches_and_a_row_that_moves_stays(
    seed: int, read: Any, open_group: Opening
) -> None:
    group = RandomGroup(seed)
    there = set[str]()
    for each, (names, branches, bookmark) in zip(
        open_group(group).transactions("beginning", follow=False), read(group), strict=True
    ):
        found = set[tuple[str, int, str]]()
        for prefix, transaction, change in each.changes:
            name = transaction.global_id or ""
            found.add((prefix, transaction.commit_lsn, name))
            there = there - {name} if change.op == "d" else there | {name}
        assert (each.global_ids, sorted(found), each.bookmark) == (names, sorted(branches), bookmark)
    assert there >= group.branches.keys()


def test_the_changes_of_one_transaction_wait_for_nothing(open_group: Opening) -> None:
    """A large one does not fill the memory."""
    alone = 0
    for each in open_group(RandomGroup(1)).transactions("beginning", follow=False):
        _, transaction, _ = next(each.changes)
        if not each.global_ids:
            assert len([*transaction.changes]) == 1, "it is not read yet"
            alone += 1
    assert alone > 3


def test_some_come_together_and_some_records_are_divided(read: Any) -> None:
    """Otherwise the tests above show nothing of these."""
    found = [read(RandomGroup(seed)) for seed in range(150)]
    assert sum(len(names) > 1 for each in found for names, _, _ in each) > 50
    marks = [Bookmark.parse(mark.partition("=")[2]) for each in found for _, _, text in each for mark in text.split(",") if not mark.endswith("beginning")]  # fmt: skip
    assert sum(mark.done != WHOLE for mark in marks) > 100


@pytest.mark.parametrize("count", [0, 1])
def test_branches_that_are_read_too_late_are_refused(count: int, read: Any, open_group: Opening) -> None:
    """They were none, without a word."""
    refused = 0
    for seed in range(20):
        whole = [len(branches) for _, branches, _ in read(RandomGroup(seed))]
        late = [
            (each, len([*itertools.islice(each.branches, count)]))
            for each in open_group(RandomGroup(seed)).transactions("beginning", follow=False)
        ]
        for (each, begun), there in zip(late, whole, strict=True):
            if each.global_ids and begun < there:
                refused += 1
                with pytest.raises(UsageError, match="the branches of a transaction are read after the next"):
                    list(each.branches)
            elif begun == there:
                assert not list(each.branches), "all were read in time"
    assert refused > 10
