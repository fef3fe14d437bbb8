"""Which shards of a table are folded at once, and how their records are told apart."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest
from pyspark.sql import Row
from pyspark.sql.types import StructType

from twofold_spark.mirror import shard_folding
from twofold_spark.mirror.shard_folding import DueShard, FoldedTable, ShardFolder
from twofold_spark.sinks.interface import MirrorTable
from twofold_spark.sources.commit_records import OffsetRange
from twofold_spark.sources.kafka_reader import PARTITION_BITS, number_topics
from twofold_spark.sources.registry import Subject

NOTHING = cast("Any", None)
ADMIN = cast("Any", SimpleNamespace(kafka=None))
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
    ranges = [OffsetRange(topic, 2, 10, 9 + rows, rows, before=100)]
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
    monkeypatch.setattr(shard_folding, "LastRecords", Records)
    subjects = shard_folding._find_subjects([EAST, other])
    with closing(ShardFolder(ADMIN, 1)) as folder:
        found = folder._find_last_records("public.accounts", subjects) if subjects else None
        assert (found is not None) == alike
        if found is not None:
            assert found.subjects == tuple(due.merger.subjects[0] for due in (EAST, other))  # type: ignore[attr-defined]
        assert folder._last_records == ({"public.accounts": found} if alike else {})


class Records:
    """Their expressions are not made, which takes Spark."""

    made: ClassVar[list[list[str]]] = []

    def __init__(self, *subjects: Subject, decode_all: bool) -> None:
        assert not decode_all
        self.subjects = subjects
        self.made.append([f"{each.name} {len(each.versions)}" for each in subjects])


def test_expressions_are_made_once_for_all_members(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever of them a batch has, and until one has other versions."""
    monkeypatch.setattr(shard_folding, "LastRecords", Records)
    monkeypatch.setattr(Records, "made", made := list[list[str]]())
    east, west, north = (Merger(name, envelope(BIGINT, TEXT)).subjects[0] for name in ("east", "west", "north"))
    altered = replace(west, versions=(*west.versions, (99, envelope(BIGINT, TEXT))))
    widened = replace(east, versions=(*east.versions, (98, envelope(BIGINT, {**TEXT, "name": "added"}))))
    with closing(ShardFolder(ADMIN, 1)) as folder:
        for subjects in ([east, west], [north, west], [east, west], [altered, north]):
            assert folder._find_last_records("public.accounts", subjects) is not None
        assert folder._find_last_records("public.accounts", [widened, north]) is None
        assert folder._find_last_records("public.accounts", [widened, widened]) is not None
    two = ["east-value 1", "west-value 1"]
    assert made == [two, [*two, "north-value 1"], ["east-value 1", "west-value 2", "north-value 1"], ["east-value 2"]]


def test_a_table_with_values_that_were_not_sent_is_folded_shard_by_shard_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried, number = list[int](), 0

    class Counted(Records):
        def select(self, raw: Any) -> Any:
            return raw

        def count_partitions(self, _: Any) -> list[Row]:
            tried.append(number)
            return [counted(0, 3, partial=True), counted(1, 3)]

    cached = SimpleNamespace(schema={"image": SimpleNamespace(dataType=StructType())})
    monkeypatch.setattr(shard_folding, "LastRecords", Counted)
    monkeypatch.setattr("twofold_spark.sources.kafka_reader.are_decided", lambda *_: True)
    monkeypatch.setattr("twofold_spark.sources.kafka_reader.read_ranges", lambda *_, **__: None)
    monkeypatch.setattr(shard_folding, "cache_until_closed", lambda *_: cached)
    monkeypatch.setattr(shard_folding, "_fold_alone", lambda *_: None)
    with closing(ShardFolder(ADMIN, 1)) as folder:
        for number in range(45):  # noqa: B007 - `Records` notes it
            folder.fold(NOTHING, [EAST, WEST], NOTHING)
    assert tried == [0, 21, 42]


def test_what_a_fold_has_cached_is_freed_at_the_end_also_if_no_cut_came(monkeypatch: pytest.MonkeyPatch) -> None:
    freed: list[str] = []

    def fail(_spark: Any, shard: DueShard, _read: Any, folded: FoldedTable) -> None:
        folded.caches.callback(freed.append, shard.prefix)
        raise ZeroDivisionError

    monkeypatch.setattr(shard_folding, "_fold_alone", fail)
    with closing(ShardFolder(NOTHING, 1)) as folder:
        with pytest.raises(ZeroDivisionError):
            folder.fold(NOTHING, [EAST], NOTHING)
        assert freed == []
    assert freed == ["east"]


def counted(prefix_number: int, n: int, **special: Any) -> Row:
    plain = {"partial": False, "keyless": False, "unreadable": 0, "truncate": None, "lsn": 90}
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
    later = [counted(0, 3, lsn=100), counted(1, 5)]
    assert not shard_folding._note_counts(dues, later, folded), "its topic was made again"


@pytest.mark.parametrize("special", [{"partial": True}, {"keyless": True}, {"unreadable": 1}, {"truncate": 7}])
def test_what_wants_more_than_a_last_state_is_folded_by_itself(special: dict[str, Any]) -> None:
    assert not shard_folding._is_special([counted(0, 3), counted(1, 3)])
    assert shard_folding._is_special([counted(0, 3), counted(1, 3, **special)])
