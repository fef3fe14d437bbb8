"""Batches of Arrow have the changes of the recorded transactions, and end where a bookmark may be
stored.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import fastavro
import pyarrow as pa
import pytest

from twofold_avro.schemas import envelope_schema
from twofold_avro.shapes import ColumnShape, TableShape, TypeShape
from twofold_reader.arrow import ArrowBatch, split_into_batches
from twofold_reader.changes import Change, EnvelopeSchema
from twofold_reader.whole_transactions import Transaction
from unit.reader.test_vector import VECTOR, RecordedTopics, read


def batches(rows: int) -> list[ArrowBatch]:
    return list(split_into_batches(read(RecordedTopics(1)), rows))


def changes_of(batch: ArrowBatch) -> dict[str, list[dict[str, Any]]]:
    return {table: found.to_pylist() for table, found in batch.tables.items()}


@pytest.mark.parametrize("rows", [1, 2, 3, 1000])
def test_each_table_has_its_changes_in_their_order(rows: int) -> None:
    found: dict[str, list[Any]] = {}
    for batch in batches(rows):
        assert sum(each.num_rows for each in batch.tables.values()) <= rows
        for table, changes in changes_of(batch).items():
            found.setdefault(table, []).extend(changes)
    expected: dict[str, list[Any]] = {}
    for transaction in read(RecordedTopics(1)):
        for change in transaction.changes:
            fields = "op", "before", "after", "unchanged", "special", "number"
            row = {each: getattr(change, each) for each in fields}
            row |= {"commit_lsn": transaction.commit_lsn, "time": transaction.time}
            expected.setdefault(change.table, []).append(row)
    assert found == expected


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_a_bookmark_says_which_transactions_are_whole(rows: int) -> None:
    marks = [each.bookmark for each in read(RecordedTopics(1))]
    counts = [len(each["changes"]) for each in VECTOR["transactions"]]
    behind = {mark: sum(counts[: at + 1]) for at, mark in enumerate(marks)}
    read_so_far = with_mark = 0
    for batch in batches(rows):
        read_so_far += sum(each.num_rows for each in batch.tables.values())
        if batch.bookmark is None:
            assert read_so_far not in behind.values(), "a bookmark was possible"
        else:
            assert behind[batch.bookmark] == read_so_far
            with_mark += 1
    assert with_mark


def test_what_has_come_is_not_kept_back() -> None:
    def come_slowly() -> Iterator[Transaction | None]:
        for transaction in read(RecordedTopics(1)):
            yield transaction
            yield None
            yield None

    found = list(split_into_batches(come_slowly(), 1000))
    assert [each.bookmark for each in found] == [each.bookmark for each in read(RecordedTopics(1))]


def test_tables_that_are_loading_or_lack_something_are_named() -> None:
    (batch,) = batches(1000)
    assert batch.loading == {"bank.public.account"}
    assert batch.stale == batch.skipped == {"bank.public.account"}


def test_each_type_is_arrow_s() -> None:
    array = TypeShape(0, "pg_catalog", "_uuid", "array", element=TypeShape(0, "pg_catalog", "uuid"))
    identity = UUID("01234567-89ab-cdef-0123-456789abcdef")
    bounded = TypeShape(0, "pg_catalog", "numeric", "base", typmod=(12 << 16 | 2) + 4)
    columns: dict[str, tuple[TypeShape, Any, pa.DataType, Any]] = {
        "b": (TypeShape(0, "pg_catalog", "bool"), True, pa.bool_(), True),
        "i": (TypeShape(0, "pg_catalog", "int4"), 7, pa.int32(), 7),
        "l": (TypeShape(0, "pg_catalog", "int8"), 2**40, pa.int64(), 2**40),
        "f": (TypeShape(0, "pg_catalog", "float8"), 0.1, pa.float64(), 0.1),
        "bytes": (TypeShape(0, "pg_catalog", "bytea"), b"\0", pa.binary(), b"\0"),
        "exact": (bounded, Decimal("1.50"), pa.decimal128(12, 2), Decimal("1.50")),
        "free": (TypeShape(0, "pg_catalog", "numeric"), "1.50", pa.string(), "1.50"),
        "day": (TypeShape(0, "pg_catalog", "date"), date(2024, 2, 29), pa.date32(), date(2024, 2, 29)),
        "clock": (TypeShape(0, "pg_catalog", "time"), time(1, 2, 3), pa.time64("us"), time(1, 2, 3)),
        "zoned": (
            TypeShape(0, "pg_catalog", "timestamptz"),
            datetime(2024, 2, 29, tzinfo=UTC),
            pa.timestamp("us", "UTC"),
            datetime(2024, 2, 29, tzinfo=UTC),
        ),
        "local": (
            TypeShape(0, "pg_catalog", "timestamp"),
            datetime(2024, 2, 29),  # noqa: DTZ001  (a wall clock's time)
            pa.timestamp("us"),
            datetime(2024, 2, 29),  # noqa: DTZ001
        ),
        "one": (TypeShape(0, "pg_catalog", "uuid"), identity, pa.string(), str(identity)),
        "many": (array, [identity, None], pa.list_(pa.string()), [str(identity), None]),
        "a b": (TypeShape(0, "pg_catalog", "jsonb"), "{}", pa.string(), "{}"),
    }
    shape = TableShape(1, "public", "t", tuple(ColumnShape(name, each[0]) for name, each in columns.items()))
    envelope = envelope_schema(shape, "bank")
    fastavro.parse_schema(envelope)
    schema = EnvelopeSchema(json.dumps(envelope), lambda _: {})
    row = {name: each[1] for name, each in columns.items()}
    change = Change("public.t", "c", None, row, [], [], 1, None, schema)
    (transaction,) = list(read(RecordedTopics(1)))[:1]
    transaction.changes = iter([change])
    (batch,) = split_into_batches([transaction], 10)
    after = batch.tables["public.t"].column("after")
    assert after.type == pa.struct([(name, each[2]) for name, each in columns.items()])
    assert after.to_pylist() == [{name: each[3] for name, each in columns.items()}]
