"""The backlogs: what is in the database before, what is written into it, and how many changes that
is.

A case is prepared before any slot exists and loaded once they all do, so that every run of every
system reads the same stretch of WAL. The last transaction of a load writes one row into
`bench_end`: a run is over when that row is visible.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import psycopg

END_TABLE = "bench_end"
GID = "bench-in-doubt"
PUBLICATION = "bench"
TABLES_OF_MIXED = 50
WRITERS = 4

_EVENTS = ("order", "invoice", "shipment")

_TEN = """(
    id bigint PRIMARY KEY, quantity int, customer text, price numeric(12, 2), placed_at timestamptz,
    details jsonb, paid boolean, token uuid, note text, version bigint)"""
_TEN_VALUES = """i, i % 100, 'customer ' || i % 5000, (i % 100000) / 100.0, timestamptz '2024-01-01 00:00:00+00' + i * interval '1.234567 s',
    jsonb_build_object('sku', 'A-' || i % 977, 'gift', i % 2 = 0), i % 3 = 0, gen_random_uuid(), repeat('n', (10 + i % 40)::int), i * 1000003::bigint"""

_LOADER = """
CREATE PROCEDURE bench_load(total bigint, each bigint, command text) LANGUAGE plpgsql AS $$
BEGIN
    FOR at IN 1 .. total BY each LOOP
        EXECUTE command USING at, least(at + each - 1, total);
        COMMIT;
    END LOOP;
END $$"""


@dataclass(frozen=True, slots=True)
class Case:
    """One backlog."""

    letter: str
    title: str
    full_rows: int
    tables: tuple[str, ...]
    prepare: Callable[[str, int], None]
    load: Callable[[str, int], int]
    """Writes about this many changes and says how many it committed."""
    first_load: bool = False
    """The rows are there before any slot is: `bench.initial` has them loaded."""
    in_doubt: bool = False
    """What it writes is prepared and without an outcome: `bench.in_doubt` gives it one."""
    events: tuple[str, ...] = ()
    """Its table is an outbox: the names of its events' topics."""


def _run(dsn: str, *statements: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SET synchronous_commit = off")
        for statement in statements:
            connection.execute(statement.encode())


def _prepare_ten(dsn: str, _rows: int) -> None:
    _run(dsn, f"CREATE TABLE orders {_TEN}", _LOADER)


def _in_transactions_of(size: int) -> Callable[[str, int], int]:
    def load(dsn: str, rows: int) -> int:
        insert = f"INSERT INTO orders SELECT {_TEN_VALUES} FROM generate_series($1, $2) i"
        _run(dsn, f"CALL bench_load({rows}, {min(size, rows)}, $cmd${insert}$cmd$)")
        return rows

    return load


def _prepare_full_table(dsn: str, rows: int) -> None:
    _prepare_ten(dsn, rows)
    insert = f"INSERT INTO orders SELECT {_TEN_VALUES} FROM generate_series($1, $2) i"
    _run(dsn, f"CALL bench_load({rows}, 100000, $cmd${insert}$cmd$)", "VACUUM (ANALYZE, FREEZE) orders", "CHECKPOINT")


def _prepare_widest_table(dsn: str, rows: int) -> None:
    columns = ", ".join(f"c{n} int" for n in range(1, 1001))
    values = ", ".join(f"i % {n}" for n in range(1, 1001))
    insert = f"INSERT INTO orders SELECT i, {values} FROM generate_series(1, {rows}) i"
    _run(dsn, f"CREATE TABLE orders (id bigint PRIMARY KEY, {columns})", insert, "VACUUM (ANALYZE, FREEZE) orders")


def _prepare_narrow_table(dsn: str, rows: int) -> None:
    insert = f"INSERT INTO orders SELECT i, i % 1000 FROM generate_series(1, {rows}) i"
    _run(dsn, "CREATE TABLE orders (id bigint PRIMARY KEY, v int)", insert, "VACUUM (ANALYZE, FREEZE) orders")


def _load_nothing(_dsn: str, rows: int) -> int:
    return rows


def _pgbench(dsn: str, *arguments: str) -> None:
    subprocess.run(["pgbench", *arguments, dsn], check=True, capture_output=True)


def _prepare_pgbench(dsn: str, _rows: int) -> None:
    _pgbench(dsn, "--initialize", "--quiet", "--scale=10")


def _load_pgbench(dsn: str, rows: int) -> int:
    each = rows // 4 // WRITERS
    quiet = f"{dsn} options='-c synchronous_commit=off'"
    _pgbench(quiet, "--no-vacuum", f"--client={WRITERS}", f"--transactions={each}", "--protocol=prepared")
    return each * WRITERS * 4


def _load_prepared(dsn: str, rows: int) -> int:
    """Prepared transactions of five rows, every tenth rolled back: several writers, so that they
    overlap.
    """
    each = rows // 5 // WRITERS

    def write(writer: int) -> int:
        committed = 0
        with psycopg.connect(dsn, autocommit=True) as connection:
            for number in range(each):
                first = (writer * each + number) * 5 + 1
                gid = f"bench-{writer}-{number}"
                connection.execute(
                    f"BEGIN; INSERT INTO orders SELECT {_TEN_VALUES} FROM generate_series({first}, {first + 4}) i; "
                    f"PREPARE TRANSACTION '{gid}'".encode()
                )
                outcome = "ROLLBACK" if number % 10 == 9 else "COMMIT"
                connection.execute(f"{outcome} PREPARED '{gid}'".encode())
                committed += 5 * (outcome == "COMMIT")
        return committed

    with ThreadPoolExecutor(WRITERS) as pool:
        return sum(pool.map(write, range(WRITERS)))


def _load_in_doubt(dsn: str, rows: int) -> int:
    """One prepared transaction, whose last row is the end's."""
    _run(
        dsn,
        f"BEGIN; INSERT INTO orders SELECT {_TEN_VALUES} FROM generate_series(1, {rows}) i; INSERT INTO {END_TABLE} VALUES (1); PREPARE TRANSACTION '{GID}'",
    )
    return rows


def _prepare_wide(dsn: str, _rows: int) -> None:
    kinds = ("int", "text", "numeric(12, 2)", "timestamptz", "boolean")
    columns = ", ".join(f"c{n} {kinds[n % 5]}" for n in range(1, 100))
    _run(dsn, f"CREATE TABLE orders (id bigint PRIMARY KEY, {columns})", _LOADER)


def _load_wide(dsn: str, rows: int) -> int:
    values = ("i % {n}", "'value ' || i % 1000", "(i % 100000) / 100.0", "timestamptz '2024-01-01 00:00:00+00'", "true")
    columns = ", ".join(values[n % 5].format(n=n) for n in range(1, 100))
    _run(
        dsn,
        f"CALL bench_load({rows}, 10, $cmd$INSERT INTO orders SELECT i, {columns} FROM generate_series($1, $2) i$cmd$)",
    )
    return rows


def _prepare_full(dsn: str, rows: int) -> None:
    _prepare_ten(dsn, rows)
    _run(
        dsn,
        f"INSERT INTO orders SELECT {_TEN_VALUES} FROM generate_series(1, {rows}) i",
        "ALTER TABLE orders REPLICA IDENTITY FULL",
        "VACUUM ANALYZE orders",
    )


def _load_full(dsn: str, rows: int) -> int:
    update = "UPDATE orders SET quantity = quantity + 1, note = 'changed' WHERE id BETWEEN $1 AND $2"
    _run(dsn, f"CALL bench_load({rows}, 10, $cmd${update}$cmd$)")
    return rows


def _mixed_tables() -> tuple[str, ...]:
    return tuple(f"mixed_{n:02d}" for n in range(TABLES_OF_MIXED))


def _prepare_mixed(dsn: str, _rows: int) -> None:
    _run(dsn, *(f"CREATE TABLE {table} {_TEN}" for table in _mixed_tables()), _LOADER)


def _load_mixed(dsn: str, rows: int) -> int:
    """Transactions of ten changes in one table after another: eight inserts and two updates of rows
    just written.
    """
    insert = f"INSERT INTO %1$I SELECT {_TEN_VALUES} FROM generate_series($1, $1 + 7) i".replace("i % ", "i %% ")
    update = "UPDATE %1$I SET quantity = 0 WHERE id BETWEEN $1 AND $1 + 1"
    _run(
        dsn,
        f"""CREATE PROCEDURE bench_mixed(total bigint) LANGUAGE plpgsql AS $$
        DECLARE t text;
        BEGIN
            FOR at IN 1 .. total BY 10 LOOP
                t := 'mixed_' || lpad(((at / 10) % {TABLES_OF_MIXED})::text, 2, '0');
                EXECUTE format($f${insert}$f$, t) USING at;
                EXECUTE format($f${update}$f$, t) USING at;
                COMMIT;
            END LOOP;
        END $$""",
        f"CALL bench_mixed({rows // 10 * 10})",
    )
    return rows // 10 * 10


def _prepare_outbox(dsn: str, _rows: int) -> None:
    """The table that Debezium's EventRouter expects, ids in the order of the events."""
    columns = "id uuid PRIMARY KEY, aggregatetype text NOT NULL, aggregateid text NOT NULL, type text NOT NULL, payload jsonb NOT NULL"
    _run(dsn, f"CREATE TABLE outbox ({columns})", _LOADER)


def _load_outbox(size: int) -> Callable[[str, int], int]:
    names = ", ".join(f"'{name}'" for name in _EVENTS)
    payload = "jsonb_build_object('order', i, 'customer', 'customer ' || i % 5000, 'sku', 'A-' || i % 977, 'quantity', i % 100, 'paid', i % 3 = 0, 'note', repeat('n', (10 + i % 40)::int))"
    row = f"lpad(to_hex(i), 32, '0')::uuid, (ARRAY[{names}])[(1 + i % {len(_EVENTS)})::int], 'customer ' || i % 5000, 'placed', {payload}"

    def load(dsn: str, rows: int) -> int:
        _run(dsn, f"CALL bench_load({rows}, {size}, $cmd$INSERT INTO outbox SELECT {row} FROM generate_series($1, $2) i$cmd$)")  # fmt: skip
        return rows

    return load


def published(case: Case, dsn: str) -> str:
    """Its tables and the end's in a publication, which is named."""
    _run(
        dsn,
        f"CREATE TABLE {END_TABLE} (id int PRIMARY KEY)",
        f"CREATE PUBLICATION {PUBLICATION} FOR TABLE {', '.join((*case.tables, END_TABLE))}",
    )
    return PUBLICATION


_ORDERS = ("orders",)
_OUTBOX = ("outbox",)
_PGBENCH_TABLES = ("pgbench_accounts", "pgbench_branches", "pgbench_history", "pgbench_tellers")
CASES = (
    Case("a", "transactions of 10 rows", 1_000_000, _ORDERS, _prepare_ten, _in_transactions_of(10)),
    Case("b", "one transaction", 1_000_000, _ORDERS, _prepare_ten, _in_transactions_of(1 << 40)),
    Case("c", "pgbench, 4 changes", 1_000_000, _PGBENCH_TABLES, _prepare_pgbench, _load_pgbench),
    Case("d", "prepared, 5 rows, 1 in 10 rolled back", 500_000, _ORDERS, _prepare_ten, _load_prepared),
    Case("e", "100 columns", 200_000, _ORDERS, _prepare_wide, _load_wide),
    Case("f", "updates, replica identity full", 1_000_000, _ORDERS, _prepare_full, _load_full),
    Case("g", "50 tables mixed", 1_000_000, _mixed_tables(), _prepare_mixed, _load_mixed),
    Case("h", "1 row a transaction", 250_000, _ORDERS, _prepare_ten, _in_transactions_of(1)),
    Case("i", "first load of a table", 5_000_000, _ORDERS, _prepare_full_table, _load_nothing, first_load=True),
    Case("j", "first load, 1,001 columns", 50_000, _ORDERS, _prepare_widest_table, _load_nothing, first_load=True),
    Case("k", "first load, narrow rows", 10_000_000, _ORDERS, _prepare_narrow_table, _load_nothing, first_load=True),
    Case("o", "outbox, 10 events a transaction", 500_000, _OUTBOX, _prepare_outbox, _load_outbox(10), events=_EVENTS),
    Case("q", "outbox, 1 event a transaction", 250_000, _OUTBOX, _prepare_outbox, _load_outbox(1), events=_EVENTS),
    Case("p", "one transaction, prepared long before", 1_000_000, _ORDERS, _prepare_ten, _load_in_doubt, in_doubt=True),
)
