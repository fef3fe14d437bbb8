"""`make bench-tables`: what a publication of many tables costs, by their number.

For each number on a stack of its own: `init`, the first start until the stream runs, a transaction
over up to 1,000 of the tables until its rows are visible in Kafka, while the start still asks for
schemas, another one behind it, and a restart. The memory is the process's peak.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack

import psycopg
from bench.ground import Committed, Ground, wait_until
from bench.measured_run import MeasuredRun, command, configure

PARTITIONS = 6
WIDE = 1000
"""So many tables at most does the transaction write to."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks/many_tables.py")
    parser.add_argument("--tables", default="200,1000,2000,3000", help="numbers of tables, by comma")
    for tables in map(int, parser.parse_args().tables.split(",")):
        print(json.dumps(measure(tables)), flush=True)


def measure(tables: int) -> dict[str, float]:
    """Return seconds and megabytes for so many tables; say each as it comes."""
    with ExitStack() as ending:
        ground = ending.enter_context(Ground())
        dsn = ground.database("many")
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("CREATE SCHEMA app")
            for n in range(tables):
                connection.execute(f"CREATE TABLE app.t{n} (id bigint PRIMARY KEY, a text, b int)".encode())
        file = configure(ground, "many", dsn, tables="app.*", partitions=PARTITIONS)
        ending.callback(shutil.rmtree, ground.folder / "spool", ignore_errors=True)
        found: dict[str, float] = {"tables": tables}

        def note(name: str, value: float) -> None:
            found[name] = round(value, 1)
            print(f"{name} {value:.1f}", file=sys.stderr, flush=True)

        began = time.monotonic()
        subprocess.run(command(file, "init"), check=True, stdout=subprocess.DEVNULL)
        note("init_s", time.monotonic() - began)
        connector = MeasuredRun(file, ground.folder / "first.log")
        ending.callback(connector.kill)
        note("first_start_s", connector.seconds_until_streaming())
        note("transaction_s", _carry_transaction(ground, dsn, min(tables, WIDE), key=1))
        note("next_transaction_s", _carry_transaction(ground, dsn, min(tables, WIDE), key=2))
        note("memory_mb", connector.stop() / 1e6)
        again = MeasuredRun(file, ground.folder / "again.log")
        ending.callback(again.kill)
        note("restart_s", again.seconds_until_streaming())
        note("memory_again_mb", again.stop() / 1e6)
        return found


def _carry_transaction(ground: Ground, dsn: str, tables: int, *, key: int) -> float:
    """Write one row of this key, which counts them, into each table in one transaction; return how
    long until all are visible.
    """
    consumer = Committed(ground.bootstrap)
    with psycopg.connect(dsn) as connection:
        for n in range(tables):
            connection.execute(f"INSERT INTO app.t{n} VALUES ({key}, 'a', 1)".encode())
    began = time.monotonic()
    last = f"many.app.t{tables - 1}"
    wait_until("the transaction is visible", lambda: consumer.count([last]) == key, 600)
    took = time.monotonic() - began
    rows = consumer.count(f"many.app.t{n}" for n in range(tables))
    consumer.close()
    assert rows == key * tables, f"{rows} rows are visible, of {key * tables}"
    return took


if __name__ == "__main__":
    main()
