"""For people: how many rows tables that are to be loaded have, and who may be writing to them. One session, whatever their number. Reads only."""

from __future__ import annotations

from collections.abc import Collection

import psycopg

from twofold.source.connection import PlainConnection, connect
from twofold.source.locks import TableWriter, writers, written_tables
from twofold.source.published_tables import DescribedTable, describe_filters
from twofold.source.table_copier import planned_rows

LOCK_WAIT_MS = 200
LOCKED_MAX = 5
"""So many locked tables are waited for; of the rest nothing is estimated."""

Name = tuple[str, str]
"""Schema and table."""


def estimate_loads(
    conninfo: str, publication: str, tables: Collection[Name]
) -> dict[Name, tuple[int, tuple[TableWriter, ...]]]:
    """Of each table the rows that the planner expects (0: not known), and the transactions that may be writing to it."""
    with connect(conninfo) as connection:
        described = {(d.relation.schema, d.relation.table): d for d in describe_filters(connection, publication)}
        held = written_tables(connection)
        connection.execute(f"SET lock_timeout = '{LOCK_WAIT_MS}ms'")
        locked, found = 0, {}
        for name in tables:
            rows = None if locked > LOCKED_MAX else _estimate(connection, described.get(name))
            locked += rows is None
            found[name] = rows or 0, writers(connection, *name) if name in held else ()
    return found


def _estimate(connection: PlainConnection, described: DescribedTable | None) -> int | None:
    """None: the table is locked."""
    if described is None:
        return 0
    try:
        return planned_rows(connection, described)
    except psycopg.errors.LockNotAvailable:
        return None
    except (psycopg.errors.InsufficientPrivilege, psycopg.errors.UndefinedTable):
        # That it may not be read is said by the connector, which has to; what was dropped a moment ago has no rows.
        return 0
