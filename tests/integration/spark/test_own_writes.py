"""Who commits, waits for his position and reads, finds his own write: in the mirror by plain name,
and as a consumer of Kafka.

Each of 8 clients has a row of his own, and counts it up.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from bisect import bisect_left
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import psycopg
import pytest
from pyiceberg.catalog.rest import RestCatalog

from fixtures.catalogs import RestCatalogServer, one_at_a_time
from fixtures.connector import Installation, Maker
from helpers.spark import process as spark_process
from twofold_common import java
from twofold_reader import PositionWaiter, Reader

CLIENTS = 8
WRITES = int(os.environ.get("TWOFOLD_TEST_OWN_WRITES", "10000"))
WAIT_S = 120
PART = 800
"""The clients pause after so many writes, and the published cuts are read, before the mirror
drops them.
"""
KEEP_CUTS_H = 0.2


class Own(NamedTuple):
    """A write that its client has seen in the mirror."""

    sequence: int
    """Of its commit record."""
    committed: float
    in_kafka: float
    """When the wait for Kafka returned; the times are seconds since 1970."""
    in_mirror: float


class Client:
    """A thread that writes, waits and reads."""

    def __init__(self, here: Installation, address: str, number: int) -> None:
        self._here = here
        self._number = number
        self._kafka = {"bootstrap.servers": here.reader.bootstrap}
        self._registry = here.config.registry.url
        self._catalog = RestCatalog("rest", uri=address)

    def work(self, first: int, writes: int) -> list[Own]:
        prefix, tables = self._here.prefix, ["public.counter"]
        with (
            psycopg.connect(self._here.conninfo, autocommit=True) as connection,
            PositionWaiter.at(prefix, self._kafka, self._registry) as waiter,
            Reader(prefix, self._kafka, self._registry, tables=tables) as reader,
        ):
            mark, found = self._position(connection), []
            waiter.wait(mark, timeout_s=WAIT_S)
            for version in range(first, first + writes):
                connection.execute("UPDATE counter SET version = version + 1 WHERE id = %s", [self._number])
                position, committed = self._position(connection), time.time()
                waiter.wait(position, timeout_s=WAIT_S)
                in_kafka = time.time()
                own, sequence = {"id": self._number, "version": version}, 0
                for transaction in reader.transactions(mark, follow=False):
                    if any(change.after == own for change in transaction.changes):
                        sequence = transaction.sequence
                    mark = transaction.bookmark
                assert sequence, f"{own} was not read"
                waiter.wait(position, until="mirror", timeout_s=WAIT_S)
                in_mirror = time.time()
                rows = self._catalog.load_table(("public", "counter")).scan().to_arrow().to_pylist()
                assert own in rows, (own, rows)
                found.append(Own(sequence, committed, in_kafka, in_mirror))
            return found

    def _position(self, connection: psycopg.Connection[Any]) -> str:
        """Where the source is behind what was committed."""
        row = connection.execute("SELECT pg_current_wal_lsn()::text").fetchone()
        assert row is not None
        return str(row[0])


@contextmanager
def mirroring(here: Installation, address: str, folder: Path) -> Iterator[None]:
    """The mirror as people start it, which goes on."""
    file = folder / "catalog.properties"
    file.write_text(f"warehouse={folder}\n")
    line = [
        sys.executable, "-m", "twofold_spark", "mirror", "--bootstrap", here.reader.bootstrap,
        "--registry", here.config.registry.url, "--prefix", here.prefix, "--warehouse", str(folder),
        "--java-home", str(java.spark_java_home()), "--catalog-uri", address, "--catalog-file", str(file),
        "--keep-cuts", str(KEEP_CUTS_H),
    ]  # fmt: skip
    with spark_process.in_its_own_group(line) as process:
        spark_process.cuts(process, 1)
        listening = threading.Thread(target=lambda: list(process.stderr or ()), daemon=True)
        listening.start()
        yield
        assert process.poll() is None, "the mirror ended"
        os.killpg(process.pid, signal.SIGKILL)
        listening.join()


def publications(address: str, answered: list[float]) -> tuple[list[int], list[float]]:
    """Each published cut's last commit record, and when it was to be seen by plain name: the server
    dates the tables' versions first, then commits them, then answers.
    """
    cuts = RestCatalog("rest", uri=address).load_table(("twofold", "cuts"))
    rows = sorted(cuts.scan().to_arrow().to_pylist(), key=lambda row: row["number"])
    moves = sorted(each.timestamp_ms / 1000 for each in cuts.metadata.snapshot_log)
    at = [moves[bisect_left(moves, row["published_at"].timestamp())] for row in rows]
    return [row["sequence"] for row in rows], [answered[bisect_left(answered, each)] for each in at]


@pytest.mark.parametrize(
    ("writes", "added_s"),
    [
        (CLIENTS * 3, 1),  # a busy machine counts for more than the wait
        pytest.param(WRITES, 0.1, marks=[pytest.mark.slow, pytest.mark.timeout(4 * 3600)]),
    ],
)
def test_each_client_sees_his_own_write(
    connector: Maker, rest_catalog: RestCatalogServer, writes: int, added_s: float
) -> None:
    here = connector(init=False, source={"tables": ["public.counter"]})
    here.sql(
        "CREATE TABLE counter (id int PRIMARY KEY, version int NOT NULL)",
        f"INSERT INTO counter SELECT i, 0 FROM generate_series(1, {CLIENTS}) i",
    )
    here.initialise()
    answered: list[float] = []
    owns: list[Own] = []
    added: list[float] = []
    with (
        here.carrying(),
        one_at_a_time(rest_catalog, answered=answered) as (address, _),
        mirroring(here, address, rest_catalog.folder),
        ThreadPoolExecutor(CLIENTS) as executor,
    ):
        clients = [Client(here, address, number) for number in range(1, CLIENTS + 1)]
        for done in range(0, writes // CLIENTS, PART // CLIENTS):
            many = min(PART // CLIENTS, writes // CLIENTS - done)
            working = [executor.submit(each.work, done + 1, many) for each in clients]
            part = [own for each in working for own in each.result()]
            sequences, times = publications(address, answered)
            assert sequences[0] <= min(own.sequence for own in part), "their cuts are kept"
            added += [own.in_mirror - times[bisect_left(sequences, own.sequence)] for own in part]
            owns += part
            print(
                f"{len(owns)} writes seen, the last {len(part)} {median(added[-len(part) :]):.3f} s behind the publishing of the cut",
                flush=True,
            )
    assert len(owns) == writes // CLIENTS * CLIENTS
    print(
        f"{len(owns)} writes seen; p50: in Kafka {median(each.in_kafka - each.committed for each in owns):.3f} s,"
        f" in the mirror {median(each.in_mirror - each.committed for each in owns):.3f} s behind the COMMIT,"
        f" {median(added):.3f} s behind the publishing of the cut"
    )
    assert median(added) < added_s
