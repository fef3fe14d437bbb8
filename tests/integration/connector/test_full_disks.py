"""The disk of a server is full: the connector waits, says that the server does not answer, and goes
on by itself once there is room. Nothing is lost or doubled.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from fixtures.connector import Maker, wait_until
from helpers.connector.workload import Workload
from twofold.stack import KafkaCluster, PostgresServer

pytestmark = pytest.mark.slow
RANDOM = "(SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 100) WHERE n > 0)"


@pytest.fixture
def small_disk(open_folder: Path) -> Iterator[Path]:
    """A file system of 400 MB, which the test's own servers are on."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=400m,mode=755", "tmpfs", str(open_folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    yield open_folder
    subprocess.run(["umount", "-l", open_folder], check=True)


def fill(disk: Path, left: int) -> Path:
    """Write a file that leaves so many bytes."""
    ballast = disk / "ballast"
    with ballast.open("wb") as file:
        while (room := shutil.disk_usage(disk).free - left) > 0:
            file.write(bytes(min(room, 1 << 20)))
            file.flush()
    return ballast


def test_kafkas_disk(connector: Maker, small_disk: Path, own_kafka: Callable[..., KafkaCluster]) -> None:
    kafka = own_kafka()
    here = connector(kafka_server=kafka, kafka={"call_timeout": 10.0})
    work = Workload(here, seed=3)
    work.running = run = here.start()
    work.run()
    here.caught_up()
    ballast = fill(small_disk, 4 << 20)
    work.running = None
    here.sql(f"INSERT INTO account SELECT n, 1, {RANDOM} FROM generate_series(1000, 6000) n")
    (node,) = kafka.nodes
    wait_until(lambda: node._process and not node._process.running(), 90, "the broker has ended")
    assert "No space left on device" in node.log.read_text()
    work.run()
    run.wait_for("the run has ended")
    assert not run.dead
    ballast.unlink()
    kafka.restart()
    here.caught_up()
    work.settle()
    here.check()
    assert not run.dead


def test_postgresqls_disk(connector: Maker, small_disk: Path, own_postgres: Callable[..., PostgresServer]) -> None:
    server = own_postgres(settings={"max_wal_size": "64MB"})
    here = connector(conninfo=server.dsn())
    work = Workload(here, seed=4)
    work.running = run = here.start()
    work.run()
    ballast = fill(small_disk, 24 << 20)
    take = ("INSERT INTO unpublished (filler) VALUES ('x')", "SELECT pg_switch_wal()")
    with pytest.raises(psycopg.OperationalError):
        here.sql(*take * 20)  # each takes a file of 16 MB
    assert "No space left on device" in server.log.read_text()
    run.wait_for("the run has ended (Unreachable")
    assert not run.dead
    ballast.unlink()
    server.restart()
    work.connect()
    work.check()
    assert not run.dead
