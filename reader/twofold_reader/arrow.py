"""Whole transactions as batches of Arrow, for those who load them elsewhere.

Needs pyarrow: `pip install 'twofold-reader[arrow]'`. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import pyarrow as pa

from twofold_avro.names import postgres_name
from twofold_reader.changes import Change, EnvelopeSchema, Row
from twofold_reader.whole_transactions import Transaction

_TEXTS: Final = pa.list_(pa.string())
_SPECIAL: Final = pa.list_(pa.struct([("row", pa.string()), ("column", pa.string()), ("text", pa.string())]))
_BY_NAME: Final = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_BY_LOGICAL_TYPE: Final = {
    "date": pa.date32(),
    "time-micros": pa.time64("us"),
    "local-timestamp-micros": pa.timestamp("us"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
}


@dataclass(frozen=True, slots=True, eq=False)
class ArrowBatch:
    """Changes of whole transactions; a large transaction is several batches."""

    tables: dict[str, pa.RecordBatch]
    """Each table's changes in their order, by `schema.table`."""
    bookmark: str | None
    """The place behind the batch; None: its last transaction goes on in the next batch."""
    loading: frozenset[str]
    """Topics that are being loaded: what their tables' rows say is not whole yet."""
    stale: frozenset[str]
    """Topics that lack changes that PostgreSQL did not send, until the tables are loaded again."""
    skipped: frozenset[str]
    """Topics that lack rows which a person had skipped; `twofold audit` has their positions."""


def split_into_batches(transactions: Iterable[Transaction | None], rows: int) -> Iterator[ArrowBatch]:
    """Yield batches of so many changes at most. None: no transaction comes at present, so that what
    has come is not kept back.

    A batch also ends where a table's schema changes.
    """
    batch = _OpenBatch()
    for transaction in transactions:
        if transaction is None:
            if batch.count:
                yield batch.close()
                batch = _OpenBatch()
            continue
        for change in transaction.changes:
            if batch.count >= rows or not batch.takes(change):
                yield batch.close()
                batch = _OpenBatch()
            batch.add(transaction, change)
        batch.bookmark = transaction.bookmark
    if batch.count:
        yield batch.close()


class _OpenBatch:
    """Changes that become a batch."""

    def __init__(self) -> None:
        self.count = 0
        self.bookmark: str | None = None
        self._changes: dict[str, list[tuple[Transaction, Change]]] = {}
        self._loading: set[str] = set()
        self._stale: set[str] = set()
        self._skipped: set[str] = set()

    def takes(self, change: Change) -> bool:
        """Whether the change has the same columns as its table has here."""
        return change.table not in self._changes or self._changes[change.table][0][1].schema is change.schema

    def add(self, transaction: Transaction, change: Change) -> None:
        self.count += 1
        self.bookmark = None
        self._changes.setdefault(change.table, []).append((transaction, change))
        self._loading.update(transaction.loading)
        self._stale.update(transaction.stale)
        self._skipped.update(transaction.skipped)

    def close(self) -> ArrowBatch:
        tables = {table: _record_batch(changes) for table, changes in self._changes.items()}
        named = frozenset(self._loading), frozenset(self._stale), frozenset(self._skipped)
        return ArrowBatch(tables, self.bookmark, *named)


def _record_batch(found: list[tuple[Transaction, Change]]) -> pa.RecordBatch:
    row, uuids = _row_type(found[0][1].schema)
    transactions, changes = zip(*found, strict=True)

    def plain(rows: Iterable[Row | None]) -> Iterator[Row | None]:
        for each in rows:
            yield each if each is None or not uuids else {**each, **{name: _text(each[name]) for name in uuids}}

    columns: dict[str, tuple[pa.DataType, Iterable[Any]]] = {
        "op": (pa.string(), (each.op for each in changes)),
        "before": (row, plain(each.before for each in changes)),
        "after": (row, plain(each.after for each in changes)),
        "unchanged": (_TEXTS, (each.unchanged for each in changes)),
        "special": (_SPECIAL, (each.special for each in changes)),
        "number": (pa.int64(), (each.number for each in changes)),
        "commit_lsn": (pa.int64(), (each.commit_lsn for each in transactions)),
        "time": (pa.timestamp("us", "UTC"), (each.time for each in transactions)),
    }
    arrays = [pa.array(list(values), kind) for kind, values in columns.values()]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


@cache
def _row_type(schema: EnvelopeSchema) -> tuple[pa.DataType, tuple[str, ...]]:
    """Return the type of a table's row, and its columns of UUIDs, which are text here."""
    types = {postgres_name(each["name"]): _arrow_type(each["type"]) for each in schema.columns}
    uuids = (postgres_name(each["name"]) for each in schema.columns if "'uuid'" in str(each["type"]))
    return pa.struct(list(types.items())), tuple(uuids)


def _arrow_type(schema: Any) -> pa.DataType:
    match schema:
        case ["null", inner]:
            return _arrow_type(inner)
        case {"type": "array", "items": items}:
            return pa.list_(_arrow_type(items))
        case {"logicalType": "decimal", "precision": precision, "scale": scale}:
            return pa.decimal128(precision, scale)
        case {"logicalType": name} if name in _BY_LOGICAL_TYPE:
            return _BY_LOGICAL_TYPE[name]
        case {"type": name} | name:
            return _BY_NAME[name]


def _text(value: Any) -> Any:
    if isinstance(value, list):
        return [_text(each) for each in value]
    return None if value is None else str(value)
