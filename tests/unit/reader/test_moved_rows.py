"""A program keeps the shards of a table in one map by its key: however rows move within what comes
together, the map ends as the shards are.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any

import pytest

from twofold_reader.changes import Change, Op
from twofold_reader.group_reader import Branch, BranchChange, delete_first
from twofold_reader.whole_transactions import Bookmark, Transaction

TABLE = "public.account"
NO_SCHEMA: Any = None


def make_change(op: Op, key: int | None, number: int, *, schema_id: int = 1) -> Change:
    """`number` is the row's value."""
    data = None if key is None else bytes([0, 0, 0, 0, schema_id, key])
    row = None if key is None else {"id": key}
    after = None if row is None or op == "d" else {**row, "value": number}
    return Change(TABLE, op, row if op == "d" else None, after, [], [], number, data, NO_SCHEMA)


def make_transaction(at: int, changes: Iterable[Change]) -> Transaction:
    mark = Bookmark("stream", 1, 0, at)
    return Transaction("transaction", at, str(at), 1, None, None, None, (), (), (), iter(changes), 0, mark)


class Shards:
    """Shards of one table, of which each key is in one at most, and what each does."""

    def __init__(self, seed: int, *, keys: int = 4) -> None:
        self._choice = random.Random(seed)
        self._numbers = count(1)
        self.prefixes = [f"m{number}" for number in range(self._choice.randint(1, 3))]
        self.rows = {key: (self._choice.choice(self.prefixes), 0) for key in range(keys) if self._choice.random() < 0.5}
        """By key: the shard and the value."""
        self._keys = range(keys)
        self._changes: dict[str, list[Change]] = {prefix: [] for prefix in self.prefixes}

    def run(self, steps: int) -> None:
        for _ in range(steps):
            key = self._choice.choice(self._keys)
            place = self.rows.get(key, ("", 0))[0]
            match self._choice.choice(["move", "move", "move", "update", "delete", "truncate"]):
                case "move":
                    if place:
                        self._note(place, "d", key)
                    self._put(self._choice.choice(self.prefixes), "c", key)
                case "update" if place:
                    self._put(place, "u", key)
                case "delete" if place:
                    self._note(place, "d", key)
                    del self.rows[key]
                case "truncate" if place and self._choice.random() < 0.3:
                    self._note(place, "t", None)
                    self.rows = {key: row for key, row in self.rows.items() if row[0] != place}

    def _put(self, place: str, op: Op, key: int) -> None:
        self.rows[key] = place, self._note(place, op, key)

    def _note(self, place: str, op: Op, key: int | None) -> int:
        number = next(self._numbers)
        # The schema's id may change on the way: a column of the key was renamed.
        self._changes[place].append(make_change(op, key, number, schema_id=self._choice.randint(1, 2)))
        return number

    def branches(self) -> list[Branch]:
        """Of each shard one transaction or several, in any order of the shards."""
        found: list[Branch] = []
        for prefix in self._choice.sample(self.prefixes, len(self.prefixes)):
            changes, ats = self._changes[prefix], count(1)
            while changes:
                size = self._choice.randint(1, len(changes))
                found.append((prefix, make_transaction(next(ats), changes[:size])))
                changes = changes[size:]
        return found


def apply(rows: dict[int, tuple[str, int]], changes: Iterable[BranchChange]) -> dict[int, tuple[str, int]]:
    """What the program does: a plain map, in which only a truncate asks for the shard."""
    for prefix, _, change in changes:
        if change.op == "t":
            for key in [key for key, (place, _) in rows.items() if place == prefix]:
                del rows[key]
        elif change.op == "d":
            assert change.before is not None
            rows.pop(change.before["id"], None)
        else:
            assert change.after is not None
            rows[change.after["id"]] = prefix, change.after["value"]
    return rows


def as_they_come(branches: Iterable[Branch]) -> Iterator[BranchChange]:
    for prefix, transaction in branches:
        for change in transaction.changes:
            yield prefix, transaction, change


def read(seed: int, *, ordered: bool = True) -> tuple[dict[int, tuple[str, int]], Shards, list[BranchChange]]:
    """The map, the shards, and the changes in between."""
    shards = Shards(seed)
    before = dict(shards.rows)
    shards.run(random.Random(seed).randint(1, 12))
    branches = shards.branches()
    last = branches[-1][0] if branches else ""
    changes = [*(delete_first(branches, last) if ordered else as_they_come(branches))]
    return apply(before, changes), shards, changes


@pytest.mark.parametrize("part", range(10))
def test_the_map_ends_as_the_shards_are(part: int) -> None:
    for seed in range(part * 300, part * 300 + 300):
        rows, shards, _ = read(seed)
        assert rows == shards.rows, seed


def test_without_the_order_the_map_loses_rows() -> None:
    """Otherwise the test above shows nothing."""
    wrong = sum(rows != shards.rows for rows, shards, _ in (read(seed, ordered=False) for seed in range(300)))
    assert wrong > 30


@pytest.mark.parametrize("seed", range(200))
def test_each_change_comes_once_and_those_of_a_row_in_their_order(seed: int) -> None:
    _, _, plain = read(seed, ordered=False)
    _, _, found = read(seed)
    assert sorted((prefix, t.commit_lsn, c.number) for prefix, t, c in found) == sorted(
        (prefix, t.commit_lsn, c.number) for prefix, t, c in plain
    )
    numbers: dict[tuple[str, bytes], list[int]] = defaultdict(list)
    for prefix, _, change in found:
        if change.key_bytes is not None:
            numbers[prefix, change.key_bytes].append(change.number)
    assert all(each == sorted(each) for each in numbers.values())


def test_only_inserted_rows_wait_and_none_of_the_last_shard() -> None:
    read_so_far: list[Change] = []

    def watched(*changes: Change) -> Transaction:
        def read_on() -> Iterator[Change]:
            for each in changes:
                read_so_far.append(each)
                yield each

        return make_transaction(1, read_on())

    east = watched(make_change("u", 1, 1), make_change("c", 2, 2), make_change("u", 3, 3))
    west = watched(make_change("c", 4, 4), make_change("d", 2, 5))
    ordered = delete_first(iter([("east", east), ("west", west)]), "west")
    seen = [(next(ordered)[2].number, len(read_so_far)) for _ in range(5)]
    assert seen == [(1, 1), (3, 3), (4, 4), (5, 5), (2, 5)]


def test_rows_without_a_key_come_as_they_are() -> None:
    lines = [make_change("c", None, 1), make_change("d", None, 2)]
    ordered = delete_first([("east", make_transaction(1, lines)), ("west", make_transaction(1, ()))], "west")
    assert [change.number for _, _, change in ordered] == [1, 2]
