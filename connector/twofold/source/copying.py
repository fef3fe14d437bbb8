"""Reads a table as one snapshot sees it: described, then copied in binary, in stretches of its key. Writes nothing and takes no lock above ACCESS SHARE.

The table is locked before the snapshot is taken, so its definition cannot change between being described and being copied, and a change that the snapshot does not see is not described either.
Where several megabytes are asked for, reading ends early: a table's rows may be of any width.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain

import psycopg
from psycopg import sql
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGconn

from twofold.errors import MissingGround, RunEnded
from twofold.positions import Lsn, parse_lsn
from twofold.source.connection import Plain, connect
from twofold.source.locks import Holder, needs_slot, wait_for_all, writers
from twofold.source.published import Described, describe
from twofold.source.trouble import words_of
from twofold_avro.shapes import TableShape
from twofold_avro.types import copy_item

_SIGNATURE = b"PGCOPY\n\xff\r\n\0"
_HEADER_BYTES = len(_SIGNATURE) + 8
_END = b"\xff\xff"
_PAGE_HEADER_BYTES_MAX = 40

_IS_PARTITIONED = """
SELECT c.relkind = 'p' FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = %s AND c.relname = %s
"""
# The snapshot is taken before the columns are computed: the log's end lies behind every commit that it sees.
_SNAPSHOT = """
SELECT pg_catalog.pg_current_snapshot()::text, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
       pg_catalog.pg_current_wal_insert_lsn()::text, pg_catalog.current_setting('wal_block_size')::int
"""


@dataclass(frozen=True, slots=True)
class View:
    """What a snapshot shows of a table, as long as it is open."""

    described: Described | None
    """None: the publication does not have the table."""
    snapshot: str
    """As pg_current_snapshot() writes it."""
    at_us: int
    lsn: Lsn
    """Behind every commit that the snapshot sees. Not behind all that happens while it is read, and need not be: the stream brings that behind the rows."""


class Copier:
    """One table, one connection, one thread. Another thread may `cancel`."""

    def __init__(self, conninfo: str, publication: str, schema: str, table: str) -> None:
        self._connection = connect(conninfo, "twofold backfill")
        self._publication = publication
        self._schema, self._table = schema, table
        self._connection.execute("SET row_security = off")  # an error is better than rows that are left out

    def cancel(self) -> None:
        """Whatever runs ends with an error. A server that cannot be told is gone, or silent: then the connection ends it, not we."""
        with suppress(psycopg.Error):
            self._connection.cancel_safe(timeout=2)

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def view(self) -> Iterator[View]:
        """Open a snapshot and describe the table in it."""
        connection = self._connection
        try:
            partitioned = connection.execute(_IS_PARTITIONED, (self._schema, self._table)).fetchone()
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            if partitioned is not None:  # else there is no such table, and the publication does not have it either
                which = sql.SQL("" if partitioned[0] else "ONLY "), sql.Identifier(self._schema, self._table)
                connection.execute(sql.SQL("LOCK TABLE {}{} IN ACCESS SHARE MODE").format(*which))
            row = connection.execute(_SNAPSHOT).fetchone()
            assert row is not None
            described = describe(connection, self._publication, self._schema, self._table)
            yield View(described, row[0], row[1], _reached(parse_lsn(row[2]), row[3]))
        except psycopg.Error as error:
            raise self._error(error) from error
        finally:
            if not connection.closed:
                connection.rollback()

    def rows(
        self,
        described: Described,
        shape: TableShape,
        *,
        after: Mapping[str, str] | None = None,
        among: Sequence[Mapping[str, str]] | None = None,
        limit: int | None = None,
    ) -> Iterator[bytes]:
        """The tuples of COPY in binary: of the stretch behind the key `after`, in the order of the key, or of the keys `among`. The reader may stop before the end."""
        query = _query(described, shape, after=after, among=among, limit=limit)
        with self._connection.cursor().copy(query) as copy:
            messages = _messages(self._connection.pgconn, copy)
            head = next(messages, b"")
            assert head.startswith(_SIGNATURE), "COPY in binary begins with its signature"
            for data in chain([head[_HEADER_BYTES:]], messages):  # without any row the end is in the head's message
                if data and data != _END:
                    yield data

    def estimate(self, described: Described) -> int:
        """How many rows the planner expects, in an open view."""
        return planned_rows(self._connection, described)

    def snapshot(self) -> str:
        """What a snapshot of now would see."""
        row = self._connection.execute("SELECT pg_catalog.pg_current_snapshot()::text").fetchone()
        assert row is not None
        return str(row[0])

    def writers(self) -> tuple[Holder, ...]:
        """Who holds a lock under which rows of the table are written."""
        return writers(self._connection, self._schema, self._table)

    def wait_for_all(self) -> bool:
        """Where locks do not tell (`locks.needs_slot`), wait for every transaction that runs; else False."""
        if not needs_slot(self._connection):
            return False
        wait_for_all(self._connection, f"twofold_barrier_{self._connection.info.backend_pid}")
        return True

    def _error(self, error: psycopg.Error) -> Exception:
        name = f"{self._schema}.{self._table}"
        if isinstance(error, psycopg.errors.InsufficientPrivilege):
            return _forbidden(name, self._connection, error)
        return RunEnded(f"the backfill of {name}: {words_of(error)}")


def _reached(lsn: Lsn, page: int) -> Lsn:
    """What the stream reaches when it has sent all before the insert position: that is behind a page's header at the page's beginning, and the stream is not until more is written."""
    return Lsn(lsn - lsn % page) if lsn % page <= _PAGE_HEADER_BYTES_MAX else lsn


def _messages(pgconn: PGconn, copy: psycopg.Copy) -> Iterator[bytes]:
    """What COPY sends, in its pieces. psycopg's own iteration is asked only to wait: a generator and a wait for each row cost more than the row."""
    take = pgconn.get_copy_data
    while True:
        size, data = take(1)
        if size > 0:
            yield bytes(data)
        elif size == 0:
            if not (awaited := copy.read()):
                return
            yield bytes(awaited)
        else:
            while result := pgconn.get_result():
                if result.status != ExecStatus.COMMAND_OK:
                    raise psycopg.errors.error_from_result(result)
            return


def outlook(conninfo: str, publication: str, schema: str, table: str) -> tuple[int, tuple[Holder, ...]]:
    """For people: how many rows the planner expects (0: not known), and who may be writing to the table."""
    with connect(conninfo) as connection:
        holders = writers(connection, schema, table)
        described = describe(connection, publication, schema, table)
        try:
            connection.execute("SET lock_timeout = '1s'")
            return planned_rows(connection, described) if described else 0, holders
        except (psycopg.errors.LockNotAvailable, psycopg.errors.InsufficientPrivilege):
            # Who has it locked is among the holders; that it may not be read is said by the connector, which has to.
            return 0, holders


def planned_rows(connection: Plain, described: Described) -> int:
    """How many rows the planner expects the table to have; of partitioned tables and of those that were never analysed too."""
    query = sql.SQL("EXPLAIN (FORMAT json) SELECT {}").format(_from(described, []))
    row = connection.execute(query).fetchone()
    assert row is not None
    return int(row[0][0]["Plan"]["Plan Rows"])


def has_rows(conninfo: str, schema: str, table: str) -> bool:
    """Whether a new snapshot shows any."""
    with connect(conninfo) as connection:
        try:
            connection.execute("SET row_security = off")
            partitioned = connection.execute(_IS_PARTITIONED, (schema, table)).fetchone()
            which = sql.SQL("" if partitioned and partitioned[0] else "ONLY "), sql.Identifier(schema, table)
            row = connection.execute(sql.SQL("SELECT EXISTS (SELECT FROM {}{})").format(*which)).fetchone()
        except psycopg.errors.InsufficientPrivilege as error:
            raise _forbidden(f"{schema}.{table}", connection, error) from error
    return row is not None and bool(row[0])


def _forbidden(name: str, connection: Plain, error: psycopg.Error) -> MissingGround:
    return MissingGround(
        f'table {name} cannot be read for its backfill: {words_of(error)}; remedy: GRANT SELECT ON {name} TO "{connection.info.user}" (and USAGE on its schema)'
    )


def _query(
    described: Described,
    shape: TableShape,
    *,
    after: Mapping[str, str] | None,
    among: Sequence[Mapping[str, str]] | None,
    limit: int | None,
) -> sql.Composed:
    key = described.key_order(frozenset(column.name for column in shape.key)) if not shape.keyless else ()
    conditions: list[sql.Composable] = []
    if after is not None:
        conditions.append(sql.SQL("{} > {}").format(_row(key), _values(described, key, after)))
    if among is not None:
        conditions.append(
            sql.SQL("{} IN ({})").format(_row(key), sql.SQL(", ").join(_values(described, key, each) for each in among))
        )
    return sql.SQL("COPY (SELECT {} {}{}{}) TO STDOUT (FORMAT binary)").format(
        sql.SQL(", ").join(sql.SQL(copy_item(column)) for column in shape.columns),
        _from(described, conditions),
        sql.SQL(" ORDER BY ") + sql.SQL(", ").join(map(sql.Identifier, key)) if key and among is None else sql.SQL(""),
        sql.SQL(f" LIMIT {limit}") if limit is not None else sql.SQL(""),
    )


def _from(described: Described, conditions: list[sql.Composable]) -> sql.Composed:
    if described.row_filter:
        conditions = [sql.SQL(f"({described.row_filter})"), *conditions]  # the publication's own SQL
    return sql.SQL("FROM {}{}{}").format(
        sql.SQL("" if described.partitioned else "ONLY "),
        sql.Identifier(described.relation.schema, described.relation.table),
        sql.SQL(" WHERE ") + sql.SQL(" AND ").join(conditions) if conditions else sql.SQL(""),
    )


def _row(key: Sequence[str]) -> sql.Composable:
    columns = sql.SQL(", ").join(map(sql.Identifier, key))
    return sql.SQL("({})").format(columns)


def _values(described: Described, key: Sequence[str], texts: Mapping[str, str]) -> sql.Composable:
    """Literals of the columns' own types, so that the key's index serves."""
    values = (sql.Literal(texts[name]) + sql.SQL(f"::{described.types[name]}") for name in key)
    return sql.SQL("({})").format(sql.SQL(", ").join(values))
