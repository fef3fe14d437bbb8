"""Debezium in Kafka Connect with exactly-once, under the same clients and the same checker:
plain transactions only, kills only.

    PYTHONPATH=tests:benchmarks python -m debezium_chaos [--seed 1] [--seconds 60] [--kills 6]

Two things are reported: what a read_committed reader has at the end, against the clients' journals;
and what it sees of one large transaction while that is on its way. What does not fit its contract
is not held against it: it has no commit records, so nothing is checked that needs one.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
from bench.connect import ConnectWorker

from chaos import journal, workload
from chaos.__main__ import say
from chaos.checks import History, exactly_once
from chaos.journal import Writer
from chaos.reading import Record, read_all
from helpers.reading import make_consumer, topics_of
from twofold.stack import KafkaCluster, PostgresServer, temporary_folder

PREFIX = "dbz"
UNSENT = "__debezium_unavailable_value"
CAUGHT_UP_S = 120


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m debezium_chaos")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--rows", type=int, default=300_000, help="of the large transaction")
    options = parser.parse_args()
    folder = temporary_folder()
    with ExitStack() as ending:
        kafka = KafkaCluster(folder / "kafka")
        postgres = PostgresServer(folder / "postgres")
        connect = ConnectWorker(folder / "connect", kafka.bootstrap)
        for server in (kafka, postgres, connect):
            ending.callback(server.stop)
            server.start()
        files = folder / "journal"
        files.mkdir()
        made = Writer(files / "seed.jsonl")
        workload.create(postgres.dsn(), made)
        with psycopg.connect(postgres.dsn(), autocommit=True) as session:
            session.execute("CREATE PUBLICATION dbz FOR TABLES IN SCHEMA public")
        connect.make(PREFIX, _settings(postgres))
        _wait(lambda: _slot_is_active(postgres.dsn()), 60)
        under_load(options, postgres, connect, files)
        violations = compare(kafka.bootstrap, postgres, files)
        seen = watch_a_large_one(kafka.bootstrap, postgres, options.rows)
    shutil.rmtree(folder, ignore_errors=True)
    for violation in violations[:10]:
        say(f"!!! {violation}")
    kinds = Counter(violation.partition(":")[0] for violation in violations)
    partly = [count for count in seen if 0 < count < options.rows]
    say(f"of a transaction of {options.rows} rows a read_committed reader saw, one after the other: {seen[:12]}...")
    print(json.dumps({"seed": options.seed, "kills": options.kills, "violations": dict(kinds), "large_transaction_seen_in_part": len(partly)}))  # fmt: skip
    return 0


def _settings(postgres: PostgresServer) -> dict[str, str]:
    converter = "org.apache.kafka.connect.json.JsonConverter"
    return {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "tasks.max": "1",
        "database.hostname": "127.0.0.1",
        "database.port": str(postgres.port),
        "database.user": "postgres",
        "database.dbname": "postgres",
        "topic.prefix": PREFIX,
        "plugin.name": "pgoutput",
        "slot.name": PREFIX,
        "publication.name": PREFIX,
        "publication.autocreate.mode": "disabled",
        "snapshot.mode": "no_data",
        "exactly.once.support": "required",
        "provide.transaction.metadata": "true",
        "skipped.operations": "none",
        "topic.creation.default.partitions": "1",
        "topic.creation.default.replication.factor": "1",
        **{f"{part}.converter": converter for part in ("key", "value")},
        **{f"{part}.converter.schemas.enable": "false" for part in ("key", "value")},
    }


class PlainClient(workload.Client):
    """The same clients, without PREPARE and without what Debezium carries in a form of its own
    (messages, the outbox).
    """

    def _gid(self, chance: float, name: str) -> str | None:  # noqa: ARG002
        return None

    def _message(self, connection: psycopg.Connection[Any]) -> None:  # noqa: ARG002
        return

    def _say(self, connection: psycopg.Connection[Any], key: str, version: int, *, by_message: bool) -> None:  # noqa: ARG002
        return


def under_load(options: argparse.Namespace, postgres: PostgresServer, connect: ConnectWorker, files: Path) -> None:
    over = threading.Event()
    rng = random.Random(options.seed)
    clients = [PlainClient(n, options.seed, postgres.dsn, files, over) for n in range(4)]
    for client in clients:
        client.start()
    try:
        for number in range(options.kills):
            time.sleep(options.seconds / options.kills * rng.uniform(0.5, 1))
            connect._process.kill()  # type: ignore[union-attr]
            connect.start()
            say(f"kill {number + 1} of the worker")
    finally:
        over.set()
        for client in clients:
            client.join()
    for client in clients:
        if client.failure:
            raise client.failure


def compare(bootstrap: str, postgres: PostgresServer, files: Path) -> list[str]:
    with psycopg.connect(postgres.dsn(), autocommit=True) as session:
        session.execute("INSERT INTO marks VALUES ('end')")
    Writer(files / "end.jsonl").begun("end", None, [("marks", "c", {"id": "end"}, {"id": "end"})])
    deadline = time.monotonic() + CAUGHT_UP_S
    rows: list[Record] = []
    while time.monotonic() < deadline:
        rows = list(_rows(bootstrap))
        if any(row.topic.endswith(".marks") and row.value and row.value["after"] == {"id": "end"} for row in rows):
            break
    source = workload.source_tables(postgres.dsn(), ["marks"])
    history = History(PREFIX, journal.read(files), rows, (), (), (), source)
    return [str(violation) for violation in exactly_once(history)]


def _rows(bootstrap: str) -> Iterator[Record]:
    """In the form that the checks know.

    Behind the xid a transaction's id has the position of the row; unsent values have a placeholder;
    a changed key's insert has no old key.
    """
    reader = make_consumer(bootstrap)
    try:
        names = [name for name in topics_of(reader, PREFIX) if ".public." in name]  # fmt: skip
    finally:
        reader.close()
    for record in read_all(bootstrap, lambda data: None if data is None else json.loads(data), names):
        value = record.value
        if value is not None:
            after = value["after"]
            value["unchanged"] = [column for column, text in (after or {}).items() if text == UNSENT]
            if inside := value["transaction"]:
                inside["id"] = inside["id"].partition(":")[0]
        yield record


def watch_a_large_one(bootstrap: str, postgres: PostgresServer, rows: int) -> list[int]:
    """How many of its rows a read_committed reader has, each time it looks, until it has all."""
    before = sum(1 for row in _rows(bootstrap) if row.topic.endswith(".bulk") and row.value)
    with psycopg.connect(postgres.dsn()) as session:
        session.execute("INSERT INTO bulk SELECT 9000000000000 + n, 'x' FROM generate_series(1, %s) n", (rows,))
    seen: list[int] = []
    reader = make_consumer(bootstrap)
    reader.subscribe([f"{PREFIX}.public.bulk"])
    count, deadline = -before, time.monotonic() + CAUGHT_UP_S
    while count < rows and time.monotonic() < deadline:
        messages = reader.consume(20_000, 0.5)
        count += sum(1 for message in messages if message.error() is None and message.value())
        if count > 0 and count not in seen[-1:]:
            seen.append(count)
    reader.close()
    return seen


def _slot_is_active(dsn: str) -> bool:
    with psycopg.connect(dsn, autocommit=True) as session:
        return session.execute("SELECT 1 FROM pg_replication_slots WHERE active").fetchone() is not None


def _wait(holds: Any, within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError("Debezium does not stream")
        time.sleep(0.2)


if __name__ == "__main__":
    sys.exit(main())
