"""Estimates loads for people: the tables' row counts, and who may be writing to them.

It uses one session, whatever the number of tables, and only reads.
"""

from __future__ import annotations

from collections.abc import Collection

import psycopg

from twofold.source.connection import PlainConnection
from twofold.source.locks import TableWriter, writers, written_tables
from twofold.source.primary import connect_to_primary
from twofold.source.published_tables import DescribedTable, describe_filters
from twofold.source.table_copier import planned_rows

LOCK_WAIT_MS = 200
LOCKED_MAX = 5
"""The number of locked tables that are waited for; the other tables get no estimate."""

Name = tuple[str, str]
"""Schema and table."""


def estimate_loads(
    conninfo: str, publication: str, tables: Collection[Name]
) -> dict[Name, tuple[int, tuple[TableWriter, ...]]]:
    """Return the planner's row count of each table, and the transactions that may be writing to it.

    A count of 0 means that it is unknown. The primary is asked, as it is the one that loads read.
    """
    with connect_to_primary(conninfo) as connection:
        described = {(d.relation.schema, d.relation.table): d for d in describe_filters(connection, publication)}
        written = written_tables(connection)
        connection.execute(f"SET lock_timeout = '{LOCK_WAIT_MS}ms'")
        locked, estimates = 0, {}
        for name in tables:
            rows = None if locked > LOCKED_MAX else _estimate(connection, described.get(name))
            locked += rows is None
            estimates[name] = rows or 0, writers(connection, *name) if name in written else ()
    return estimates


def _estimate(connection: PlainConnection, described: DescribedTable | None) -> int | None:
    """Return the planner's row count; None if the table is locked."""
    if described is None:
        return 0
    try:
        return planned_rows(connection, described)
    except psycopg.errors.LockNotAvailable:
        return None
    except (psycopg.errors.InsufficientPrivilege, psycopg.errors.UndefinedTable):
        # The connector itself reports a missing right to read. A table just dropped has no rows.
        return 0
