"""A table with a column of each kind of type, for programs that read it."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

from fixtures.spark import Lake
from twofold_avro.shapes import ColumnShape, TableShape, TypeShape

_PRICE = TypeShape(0, "pg_catalog", "numeric", typmod=(12 << 16 | 2) + 4)
_TEXT = TypeShape(0, "pg_catalog", "text")
_TYPES = {
    "id": TypeShape(0, "pg_catalog", "int8"),
    "price": _PRICE,
    "free": TypeShape(0, "pg_catalog", "numeric"),
    "at": TypeShape(0, "pg_catalog", "timestamptz"),
    "local": TypeShape(0, "pg_catalog", "timestamp"),
    "day": TypeShape(0, "pg_catalog", "date"),
    "uid": TypeShape(0, "pg_catalog", "uuid"),
    "doc": TypeShape(0, "pg_catalog", "jsonb"),
    "raw": TypeShape(0, "pg_catalog", "bytea"),
    "tags": TypeShape(0, "pg_catalog", "_text", kind="array", element=_TEXT),
}
EVERY = TableShape(
    1, "public", "every", tuple(ColumnShape(c, t, in_key=c == "id", in_identity=c == "id") for c, t in _TYPES.items())
)
_AT = dt.datetime(2024, 2, 29, 12, 0, 0, 1, tzinfo=dt.UTC)


def make_row(key: int, note: str) -> dict[str, Any]:
    return {
        "id": key,
        "price": Decimal("12345.67"),
        "free": "1e400",
        "at": _AT,
        "local": _AT.replace(tzinfo=None),
        "day": _AT.date(),
        "uid": "01234567-89ab-cdef-0123-456789abcdef",
        "doc": json.dumps({"note": note}),
        "raw": b"\x00\xff",
        "tags": [note, None],
    }


def mirror_twice(lake: Lake) -> None:
    """Three rows, then all of them changed and one deleted."""
    lake.writer.table(EVERY)
    for note in ("one", "two"):
        with lake.writer.commit() as tx:
            for key in range(3):
                tx.upsert("every", make_row(key, note))
            if note == "two":
                tx.delete("every", 1)
        lake.mirror()
