"""The fold that judges the connector is judged here: each rule of the envelope, and texts that are
one value.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pytest

from suites.folding import Folded, fold
from suites.texts import Kind, canonical, of_avro
from suites.topics import Record

COLUMNS = ("id", "v")


def record(key: bytes | None, op: str, before: Any = None, after: Any = None, **lists: Any) -> Record:
    value = {"op": op, "before": before, "after": after, "unchanged": [], "special": [], **lists}
    return Record("t", key, {**value, "source": {"schema": "public", "table": "t"}}, COLUMNS)


def rows(*records: Record) -> tuple[list[dict[str, str]], Folded]:
    folded = fold(records)["public.t"]
    return sorted((dict(row) for row in folded.rows()), key=str), folded


def test_rows_by_key() -> None:
    one, two = {"id": 1, "v": "a"}, {"id": 2, "v": "b"}
    assert rows(record(b"1", "c", after=one), record(b"2", "r", after=two))[0] == [
        {"id": "1", "v": "a"},
        {"id": "2", "v": "b"},
    ]
    ended = [record(b"1", "c", after=one), record(b"1", "d", before=one), Record("t", b"1", None, ())]
    assert rows(*ended)[0] == []
    assert rows(record(b"1", "c", after=one), record(None, "t"), record(b"2", "c", after=two))[0] == [
        {"id": "2", "v": "b"}
    ]


def test_an_unchanged_column_is_the_former_rows_also_under_another_key() -> None:
    first = record(b"1", "c", after={"id": 1, "v": "large"})
    update = record(b"1", "u", after={"id": 1, "v": None}, unchanged=["v"])
    gone = record(b"1", "d", before={"id": 1, "v": None})
    moved = record(b"2", "c", before={"id": 1, "v": None}, after={"id": 2, "v": None}, unchanged=["v"])
    assert rows(first, update)[0] == [{"id": "1", "v": "large"}]
    assert rows(first, gone, Record("t", b"1", None, ()), moved)[0] == [{"id": "2", "v": "large"}]


def test_a_special_value_is_its_text() -> None:
    special = [{"row": "after", "column": "v", "text": "infinity"}]
    assert rows(record(b"1", "c", after={"id": 1, "v": None}, special=special))[0] == [{"id": "1", "v": "infinity"}]


def test_whole_rows() -> None:
    row = {"id": 1, "v": "a"}
    found, folded = rows(record(None, "c", after=row), record(None, "c", after=row), record(None, "d", before=row))
    assert (found, folded.unmatched) == ([{"id": "1", "v": "a"}], 0)
    found, folded = rows(record(None, "u", before=row, after={"id": 2, "v": "a"}))
    assert (found, folded.unmatched) == ([{"id": "2", "v": "a"}], 1)


@pytest.mark.parametrize(
    ("value", "text", "kind"),
    [
        (True, "t", Kind("bool")),
        (1e20, "1e+20", Kind("float8")),
        (0.10000000149011612, "0.1", Kind("float4")),
        (float("nan"), "NaN", Kind("float8")),
        (Decimal("1.50"), "1.50", Kind("numeric")),
        (date(99, 1, 2), "0099-01-02", Kind("date")),
        (time(1, 2, 3, 40000), "01:02:03.04", Kind("time")),
        (datetime(2020, 1, 2, tzinfo=UTC), "2020-01-02 00:00:00+00", Kind("timestamptz")),
        (b"\x00\xff", "\\x00ff", Kind("bytea")),
        ([], "{}", Kind("int4", ",")),
        ([1, None], "{1,NULL}", Kind("int4", ",")),
        (["NULL", 'a"b\\', "", "a,b"], '{"NULL","a\\"b\\\\","","a,b"}', Kind("text", ",")),
        (["(1,1),(0,0)", "(2,2),(1,1)"], "{(1,1),(0,0);(2,2),(1,1)}", Kind("box", ";")),
        ("{{1,2},{3,4}}", "{{1,2},{3,4}}", Kind("int4", ",")),
        ("[2:3]={1,2}", "[2:3]={1,2}", Kind("int4", ",")),
    ],
)
def test_one_value_has_one_text(value: Any, text: str, kind: Kind) -> None:
    assert canonical(of_avro(value), kind) == canonical(text, kind)


def test_other_values_have_other_texts() -> None:
    assert canonical(of_avro(Decimal("1.5")), Kind("numeric")) != canonical("1.50", Kind("numeric"))
    assert canonical(of_avro(["a", None]), Kind("text", ",")) != canonical('{a,"NULL"}', Kind("text", ","))
    assert canonical(of_avro(0.1), Kind("float8")) != canonical("0.10000000000000002", Kind("float8"))
