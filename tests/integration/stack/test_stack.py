"""`twofold stack`: ready when it says so, ended whole by every death, the same after kill -9."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

from fixtures.connector import wait_until
from twofold.stack import KafkaCluster, PostgresServer, RegistryServer

STACK = [sys.executable, "-m", "twofold", "stack"]


def processes_in(folder: Path) -> list[str]:
    """All processes that work in the folder or name it: guards, servers, and PostgreSQL's backends
    by their working folder.
    """
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            if str(folder) in command or (process / "cwd").resolve().is_relative_to(folder):
                found.append(f"{process.name} {command}")
    return found


@contextmanager
def stack_up(folder: Path) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """A whole stack in the foreground of a process of its own; yields that process when the stack
    is ready.
    """
    command = [*STACK, "up", "--json", "--folder", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as up:
        assert up.stdout is not None
        try:
            yield up, json.loads(up.stdout.readline())
        finally:
            up.kill()


@pytest.mark.parametrize(
    "death",
    [
        pytest.param(signal.SIGINT, id="Ctrl-C", marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, id="kill -9"),
    ],
)
def test_nothing_outlives_the_command(death: signal.Signals, open_folder: Path) -> None:
    with stack_up(open_folder) as (up, endpoints):
        busy = psycopg.connect(endpoints["postgres"])
        busy.pgconn.send_query(b"SELECT pg_sleep(600)")
        assert AdminClient({"bootstrap.servers": endpoints["kafka"]}).list_topics(timeout=10).brokers
        with SchemaRegistryClient({"url": endpoints["registry"], "timeout": 10}) as registry:
            assert registry.get_compatibility() == "BACKWARD"
        # The command, guards and servers of three, and PostgreSQL's own children.
        assert len(processes_in(open_folder)) > 10
        up.send_signal(death)
        assert up.wait(60) == (0 if death is signal.SIGINT else -death)
        wait_until(lambda: not processes_in(open_folder))
        busy.close()


def test_a_detached_stack_is_found_and_ended(open_folder: Path) -> None:
    def twofold(*words: str) -> subprocess.CompletedProcess[str]:
        command = [*STACK, *words, "--folder", str(open_folder)]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)

    assert twofold("status").returncode == 4
    started = twofold("up", "--detach", "--no-registry")
    assert started.returncode == 0, started.stderr
    assert [line.split()[0] for line in started.stdout.splitlines()] == ["PostgreSQL", "Kafka", "data"]
    assert "127.0.0.1" not in started.stderr
    found = json.loads(twofold("status", "--json").stdout)
    assert found["registry"] is None
    psycopg.connect(found["postgres"]).close()
    second = twofold("up")
    assert second.returncode == 2
    assert second.stderr.startswith(f"twofold: a stack already runs in {open_folder}: twofold stack down, or choose")
    assert twofold("down").stdout == "ended\n"
    assert processes_in(open_folder) == []
    assert twofold("status").returncode == 4


def test_a_death_while_it_starts_leaves_nothing(open_folder: Path) -> None:
    command = [*STACK, "up", "--folder", str(open_folder)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as up:
        wait_until((open_folder / "kafka/node0/data").exists)
        up.send_signal(signal.SIGINT)
        assert up.wait(60) == 130
    assert processes_in(open_folder) == []


@pytest.mark.slow
def test_one_that_starts_detached_tells_and_is_ended(open_folder: Path) -> None:
    command = [*STACK, "up", "--detach", "--folder", str(open_folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as up:
        wait_until((open_folder / "kafka/node0/data").exists)
        down = [*STACK, "down", "--folder", str(open_folder)]
        assert subprocess.run(down, capture_output=True, text=True, check=False, timeout=120).stdout == "ended\n"
        assert up.wait(60) != 0
        assert up.stderr is not None
        assert "PostgreSQL" in up.stderr.read()
    assert processes_in(open_folder) == []


@pytest.mark.core
@pytest.mark.parametrize("version", ["15", "16", "17", "18"])
def test_each_version_of_postgres_starts(version: str, own_postgres: Callable[..., PostgresServer]) -> None:
    server = own_postgres(version=version)
    assert server.version == int(version)
    with psycopg.connect(server.dsn()) as connection:
        assert connection.info.server_version // 10_000 == int(version)


@pytest.mark.core
def test_postgres_keeps_prepared_transactions_and_port_through_kill_9(
    own_postgres: Callable[..., PostgresServer],
) -> None:
    server = own_postgres()
    before = server.dsn()
    with psycopg.connect(before, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int)")
        connection.execute("BEGIN; INSERT INTO t VALUES (1); PREPARE TRANSACTION 'g'")
        server.kill()
        assert processes_in(server.folder) == []
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    server.start()
    assert server.dsn() == before
    with psycopg.connect(before, autocommit=True) as connection:
        connection.execute("COMMIT PREPARED 'g'")
        assert connection.execute("SELECT id FROM t").fetchall() == [(1,)]


@pytest.mark.slow
def test_the_registry_keeps_schemas_through_kill_9(own_registry: Callable[[], RegistryServer]) -> None:
    server = own_registry()
    with SchemaRegistryClient({"url": server.url, "timeout": 10}) as client:
        registered = client.register_schema("s", Schema('"long"', "AVRO"))
        server.kill()
        server.start()
        assert client.get_latest_version("s").schema_id == registered


@pytest.mark.slow
def test_three_brokers_go_on_without_one(own_kafka: Callable[..., KafkaCluster]) -> None:
    cluster = own_kafka(brokers=3)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic("t", num_partitions=3)])["t"].result(10)

    def in_sync() -> list[int]:
        return sorted(
            len(partition.isrs) for partition in admin.list_topics("t", timeout=10).topics["t"].partitions.values()
        )

    def commit(transactional_id: str) -> None:
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": transactional_id})
        producer.init_transactions(60)
        producer.begin_transaction()
        for partition in range(3):
            producer.produce("t", b"row", partition=partition)
        producer.commit_transaction(60)

    wait_until(lambda: in_sync() == [3, 3, 3])
    cluster.kill(1)
    commit("without-one")
    wait_until(lambda: in_sync() == [2, 2, 2])
    cluster.start(1)
    wait_until(lambda: in_sync() == [3, 3, 3])
    commit("with-all")


@pytest.mark.slow
def test_one_broker_keeps_its_topics_through_kill_9(own_kafka: Callable[..., KafkaCluster]) -> None:
    cluster = own_kafka()
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic("kept", num_partitions=2)])["kept"].result(10)
    pid = cluster.nodes[0].pid
    cluster.kill()
    cluster.start()
    assert cluster.nodes[0].pid != pid
    assert len(admin.list_topics("kept", timeout=10).topics["kept"].partitions) == 2
