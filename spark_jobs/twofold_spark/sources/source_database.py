"""The source database, read only, over JDBC: for `verify`.

Each statement is one round trip, and its answer is one JSON text. So a million rows need no more
calls into the JVM than a thousand buckets.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from twofold_common.table_names import quote_identifier, quote_literal
from twofold_spark.errors import SetupError
from twofold_spark.sources.postgres_connection import open_connection, run_statement

_SETTINGS = (
    "SET DateStyle = ISO",
    "SET TimeZone = 'UTC'",
    "SET IntervalStyle = postgres",
    "SET bytea_output = hex",
    "SET extra_float_digits = 1",
    # As the connector's sessions: names inside values, such as regclass, are always qualified.
    "SET search_path = ''",
    "SET quote_all_identifiers = off",
    "SET row_security = off",  # an error is better than rows that a policy hides
    "SET default_transaction_read_only = on",
)


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """A column of a source table.

    `type` names the base type below domains; `_int4` is an array.
    """

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """What a publication has of a table: its columns, and the rows that pass its filter."""

    columns: frozenset[str]
    row_filter: str | None

    @property
    def where(self) -> str:
        return f" WHERE {self.row_filter}" if self.row_filter is not None else ""


class SourceDatabase:
    """One connection to the source; the owner closes it."""

    def __init__(self, spark: SparkSession, url: str) -> None:
        self._connection: Any = open_connection(spark, url, role="the source", option="--source")
        for setting in _SETTINGS:
            run_statement(self._connection, setting)

    def close(self) -> None:
        self._connection.close()

    def read_rows(self, query: str) -> list[list[Any]]:
        """Run a query; return its rows as lists of JSON values."""
        text = self.read_value(f"SELECT coalesce(json_agg(row_to_json(q)), '[]')::text FROM ({query}) q")
        return [list(row.values()) for row in json.loads(text)]

    def read_value(self, query: str) -> str:
        try:
            return str(run_statement(self._connection, query))
        except Py4JJavaError as error:
            raise SetupError(f"the source rejects a query of verify: {error.java_exception.getMessage()}") from error

    def read_columns(self, schema: str, table: str) -> list[SourceColumn]:
        """Return the table's present columns; an empty list if there is no such table."""
        found = self.read_rows(
            "WITH RECURSIVE base(attnum, name, oid) AS ("
            "SELECT attnum, attname, atttypid FROM pg_attribute WHERE attrelid = to_regclass("
            f"{quote_literal(quote_identifier(schema, table))}) AND attnum > 0 AND NOT attisdropped "
            "UNION ALL SELECT attnum, b.name, typbasetype FROM base b JOIN pg_type t ON t.oid = b.oid WHERE typtype = 'd') "
            "SELECT b.name, typname FROM base b JOIN pg_type t ON t.oid = b.oid "
            "WHERE typtype <> 'd' ORDER BY attnum"
        )
        return [SourceColumn(name, kind) for name, kind in found]

    def select_from(self, schema: str, table: str, published: PublishedTable | None) -> str:
        """Build what follows FROM, for the rows that are replicated under this table's name.

        Rows of tables that inherit from it are in it too, and are replicated under theirs. Those of
        a partitioned table are all in its partitions.
        """
        name = quote_identifier(schema, table)
        kind = self.read_value(f"SELECT relkind FROM pg_class WHERE oid = to_regclass({quote_literal(name)})")
        return f"{'' if kind == 'p' else 'ONLY '}{name}{published.where if published is not None else ''}"

    def read_publication(self, name: str) -> dict[tuple[str, str], PublishedTable] | None:
        """Return the tables of a publication by schema and name; None if it does not exist."""
        is_named = f"pubname = {quote_literal(name)}"
        if self.read_value(f"SELECT count(*) FROM pg_publication WHERE {is_named}") == "0":
            return None
        # Before 18 `attnames` may have generated columns, which are not published.
        columns = (
            "ARRAY(SELECT attname FROM pg_attribute WHERE attrelid = format('%I.%I', schemaname, tablename)::regclass "
            "AND attname = ANY (attnames) AND (attgenerated = '' OR current_setting('server_version_num')::int >= 180000))"
        )
        found = self.read_rows(
            f"SELECT schemaname, tablename, {columns} AS columns, rowfilter FROM pg_publication_tables "
            f"WHERE {is_named} ORDER BY 1, 2"
        )
        return {
            (schema, table): PublishedTable(frozenset(published), row_filter)
            for schema, table, published, row_filter in found
        }
