"""Reads a table as one snapshot sees it: describes it, then copies ranges of its key in binary.

It writes nothing and takes no lock above ACCESS SHARE. The table is locked before the snapshot is
taken. So its definition cannot change between description and copy, and a change that the snapshot
does not see is not described either. The reader may stop a large copy early, because rows can have
any width.
"""

from __future__ import annotations

import select
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import psycopg
from psycopg import sql
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGconn

from twofold.errors import Refused, RunEnded, SetupError
from twofold.source.connection import PlainConnection, connect
from twofold.source.diagnosis import NOT_UTF8, error_text, is_failing_filter, not_utf8
from twofold.source.locks import TableWriter, wait_for_all, writers
from twofold.source.primary import NoPrimary, connect_to_primary
from twofold.source.published_tables import DescribedTable, KeyOrder, describe
from twofold.source.wal_end import reached
from twofold_avro.shapes import TableShape
from twofold_avro.types import copy_item
from twofold_common.positions import Lsn, parse_lsn
from twofold_common.table_names import reload_command, sql_identifier, table_argument

_SIGNATURE = b"PGCOPY\n\xff\r\n\0"
_HEADER_BYTES = len(_SIGNATURE) + 8
_END = b"\xff\xff"
PREPARED_AFTER = 2
"""The number of runs after which a query is planned once for all later runs."""
RUN_BYTES = 1 << 16
"""The size of a run of tuples. A run is encoded in one call, which keeps Python's lock: other
threads wait for less than a millisecond.
"""

_FEW_PAGES = """
SELECT sum(pages)::bigint, 10 * count(*)
FROM (SELECT reltuples, pg_catalog.pg_relation_size(oid) / pg_catalog.current_setting('block_size')::int AS pages
      FROM pg_catalog.pg_class WHERE relkind = 'r'
       AND oid IN (SELECT %(oid)s::oid UNION SELECT relid FROM pg_catalog.pg_partition_tree(%(oid)s::oid))) tables
HAVING bool_and(reltuples < 0 AND pages < 10)
"""
"""The pages of tables that were never analysed, and the planner's: ten for each with fewer."""
_IS_PARTITIONED = """
SELECT c.relkind = 'p' FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = %s AND c.relname = %s
"""
_RIGHTS = """
SELECT pg_catalog.has_schema_privilege(n.oid, 'USAGE'), pg_catalog.has_table_privilege(c.oid, 'SELECT'),
       pg_catalog.row_security_active(c.oid)
  FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = %s AND c.relname = %s
"""
# The snapshot precedes the other columns: the WAL's end lies behind every commit that it sees.
_SNAPSHOT = """
SELECT pg_catalog.pg_current_snapshot()::text, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
       pg_catalog.pg_current_wal_insert_lsn()::text, pg_catalog.current_setting('wal_block_size')::int
"""


@dataclass(frozen=True, slots=True)
class CopyView:
    """A snapshot's view of a table, valid while the snapshot is open."""

    described: DescribedTable | None
    """The table's description; None: the publication does not have the table."""
    snapshot: str
    """The snapshot, as pg_current_snapshot() writes it."""
    at_us: int
    lsn: Lsn
    """A position behind every commit that the snapshot sees. Commits during the copy may lie behind
    this position: the stream delivers them after the rows.
    """


class TableCopier:
    """The copier of one table, with one connection and one thread. Another thread may `cancel`."""

    def __init__(self, conninfo: str, publication: str, schema: str, table: str) -> None:
        self._conninfo = conninfo
        self._connection = _connect(conninfo, schema, table)
        self._publication = publication
        self._schema, self._table = schema, table
        self._connection.execute("SET row_security = off")  # an error is better than missing rows
        # Each chunk asks the same again: to plan the table's description takes as long as its rows.
        self._connection.prepare_threshold = PREPARED_AFTER

    def cancel(self) -> None:
        """Make the running query end with an error.

        A server that does not take the request is gone or silent; then the connection's own
        timeout ends the query.
        """
        with suppress(psycopg.Error):
            self._connection.cancel_safe(timeout=2)

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def view(self) -> Iterator[CopyView]:
        """Open a snapshot and describe the table in it."""
        connection = self._connection
        described: DescribedTable | None = None
        try:
            partitioned = connection.execute(_IS_PARTITIONED, (self._schema, self._table)).fetchone()
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            if partitioned is not None:  # else there is no such table, nor is it in the publication
                target = sql.SQL("" if partitioned[0] else "ONLY "), sql.Identifier(self._schema, self._table)
                connection.execute(sql.SQL("LOCK TABLE {}{} IN ACCESS SHARE MODE").format(*target))
            row = connection.execute(_SNAPSHOT).fetchone()
            assert row is not None
            described = describe(connection, self._publication, self._schema, self._table)
            yield CopyView(described, row[0], row[1], reached(parse_lsn(row[2]), row[3]))
        except psycopg.Error as error:
            raise self._error(error, described) from error
        finally:
            if not connection.closed:
                # Reading writes WAL (hint bits, pruning), and the next chunk waits until the stream
                # has passed it. COMMIT flushes it at once; after a rollback the background writer
                # does it later.
                connection.commit()

    def rows(
        self,
        described: DescribedTable,
        shape: TableShape,
        *,
        after: Mapping[str, str] | None = None,
        among: Sequence[Mapping[str, str]] | None = None,
        limit: int | None = None,
        mark: int = 0,
    ) -> Generator[bytes]:
        """Yield the tuples of a binary COPY: rows behind the key `after`, or of the keys `among`.

        Tuples that have arrived come joined, as a run of about `RUN_BYTES` at most. A run ends with
        the tuple at which all together reach `mark` bytes. Rows behind `after` come in key order.
        The reader may stop before the end.
        """
        query = _query(described, shape, after=after, among=among, limit=limit)
        # In a savepoint: stopping early is an error to the server, but the view still COMMITs.
        with self._connection.transaction(), self._connection.cursor().copy(query):
            yield from _runs(self._connection.pgconn, mark)

    def estimate(self, described: DescribedTable) -> int:
        """Return the planner's row count, in an open view."""
        return planned_rows(self._connection, described)

    def snapshot(self) -> str:
        """Return a present snapshot as pg_current_snapshot() writes it."""
        row = self._connection.execute("SELECT pg_catalog.pg_current_snapshot()::text").fetchone()
        assert row is not None
        return str(row[0])

    def writers(self) -> tuple[TableWriter, ...]:
        """Return the holders of a lock that rows of the table are written under."""
        return writers(self._connection, self._schema, self._table)

    def wait_for_all(self) -> bool:
        """Wait for every running transaction where locks do not suffice, as `locks` has it."""
        return wait_for_all(self._connection)

    def _error(self, error: psycopg.Error, described: DescribedTable | None) -> Exception:
        name = f"{self._schema}.{self._table}"
        if isinstance(error, psycopg.errors.InsufficientPrivilege):
            return unreadable(self._conninfo, self._schema, self._table, error)
        if error.sqlstate in NOT_UTF8:
            return not_utf8(f"table {name}", error_text(error))
        if described is not None and described.row_filter is None and is_failing_filter(error):
            return Refused(
                f"table {name} cannot be loaded: {error_text(error)} (PostgreSQL does not take the last key that was loaded: its type has changed)",
                at_stake="the rows that the table has; nothing of the failed chunk was published",
                repair=reload_command(self._schema, self._table),
            )
        if is_failing_filter(error):
            return Refused(
                f"table {name} cannot be loaded: {error_text(error)} (the row filter of publication {self._publication} fails on a row)",
                at_stake="the rows that the table has; nothing of the failed chunk was published",
                repair=f"correct the filter (ALTER PUBLICATION ... SET TABLE ...) before anything changes that row, since the stream would fail on it for good; to go on without the table's rows: twofold backfill cancel {table_argument(self._schema, self._table)}",
            )
        return RunEnded(f"the backfill of {name} failed: {error_text(error)}")


def _connect(conninfo: str, schema: str, table: str) -> PlainConnection:
    """Connect to the primary: only the primary shows locks, running transactions and positions."""
    try:
        return connect_to_primary(conninfo, "twofold backfill")
    except NoPrimary as error:
        raise Refused(
            f"table {schema}.{table} is to be loaded, and {error.what}",
            at_stake="a standby shows neither who writes to the table nor which transactions its snapshots see, so rows would be lost or outdated; nothing was loaded",
            repair=f"set source.primary_dsn to the connection string of its primary, which loads then read; to go on without the rows that the table has: twofold backfill cancel {table_argument(schema, table)}",
        ) from error


def _runs(pgconn: PGconn, mark: int) -> Generator[bytes]:
    """Yield COPY's messages without its frame, joined to runs.

    libpq is called directly, and waited for here: psycopg's generator and wait for each row cost
    more than the row.
    """
    poll = select.poll()
    poll.register(pgconn.socket, select.POLLIN)
    frame, ended = _SIGNATURE, False
    while not ended:
        tuples, ended = _receive(pgconn, min(RUN_BYTES, mark) if mark > 0 else RUN_BYTES)
        if frame and tuples:
            head = bytes(tuples[0])
            assert head.startswith(frame), "a binary COPY begins with its signature"
            tuples[0], frame = memoryview(head)[_HEADER_BYTES:], b""
        if tuples and tuples[-1] == _END:  # without rows, it is in the first message
            tuples.pop()
        if run := b"".join(tuples):
            mark -= len(run)
            yield run
        elif not ended:
            poll.poll()
    # Read all results: otherwise even a rollback fails, and its error hides this one.
    failed = [r for r in iter(pgconn.get_result, None) if r.status != ExecStatus.COMMAND_OK]
    if failed:
        raise psycopg.errors.error_from_result(failed[0])


def _receive(pgconn: PGconn, size_max: int) -> tuple[list[memoryview], bool]:
    """Return the messages that have arrived, up to the one that reaches `size_max`, and whether
    COPY has ended.
    """
    get, messages, size, is_read = pgconn.get_copy_data, list[memoryview](), 0, False
    append = messages.append
    while size < size_max:
        length, data = get(1)
        if length > 0:
            append(data)
            size += length
        elif length < 0:
            return messages, True
        elif is_read:
            break
        else:
            pgconn.consume_input()
            is_read = True
    return messages, False


def planned_rows(connection: PlainConnection, described: DescribedTable) -> int:
    """Return the planner's row count, also of partitioned and never analysed tables."""
    query = sql.SQL("EXPLAIN (FORMAT json) SELECT {}").format(_from(described, []))
    row = connection.execute(query).fetchone()
    assert row is not None
    rows = int(row[0][0]["Plan"]["Plan Rows"])
    few = connection.execute(_FEW_PAGES, {"oid": described.relation.oid}).fetchone()
    return rows * few[0] // few[1] if few else rows


def with_rows(conninfo: str, tables: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return the tables, by schema and name, that have a row in a new snapshot."""
    found = set()
    with connect(conninfo) as connection:
        connection.execute("SET row_security = off")
        for schema, table in tables:
            try:
                partitioned = connection.execute(_IS_PARTITIONED, (schema, table)).fetchone()
                target = sql.SQL("" if partitioned and partitioned[0] else "ONLY "), sql.Identifier(schema, table)
                row = connection.execute(sql.SQL("SELECT EXISTS (SELECT FROM {}{})").format(*target)).fetchone()
            except psycopg.errors.InsufficientPrivilege as error:
                raise unreadable(conninfo, schema, table, error) from error
            if row is not None and row[0]:
                found.add((schema, table))
    return found


def _query(
    described: DescribedTable,
    shape: TableShape,
    *,
    after: Mapping[str, str] | None,
    among: Sequence[Mapping[str, str]] | None,
    limit: int | None,
) -> sql.Composed:
    key = described.key_order(frozenset(column.name for column in shape.key)) if not shape.keyless else ()
    conditions: list[sql.Composable] = []
    if after is not None:
        conditions.append(_behind(described, key, after))
    if among is not None:
        conditions.append(_any_of(described, key, among))
    return sql.SQL("COPY (SELECT {} {}{}{}) TO STDOUT (FORMAT binary)").format(
        sql.SQL(", ").join(sql.SQL(copy_item(column)) for column in shape.columns),
        _from(described, conditions),
        sql.SQL(" ORDER BY ") + _in_order(described, key) if key and among is None else sql.SQL(""),
        sql.SQL(f" LIMIT {limit}") if limit is not None else sql.SQL(""),
    )


def _from(described: DescribedTable, conditions: list[sql.Composable]) -> sql.Composed:
    if described.row_filter:
        conditions = [sql.SQL(f"({described.row_filter})"), *conditions]  # the publication's own SQL
    return sql.SQL("FROM {}{}{}").format(
        sql.SQL("" if described.partitioned else "ONLY "),
        sql.Identifier(described.relation.schema, described.relation.table),
        sql.SQL(" WHERE ") + sql.SQL(" AND ").join(conditions) if conditions else sql.SQL(""),
    )


def _column(described: DescribedTable, order: KeyOrder) -> sql.Composable:
    """Return the column as its index compares it, with its table's name, because another selected
    column may have the same name.
    """
    return _compared(sql.Identifier(described.relation.schema, described.relation.table, order.column), order)


def _compared(value: sql.Composable, order: KeyOrder) -> sql.Composable:
    if order.cast is not None:
        value = sql.SQL("{}::").format(value) + sql.SQL(order.cast)
    return (
        value if order.collation is None else sql.SQL("{} COLLATE {}").format(value, sql.Identifier(*order.collation))
    )


def _in_order(described: DescribedTable, key: Sequence[KeyOrder]) -> sql.Composable:
    return sql.SQL(", ").join(
        _column(described, order)
        + (sql.SQL("") if order.is_usual else sql.SQL(" USING ") + _operator(order, order.before))
        for order in key
    )


def _operator(order: KeyOrder, operator: str) -> sql.Composable:
    """Return the operator with its schema. An extension's operator is not on the search path:
    without the schema another type's operator would be used, or none found.
    """
    return sql.SQL("OPERATOR({}.").format(sql.Identifier(order.schema)) + sql.SQL(f"{operator})")


def _behind(described: DescribedTable, key: Sequence[KeyOrder], after: Mapping[str, str]) -> sql.Composable:
    """Return the condition for rows behind the key, in the order of ORDER BY."""
    if all(order.is_usual for order in key):
        return sql.SQL("({}) > {}").format(_columns(described, key), _values(key, after))
    return _either(
        [
            *(_comparison(described, same, same.equal, after) for same in key[:place]),
            _comparison(described, order, order.behind, after),
        ]
        for place, order in enumerate(key)
    )


def _any_of(described: DescribedTable, key: Sequence[KeyOrder], among: Sequence[Mapping[str, str]]) -> sql.Composable:
    if all(order.is_usual for order in key):
        rows = sql.SQL(", ").join(_values(key, each) for each in among)
        return sql.SQL("({}) IN ({})").format(_columns(described, key), rows)
    return _either([_comparison(described, order, order.equal, each) for order in key] for each in among)


def _either(alternatives: Iterable[list[sql.Composable]]) -> sql.Composable:
    return sql.SQL("({})").format(sql.SQL(" OR ").join(map(sql.SQL(" AND ").join, alternatives)))


def _comparison(described: DescribedTable, order: KeyOrder, operator: str, texts: Mapping[str, str]) -> sql.Composable:
    return sql.SQL("{} {} {}").format(
        _column(described, order), _operator(order, operator), _compared(_value(order, texts), order)
    )


def _columns(described: DescribedTable, key: Sequence[KeyOrder]) -> sql.Composable:
    return sql.SQL(", ").join(_column(described, order) for order in key)


def _values(key: Sequence[KeyOrder], texts: Mapping[str, str]) -> sql.Composable:
    return sql.SQL("({})").format(sql.SQL(", ").join(_value(order, texts) for order in key))


def _value(order: KeyOrder, texts: Mapping[str, str]) -> sql.Composable:
    """Return a literal of the column's own type below its domains, so that the key's index serves.

    A stored value may be older than a domain's constraint.
    """
    return sql.Literal(texts[order.column]) + sql.SQL(f"::{order.type}")


def missing_rights(connection: PlainConnection, schema: str, table: str) -> tuple[str, ...]:
    """Return the statements that let the session's role read the table; empty if it may."""
    row = connection.execute(_RIGHTS, (schema, table)).fetchone()
    if row is None:
        return ()
    role = sql_identifier(connection.info.user)
    uses_schema, selects, is_filtered = row
    return (
        *(() if uses_schema else (f"GRANT USAGE ON SCHEMA {sql_identifier(schema)} TO {role};",)),
        *(() if selects else (f"GRANT SELECT ON {sql_identifier(schema, table)} TO {role};",)),
        # With row_security off a policy is an error, whatever it permits.
        *((f"ALTER ROLE {role} BYPASSRLS;",) if is_filtered else ()),
    )


def unreadable(conninfo: str, schema: str, table: str, error: psycopg.Error) -> SetupError:
    """Explain why the table cannot be read."""
    with connect(conninfo) as connection:
        statements = missing_rights(connection, schema, table)
        role = connection.info.user
    remedy = " ".join(statements) or f"grant role {role} what PostgreSQL says"
    return SetupError(f"the backfill cannot read table {schema}.{table}: {error_text(error)}; remedy: {remedy}")
