"""What whole transactions cost a consumer: `twofold_reader` beside a plain read_committed consumer
that decodes each value with fastavro, on the same topics.

    make bench-reader [ARGS='[TRANSACTIONS [LARGE]]']

TRANSACTIONS (40,000) of ten rows over two tables, three partitions each, and then one transaction
of LARGE rows (5,000,000; 0: none). Both read everything from the beginning, each in a process of
its own, in turns; the first turn does not count. The memory is the most that the process had.

The last line is one JSON object.
"""

from __future__ import annotations

import io
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import fastavro
import psycopg
from bench.ground import Ground
from confluent_kafka import Consumer, TopicPartition

from twofold_reader import PositionWaiter, Reader

PREFIX = "bank"
TABLES = ("account", "transfer")
TURNS = 4
_ROWS = 10
_SCHEMA = (
    "CREATE TABLE account (id bigint PRIMARY KEY, owner text NOT NULL, balance numeric(12, 2) NOT NULL, changed timestamptz)",
    "CREATE TABLE transfer (id bigserial PRIMARY KEY, account bigint NOT NULL, amount numeric(12, 2) NOT NULL, note text)",
    "INSERT INTO account SELECT i, 'owner ' || i, 1000, now() FROM generate_series(1, 10000) i",
    """CREATE PROCEDURE work(transactions int) LANGUAGE plpgsql AS $$
    BEGIN
        FOR n IN 1 .. transactions LOOP
            UPDATE account SET balance = balance + 1, changed = clock_timestamp() WHERE id BETWEEN n % 9990 + 1 AND n % 9990 + 5;
            INSERT INTO transfer (account, amount, note) SELECT n % 9990 + i, 1, 'transfer ' || n FROM generate_series(1, 5) i;
            COMMIT;
        END LOOP;
    END $$""",
)


def main(transactions: int, large: int) -> None:
    with Ground() as ground, _connector(ground) as dsn:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("SET synchronous_commit = off")
            connection.execute("CALL work(%s)", [transactions])
        _wait(ground, dsn)
        found: dict[str, list[dict[str, Any]]] = {"plain": [], "reader": []}
        for turn in range(TURNS):
            for kind, results in found.items():
                result = _measure(ground, kind)
                print(
                    f"{kind:7} {result['rows']:9,} rows {result['rows_a_second']:9,.0f} a second, {result['mib']:5.0f} MiB, the first after {result['first_s']:.2f} s",
                    flush=True,
                )
                if turn:
                    results.append(result)
        speeds = {kind: median(each["rows_a_second"] for each in results) for kind, results in found.items()}
        summary: dict[str, Any] = {
            "rows_a_second": {kind: round(speed) for kind, speed in speeds.items()},
            "share": round(speeds["reader"] / speeds["plain"], 2),
        }
        if large:
            with psycopg.connect(dsn, autocommit=True) as connection:
                connection.execute(
                    f"INSERT INTO transfer (account, amount, note) SELECT i, 1, 'large ' || i FROM generate_series(1, {large}) i".encode()
                )
            _wait(ground, dsn)
            summary["large"] = {kind: _measure(ground, kind) for kind in found}
            print(summary["large"])
        print(json.dumps(summary))


def _measure(ground: Ground, kind: str) -> dict[str, Any]:
    registry = f"http://127.0.0.1:{ground.registry_port}/apis/ccompat/v7"
    line = [sys.executable, __file__, kind, ground.bootstrap, registry]
    result: dict[str, Any] = json.loads(subprocess.run(line, capture_output=True, text=True, check=True).stdout)
    return result


@contextmanager
def _connector(ground: Ground) -> Iterator[str]:
    """A connector of the two tables; yield the source's conninfo."""
    dsn = ground.database(PREFIX)
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in _SCHEMA:
            connection.execute(statement.encode())
    file = ground.folder / "bank.toml"
    tables = ", ".join(f'"public.{table}"' for table in TABLES)
    file.write_text(
        f'name = "{PREFIX}"\nsource.dsn = "{dsn}"\nsource.tables = [{tables}]\nkafka.bootstrap = "{ground.bootstrap}"\n'
        "kafka.partitions = 3\nkafka.replication = 1\nkafka.min_insync_replicas = 1\nturn.idle_progress = 0.5\n"
        f'registry.url = "http://127.0.0.1:{ground.registry_port}/apis/ccompat/v7"\nspool.folder = "{ground.folder}/spool"\nstatus.listen = "none"\n'
    )
    twofold = [sys.executable, "-m", "twofold", "-c", str(file)]
    subprocess.run([*twofold, "init"], check=True, stdout=subprocess.DEVNULL)
    with (ground.folder / "run.log").open("wb") as log, subprocess.Popen([*twofold, "run"], stderr=log) as run:
        try:
            yield dsn
        finally:
            run.terminate()


def _wait(ground: Ground, dsn: str) -> None:
    """Until Kafka has everything."""
    with psycopg.connect(dsn) as connection:
        (position,) = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone() or ("",)
    registry = f"http://127.0.0.1:{ground.registry_port}/apis/ccompat/v7"
    with PositionWaiter.at(PREFIX, {"bootstrap.servers": ground.bootstrap}, registry) as waiter:
        waiter.wait(position, timeout_s=1800)


def read(kind: str, bootstrap: str, registry: str) -> None:
    """Read everything, and print how fast."""
    rows, first_s, seconds = (_read_plain if kind == "plain" else _read_transactions)(bootstrap, registry)
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"rows": rows, "rows_a_second": rows / seconds, "first_s": first_s, "mib": peak_kib / 1024}))


def _read_transactions(bootstrap: str, registry: str) -> tuple[int, float, float]:
    tables, rows, first_s = [f"public.{table}" for table in TABLES], 0, 0.0
    with Reader(PREFIX, {"bootstrap.servers": bootstrap}, registry, tables=tables) as reader:
        began = time.monotonic()
        for transaction in reader.transactions("beginning", follow=False):
            first_s = first_s or time.monotonic() - began
            for _ in transaction.changes:
                rows += 1
        return rows, first_s, time.monotonic() - began


def _read_plain(bootstrap: str, registry: str) -> tuple[int, float, float]:
    from twofold_reader.schemas import schemas_at  # noqa: PLC0415  (of the part that is measured, only this)

    schema_of, schemas, rows, first_s = schemas_at(registry), dict[bytes, Any](), 0, 0.0
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "plain",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        }
    )
    began = time.monotonic()
    left = {(f"{PREFIX}.public.{table}", partition) for table in TABLES for partition in range(3)}
    consumer.assign([TopicPartition(*place, 0) for place in left])
    while left:
        for message in consumer.consume(1000, 0.1):
            if message.error() is not None:
                left.discard((message.topic(), message.partition()))
                continue
            data = message.value()
            if data is None:
                continue
            if (schema := schemas.get(data[:5])) is None:
                text = schema_of(int.from_bytes(data[1:5], "big"))
                schema = schemas[data[:5]] = fastavro.parse_schema(json.loads(text))
            stream = io.BytesIO(data)
            stream.seek(5)
            fastavro.schemaless_reader(stream, schema, None)
            rows += 1
            first_s = first_s or time.monotonic() - began
    seconds = time.monotonic() - began
    consumer.close()
    return rows, first_s, seconds


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in {"plain", "reader"}:
        read(*sys.argv[1:])
    else:
        given = [int(each.replace(",", "")) for each in sys.argv[1:]]
        main(*(given + [40_000, 5_000_000][len(given) :]))
