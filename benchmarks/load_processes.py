"""Whether one table's load gains from more processes: the same rows loaded by one connector, and by
two that have half of the table's key range each, by turns.

    make bench-load-processes ARGS='[ROWS [ROUNDS]]'

tests/records/load-processes.md has what it gave.

Two processes on two cores are no faster if one fills both. So it also says what the load costs by
place. Python's threads of a connector take turns under one lock, so their CPU is the most that one
process can do; all places together are what a number of cores can do.
"""

from __future__ import annotations

import sys
import time

import psycopg
from bench.cases import CASES
from bench.ground import Committed, Ground, wait_until
from bench.initial import Server, Visible
from bench.meter import cpu_seconds, thread_seconds
from bench.systems import Run, Twofold

_LONGEST_S = 600


def halve(dsn: str, rows: int) -> None:
    """Make two tables of the table's rows, as two loaders of its key's ranges would read them."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        for table, where in (("lower", f"id <= {rows // 2}"), ("upper", f"id > {rows // 2}")):
            connection.execute(f"CREATE TABLE {table} (LIKE orders INCLUDING ALL)".encode())
            connection.execute(f"INSERT INTO {table} SELECT * FROM orders WHERE {where}".encode())
            connection.execute(f"VACUUM (ANALYZE, FREEZE) {table}".encode())
        for table in ("orders", "lower", "upper"):
            connection.execute(f"CREATE PUBLICATION {table} FOR TABLE {table}".encode())
        connection.execute("CHECKPOINT")


def by_thread(pid: int) -> tuple[float, float]:
    """Return the CPU seconds of the process's Python threads, and of librdkafka's."""
    threads = thread_seconds(pid)
    kafka = sum(used for name, used in threads if name.startswith("rdk:"))
    return sum(used for _, used in threads) - kafka, kafka


def load(ground: Ground, dsn: str, tables: tuple[str, ...], rows: int, number: int) -> str:
    """Load these tables by a connector each, and say what that took."""
    runs = [Run(f"l{number}_{len(tables)}_{table}", dsn, (table,), table) for table in tables]
    systems, consumer = [Twofold(ground) for _ in runs], Committed(ground.bootstrap)
    for system, run in zip(systems, runs, strict=True):
        ground.make_topics(run.topics)
        system.reserve(run)
    topics = [topic for run in runs for topic in run.topics]
    visible = [Visible(consumer, topic) for topic in topics]
    server, broker, begun = Server(dsn), cpu_seconds(ground.broker_pid), time.monotonic()
    for system, run in zip(systems, runs, strict=True):
        system.start(run, "")

    def is_visible() -> bool:
        for each in visible:
            each.look()
        return sum(each.records for each in visible) >= rows

    wait_until("the load is visible", is_visible, _LONGEST_S)
    took_s = time.monotonic() - begun
    python, kafka = (sum(used) for used in zip(*(by_thread(system.pid()) for system in systems), strict=True))
    places = {
        "Python's threads": python,
        "librdkafka's threads": kafka,
        "COPY": server.cpu_s(),
        "broker": cpu_seconds(ground.broker_pid) - broker,
    }
    for system, run in zip(systems, runs, strict=True):
        system.stop(run)
    if (found := consumer.count(topics)) != rows:
        raise RuntimeError(f"{found} rows of {rows} were published: the figures mean nothing")
    consumer.close()
    ground.drop_topics(topics)
    costs = ", ".join(f"{name} {used * 1e6 / rows:.2f}" for name, used in places.items())
    return f"{len(tables)} connectors: {rows / took_s:,.0f} rows/s; CPU seconds a million rows: {costs}"


def main() -> None:
    given = [*map(int, sys.argv[1:])]
    rows, rounds = given + [2_000_000, 3][len(given) :]
    case = next(case for case in CASES if case.letter == "i")
    with Ground(settings={"fsync": "off"}) as ground:
        dsn = ground.database("bench_load")
        case.prepare(dsn, rows)
        halve(dsn, rows)
        for number in range(rounds + 1):
            for tables in (("orders",), ("lower", "upper")):
                print(f"round {number}", load(ground, dsn, tables, rows, number), flush=True)


if __name__ == "__main__":
    main()
