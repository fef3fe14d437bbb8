"""Compares folded topics with the tables that PostgreSQL has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import psycopg
from psycopg import pq, sql

from suites.folding import Folded
from suites.texts import Kind, canonical

SESSION: Final = (
    "SET datestyle = ISO; SET timezone = UTC; SET intervalstyle = postgres; SET bytea_output = hex; "
    "SET extra_float_digits = 1; SET client_encoding = UTF8; SET search_path = DEFAULT; SET row_security = off"
)
COLUMNS: Final = """
WITH RECURSIVE base (oid, type) AS (
  SELECT oid, oid FROM pg_type WHERE typbasetype = 0
  UNION ALL SELECT t.oid, b.type FROM pg_type t JOIN base b ON t.typbasetype = b.oid
)
SELECT p.schemaname, p.tablename, a.attname,
  coalesce(e.typname, t.typname), CASE WHEN e.oid IS NOT NULL THEN e.typdelim::text ELSE '' END
FROM pg_publication_tables p
JOIN pg_namespace n ON n.nspname = p.schemaname
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
  AND a.attgenerated = '' AND a.attname = ANY (p.attnames)
LEFT JOIN base b ON b.oid = a.atttypid
LEFT JOIN pg_type t ON t.oid = b.type
LEFT JOIN base be ON be.oid = CASE WHEN t.typcategory = 'A' THEN t.typelem END
LEFT JOIN pg_type e ON e.oid = be.type
WHERE p.pubname = %s
ORDER BY p.schemaname, p.tablename, a.attnum
"""
SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of one table: equal, or what differs."""

    table: str
    state: str
    rows: int
    words: str = ""


Columns = Mapping[str, Kind]
_Rows = Counter[tuple[str | None, ...]]


def compare(dsn: str, publication: str, folded: Mapping[str, Folded]) -> list[Verdict]:
    """One verdict for each published table."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(SESSION)
        return [
            _judge(connection, table, columns, folded.get(f"{table[0]}.{table[1]}"))
            for table, columns in published(connection, publication).items()
        ]


def published(connection: psycopg.Connection, publication: str) -> dict[tuple[str, str], dict[str, Kind]]:
    """Schema and name of the tables, and their columns in order."""
    tables: dict[tuple[str, str], dict[str, Kind]] = {}
    for schema, table, column, base, delimiter in connection.execute(COLUMNS, [publication]):
        columns = tables.setdefault((schema, table), {})
        if column is not None:
            columns[column] = Kind(base, delimiter)
    return tables


def _judge(
    connection: psycopg.Connection,
    table: tuple[str, str],
    columns: Columns,
    folded: Folded | None,
) -> Verdict:
    name = ".".join(table)
    there = _source(connection, table, columns)
    told: _Rows = Counter(
        tuple(canonical(row.get(column), kind) for column, kind in columns.items())
        for row in (folded.rows() if folded else ())
    )
    rows = there.total()
    if there == told:
        return Verdict(name, "equal", rows)
    missing, extra = there - told, told - there
    words = f"{missing.total()} missing, {extra.total()} too many of {rows}; columns {list(columns)}"
    words += f"; missing {list(missing)[:SHOWN]}; too many {list(extra)[:SHOWN]}"
    if folded is not None:
        words += f"; operations {dict(folded.operations)}, {folded.unmatched} old rows not there"
    return Verdict(name, "different", rows, words)


def _source(connection: psycopg.Connection, table: tuple[str, str], columns: Columns) -> _Rows:
    """The table's own rows, each value as its type's output function writes it."""
    query = sql.SQL("SELECT {} FROM ONLY {}").format(
        sql.SQL(", ").join(map(sql.Identifier, columns)), sql.Identifier(*table)
    )
    result = connection.pgconn.exec_(query.as_bytes(connection))
    assert result.status == pq.ExecStatus.TUPLES_OK, (table, result.error_message)
    kinds = list(columns.values())
    rows: _Rows = Counter()
    for row in range(result.ntuples):
        values = (result.get_value(row, column) for column in range(result.nfields))
        rows[tuple(canonical(_text(value), kind) for value, kind in zip(values, kinds, strict=True))] += 1
    return rows


def _text(value: bytes | None) -> str | None:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        # A "char" over 127: PostgreSQL 15 writes the byte itself, later ones \\ooo, and so do the
        # topics (docs/reference/types.md).
        return "".join(f"\\{byte:03o}" if byte > 127 else chr(byte) for byte in value)
