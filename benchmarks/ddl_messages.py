"""`make bench-ddl`: what event triggers cost a change of a table's definition.

Two databases of one server, one with the triggers and one without, by turns: CREATE TABLE and ALTER
TABLE of published tables, and a script with all of them in one transaction.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psycopg

from twofold.source import ddl_messages
from twofold.source.connection import PlainConnection, connect
from twofold.stack import PostgresServer, temporary_folder

COLUMNS = ", ".join(f"c{n} text" for n in range(10))
MAKE = "CREATE TABLE app.t{n} (id bigint PRIMARY KEY, {columns})"
CHANGE = "ALTER TABLE app.t{n} ADD more int"


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks/ddl_messages.py")
    parser.add_argument("--tables", type=int, default=1000)
    parser.add_argument("--version", help="of PostgreSQL")
    options = parser.parse_args()
    folder = temporary_folder()
    with ExitStack() as ending:
        server = PostgresServer(folder, version=options.version)
        ending.callback(shutil.rmtree, folder, ignore_errors=True)
        ending.callback(server.stop)
        server.start()
        measure(server, options.tables, ending)


def measure(server: PostgresServer, tables: int, ending: ExitStack) -> None:
    """Print the medians, and the times of the scripts."""
    sessions = {name: ending.enter_context(opened) for name, opened in _databases(server)}
    print(f"PostgreSQL {server.version}, {tables:,} tables of 11 columns, milliseconds")
    for what, statement in (("CREATE TABLE", MAKE), ("ALTER TABLE", CHANGE)):
        times: dict[str, list[float]] = {name: [] for name in sessions}
        began_cpu = {name: _cpu_ms(session) for name, session in sessions.items()}
        for n in range(tables):
            for name, session in sessions.items():
                times[name].append(_took(session, statement.format(n=n, columns=COLUMNS)))
        without, told = (statistics.median(times[name]) for name in ("without", "with"))
        cpu = {name: (_cpu_ms(session) - began_cpu[name]) / tables for name, session in sessions.items()}
        print(f"{what}, median: {without:.2f} without, {told:.2f} with triggers")
        print(f"{what}, CPU of the server: {cpu['without']:.2f} without, {cpu['with']:.2f} with triggers", flush=True)
    for name, session in sessions.items():
        began = time.perf_counter()
        with session.transaction():
            for n in range(tables):
                session.execute(f"ALTER TABLE app.t{n % 10} ADD c{100 + n} int")
        print(
            f"{tables:,} ALTER TABLE of 10 tables in one transaction, {name} triggers: {time.perf_counter() - began:.1f} s"
        )


def _databases(server: PostgresServer) -> Iterator[tuple[str, PlainConnection]]:
    for name in ("without", "with"):
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}"')
        session = connect(server.dsn(name))
        session.execute("CREATE SCHEMA app")
        session.execute("CREATE PUBLICATION p FOR TABLES IN SCHEMA app")
        if name == "with":
            ddl_messages.install(server.dsn(name), "bench")
        yield name, session


def _cpu_ms(session: PlainConnection) -> float:
    """Return what the session's server process has used: it does not grow with other work."""
    stat = Path(f"/proc/{session.info.backend_pid}/stat").read_text().rpartition(")")[2].split()
    return (int(stat[11]) + int(stat[12])) * 1000 / os.sysconf("SC_CLK_TCK")


def _took(session: PlainConnection, statement: str) -> float:
    began = time.perf_counter()
    session.execute(statement)
    return (time.perf_counter() - began) * 1000


if __name__ == "__main__":
    main()
