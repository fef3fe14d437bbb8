"""A sharded table in its short form: some hundreds of random histories, every mutant."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from model import shard_world
from model.group_world import first_violation
from model.shard_world import Fold, Rows, ShardedTable, ShardWorld

SHORT = range(60)


def test_every_row_is_there_once_at_every_cut() -> None:
    rows = moves = kills = 0
    for seed in SHORT:
        world = ShardWorld(seed)
        world.run()
        rows, moves, kills = rows + world.looked_at, moves + world.moves, kills + world.kills
    assert rows > 5 * len(SHORT), "a world whose table is not read shows nothing"
    assert moves > len(SHORT), "a world without moves shows nothing of them"
    assert kills > len(SHORT) // 2


def _by_key_alone(rows: Rows, folds: Mapping[str, Fold], *, rank: Any) -> None:
    """A table without the member in its key: one row for each key of the source."""
    changes = [(key, member, value) for member, fold in folds.items() for key, value in fold.items()]
    for key, member, value in sorted(changes, key=rank):
        for other in [place for place in rows if place[1] == key]:
            del rows[other]
        if value is not None:
            rows[member, key] = value


def _in_the_members_order(rows: Rows, folds: Mapping[str, Fold]) -> None:
    _by_key_alone(rows, folds, rank=lambda _: 0)


def _deletes_first(rows: Rows, folds: Mapping[str, Fold]) -> None:
    _by_key_alone(rows, folds, rank=lambda change: change[2] is not None)


def _inserts_alone(rows: Rows, folds: Mapping[str, Fold]) -> None:
    """An insert hides the delete of its move."""
    kept = {key for fold in folds.values() for key, value in fold.items() if value is not None}
    for member, fold in folds.items():
        _merge(rows, {member: {key: value for key, value in fold.items() if value is not None or key not in kept}})


_merge = shard_world.merge_shards


class _KeepsWhatNoCutHas(ShardedTable):
    def give_up(self) -> None:
        pass


@pytest.mark.parametrize(
    ("where", "attribute", "broken"),
    [
        (shard_world, "merge_shards", _inserts_alone),
        (shard_world, "merge_shards", _in_the_members_order),
        (shard_world, "merge_shards", _deletes_first),
        (ShardWorld, "table_class", _KeepsWhatNoCutHas),
        (ShardWorld, "waits_for_loads", False),
    ],
    ids=[
        "a move's insert before its delete doubles",
        "a move's delete behind its insert takes the row",
        "a load of the new shard hides a move",
        "what a killed job merged stays",
        "a shard that is loaded is read",
    ],
)
def test_broken_rule_of_shards_is_caught(
    where: Any, attribute: str, broken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, attribute, broken)
    assert first_violation(ShardWorld, range(3000))
