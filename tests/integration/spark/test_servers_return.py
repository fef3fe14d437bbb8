"""A job whose servers end and come back: it goes on in the process that it is."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from fixtures.connector import wait_until
from fixtures.stack import Registry
from helpers.spark import process as spark_process
from helpers.spark.writer import Writer, table
from twofold.stack import KafkaCluster, PostgresServer
from twofold_common import java

SOON_S = 120.0
_BEGINS = "it begins again in"


class Said:
    """What the job says, read all the time: a full pipe would stop it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.lines: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        self.lines.extend(self._process.stderr)

    def count(self, words: str) -> int:
        return sum(words in line for line in self.lines)

    def has(self, words: str, times: int = 1) -> Callable[[], bool]:
        def has_said() -> bool:
            assert self._process.poll() is None, "".join(self.lines)
            return self.count(words) >= times

        return has_said


@pytest.fixture
def destination(own_postgres: Callable[..., PostgresServer]) -> PostgresServer:
    return own_postgres()


@pytest.fixture
def writer(own_kafka: Callable[..., KafkaCluster], registry: Registry, prefix: str) -> Writer:
    made = Writer(own_kafka().bootstrap, registry.url, prefix)
    made.table(table("t", {"id": "int8"}), partitions=1)
    return made


@pytest.fixture
def job(writer: Writer, destination: PostgresServer, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    line = [
        sys.executable, "-m", "twofold_spark", "mirror", "--bootstrap", writer.bootstrap, "--registry", writer.registry,
        "--prefix", writer.prefix, "--warehouse", str(tmp_path), "--sink", f"jdbc={destination.dsn()}",
        "--java-home", str(java.spark_java_home()),
        "--kafka", "request.timeout.ms=4000", "--kafka", "default.api.timeout.ms=5000",
    ]  # fmt: skip
    with spark_process.in_its_own_group(line) as process:
        yield process


def insert(writer: Writer, number: int) -> None:
    with writer.commit() as tx:
        tx.upsert("t", {"id": number})


def read_rows(destination: PostgresServer) -> list[int]:
    try:
        with psycopg.connect(destination.dsn(), connect_timeout=5) as session:
            return [number for (number,) in session.execute("SELECT id FROM public.t ORDER BY id").fetchall()]
    except psycopg.Error:
        return []


@pytest.mark.core
def test_a_mirror_goes_on_when_its_servers_are_back(
    job: subprocess.Popen[str], writer: Writer, destination: PostgresServer, request: pytest.FixtureRequest
) -> None:
    said = Said(job)
    insert(writer, 1)
    wait_until(lambda: read_rows(destination) == [1], SOON_S)

    destination.kill()
    insert(writer, 2)
    wait_until(said.has(_BEGINS), SOON_S)
    destination.start()
    wait_until(lambda: read_rows(destination) == [1, 2], SOON_S)

    # Whoever ends it while it waits need not wait for the server.
    destination.kill()
    before = said.count(_BEGINS)
    insert(writer, 3)
    wait_until(said.has(_BEGINS, before + 1), SOON_S)
    job.send_signal(signal.SIGTERM)
    assert job.wait(SOON_S) == 0, "".join(said.lines)
    assert said.count("Traceback") == 0, "".join(said.lines)


def test_a_job_that_has_done_nothing_ends_with_one_sentence(
    job: subprocess.Popen[str], writer: Writer, destination: PostgresServer
) -> None:
    destination.kill()
    insert(writer, 1)
    said = Said(job)
    assert job.wait(SOON_S) == 3, "".join(said.lines)
    assert said.count(_BEGINS) == 0
