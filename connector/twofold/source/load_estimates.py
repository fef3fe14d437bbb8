"""Estimates loads for people: the tables' row counts, and who may be writing to them.

It uses one session, whatever the number of tables, and only reads.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import psycopg

from twofold.source.connection import PlainConnection
from twofold.source.locks import TableWriter, writers, written_tables
from twofold.source.messages import Relation
from twofold.source.primary import connect_to_primary
from twofold.source.published_tables import DescribedTable, describe_filters
from twofold.source.table_copier import planned_rows

LOCK_WAIT_MS = 200
LOCKED_MAX = 5
"""The number of locked tables that are waited for; the other tables get no estimate."""

Name = tuple[str, str]
"""Schema and table."""
_BYTES = """
SELECT coalesce((SELECT sum(pg_catalog.pg_table_size(relid)) FROM pg_catalog.pg_partition_tree(%(oid)s::oid)),
                pg_catalog.pg_table_size(%(oid)s::oid))::bigint
"""


@dataclass(frozen=True, slots=True)
class TableSize:
    """The size of a published table, as PostgreSQL estimates it."""

    relation: Relation
    rows: int | None
    """The estimated rows; None: the role may not read the table, or it is locked."""
    bytes: int
    """The size with TOAST and partitions, without indexes; 0 if the table is locked."""


def table_sizes(connection: PlainConnection, publication: str) -> tuple[TableSize, ...]:
    """Return the sizes of all tables of the publication, as the session has it."""
    connection.execute("SELECT pg_catalog.set_config('lock_timeout', %s, false)", (f"{LOCK_WAIT_MS}ms",))
    sizes, locked = [], 0
    for described in describe_filters(connection, publication):
        rows, size = None, 0
        try:
            if locked <= LOCKED_MAX:
                with connection.transaction():
                    row = connection.execute(_BYTES, {"oid": described.relation.oid}).fetchone()
                    size = row[0] or 0 if row else 0
                with connection.transaction():
                    rows = planned_rows(connection, described)
        except psycopg.errors.LockNotAvailable:
            locked += 1
        except (psycopg.errors.InsufficientPrivilege, psycopg.errors.UndefinedTable):
            pass
        sizes.append(TableSize(described.relation, rows, size))
    return tuple(sizes)


def estimate_loads(
    conninfo: str, publication: str, tables: Collection[Name]
) -> dict[Name, tuple[int, tuple[TableWriter, ...]]]:
    """Return the planner's row count of each table, and the transactions that may be writing to it.

    A count of 0 means that the count is unknown. The primary is asked, because loads read the
    primary.
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
