"""Which shards of a table are folded at once, and how their records are told apart."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any, cast

import pytest
from pyspark.sql import Row

from twofold_spark.mirror import shard_folding
from twofold_spark.mirror.shard_folding import DueShard, FoldedTable, ShardFolder
from twofold_spark.sinks.interface import MirrorTable
from twofold_spark.sources.commit_records import OffsetRange
from twofold_spark.sources.kafka_reader import PARTITION_BITS, number_topics
from twofold_spark.sources.registry import Subject

NOTHING = cast("Any", None)
BIGINT, TEXT = {"name": "id", "type": "long"}, {"name": "note", "type": ["null", "string"], "default": None}


def envelope(*columns: dict[str, Any]) -> dict[str, Any]:
    row = {"type": "record", "name": "Row", "fields": list(columns)}
    return {"type": "record", "name": "Envelope", "fields": [{"name": "after", "type": ["null", row]}]}


class Merger:
    """Knows the subjects of one member's table."""

    def __init__(self, prefix: str, *versions: dict[str, Any], keyed: bool = True) -> None:
        numbered = tuple((number + len(prefix) * 10, each) for number, each in enumerate(versions, 1))
        self.subjects = Subject(f"{prefix}-value", numbered), Subject(f"{prefix}-key", ())
        self.keyed = keyed

    def find_subjects(self, _table: MirrorTable) -> tuple[Subject, Subject] | None:
        return self.subjects if self.keyed else None


def due(prefix: str, merger: Merger, *, key: tuple[str, ...] = ("id",), rows: int = 3) -> DueShard:
    topic = f"{prefix}.public.accounts"
    table = MirrorTable(topic, "public", "accounts", key)
    ranges = [OffsetRange(topic, 2, 10, 9 + rows, rows)]
    return DueShard(prefix, table, ranges, cast("Any", merger), NOTHING, from_truncate=False)


EAST = due("east", Merger("east", envelope(BIGINT), envelope(BIGINT, TEXT)))
WEST = due("western", Merger("western", envelope(BIGINT, TEXT)))


@pytest.mark.parametrize(
    ("other", "alike"),
    [
        (WEST, True),
        (replace(WEST, from_truncate=True), False),
        (due("western", Merger("western", envelope(BIGINT))), False),
        (due("western", Merger("western", envelope(BIGINT, {**TEXT, "type": "string"}))), False),
        (due("western", Merger("western", envelope(BIGINT, TEXT), keyed=False)), False),
        (due("western", Merger("western", envelope(BIGINT, TEXT)), key=("note",)), False),
        (due("western", Merger("western", envelope(BIGINT, TEXT)), key=("_key_id",)), False),
    ],
)
def test_shards_are_folded_at_once_if_their_rows_are_alike(
    monkeypatch: pytest.MonkeyPatch, other: DueShard, *, alike: bool
) -> None:
    """Whatever versions of the row are registered: all are read into the same columns."""
    made: list[tuple[Subject, ...]] = []

    class Records:
        def __init__(self, *subjects: Subject, decode_all: bool) -> None:
            assert not decode_all
            self.subjects = subjects
            made.append(subjects)

    monkeypatch.setattr(shard_folding, "LastRecords", Records)
    with closing(ShardFolder(NOTHING, 1)) as folder:
        for _ in range(2):
            assert (folder._find_last_records([EAST, other]) is not None) == alike
    assert len(made) == alike, "the expressions are made once"


def counted(prefix_number: int, n: int, **special: Any) -> Row:
    plain = {"partial": False, "keyless": False, "unreadable": 0, "truncate": None}
    place = (prefix_number << PARTITION_BITS) + 2
    return Row(**{"partition": place, "n": n, "changes": n - 1, "bytes": 10 * n, **plain, **special})


def test_records_are_counted_for_each_member() -> None:
    dues = [EAST, due("western", Merger("western"), rows=5)]
    assert number_topics(each.table.topic for each in dues) == {
        "east.public.accounts": 0,
        "western.public.accounts": 1 << PARTITION_BITS,
    }
    folded = FoldedTable(ExitStack())
    assert shard_folding._note_counts(dues, [counted(1, 5), counted(0, 3)], folded)
    assert (folded.changes, folded.bytes) == ({"east": 2, "western": 4}, {"east": 30, "western": 50})
    assert not shard_folding._note_counts(dues, [counted(1, 3), counted(0, 5)], folded), "the other's"
    assert not shard_folding._note_counts(dues, [counted(0, 3)], folded), "one has none"


@pytest.mark.parametrize("special", [{"partial": True}, {"keyless": True}, {"unreadable": 1}, {"truncate": 7}])
def test_what_wants_more_than_a_last_state_is_folded_by_itself(special: dict[str, Any]) -> None:
    assert not shard_folding._is_special([counted(0, 3), counted(1, 3)])
    assert shard_folding._is_special([counted(0, 3), counted(1, 3, **special)])
