"""From what a reader shows to a table's rows, and from values to PostgreSQL's literals.

Imports nothing of the product.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

Rows = dict[int, dict[str, Any]]
"""By id: the other columns."""


class CannotReadError(Exception):
    """A reader ended with an error, or shows what is no table; the message says why."""


def fold_envelopes(envelopes: Iterable[Mapping[str, Any]], *, lists: bool) -> Rows:
    """The table after the changes of one topic, in its order.

    `lists`: look at `special` and `unchanged`.
    """
    rows: Rows = {}
    for envelope in envelopes:
        match envelope["op"]:
            case "t":
                rows.clear()
            case "d":
                rows.pop(envelope["before"]["id"], None)
            case _:
                row = dict(envelope["after"])
                if lists:
                    held = rows.get(row["id"], {})
                    row |= {name: held.get(name) for name in envelope["unchanged"]}
                    row |= {s["column"]: s["text"] for s in envelope["special"] if s["row"] == "after"}
                rows[row["id"]] = row
    return rows


def fold_changelog(changes: Iterable[tuple[str, Sequence[Any]]], columns: Sequence[str]) -> Rows:
    """The table after Flink's changes. What is taken back must be there."""
    held: list[list[Any]] = []
    for kind, row in changes:
        if kind in ("INSERT", "UPDATE_AFTER"):
            held.append(list(row))
        elif list(row) in held:
            held.remove(list(row))
        else:
            raise CannotReadError("takes back a row that never was")
    rows: Rows = {}
    for key, *values in held:
        if key in rows:
            raise CannotReadError("a row is there twice")
        rows[key] = dict(zip(columns, values, strict=True))
    return rows


def literal(value: Any) -> str | None:
    """A literal of PostgreSQL, whatever the column's type is."""
    match value:
        case None:
            return None
        case bytes():
            return f"\\x{value.hex()}"
        case list():
            items = ("NULL" if item is None else _quoted(str(literal(item))) for item in value)
            return f"{{{','.join(items)}}}"
        case date():
            return value.isoformat()
        case _:
            return str(value)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def value_of(carried: Any, type_: str) -> Any:
    """The value of a column, from Avro's own type without its logical one: numbers since 1970,
    bytes of decimals.
    """
    if isinstance(carried, list):
        return [value_of(item, type_.removesuffix("[]")) for item in carried]
    match type_.partition("(")[0], carried:
        case "date", int():
            return date(1970, 1, 1) + timedelta(days=carried)
        case "time", int():
            return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=carried)).time()
        case "timestamp", int():
            return datetime(1970, 1, 1) + timedelta(microseconds=carried)  # noqa: DTZ001  (the type has no zone)
        case "timestamptz", int():
            return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=carried)
        case (("numeric" | "cents"), bytes()):
            # All bounded ones of the samples have two digits behind the point.
            return Decimal(int.from_bytes(carried, "big", signed=True)).scaleb(-2)
        case _:
            return carried
