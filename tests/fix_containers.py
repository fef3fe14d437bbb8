"""The test servers as containers, with the same settings as the local stack. Used by fix_stack where a Docker engine answers."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import psycopg
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from testcontainers.core.container import DockerContainer

from twofold.stack.postgres import SETTINGS
from twofold.stack.process import LOOPBACK, choose_port
from twofold.stack.registry import RegistryServer

POSTGRES = "postgres:{version}"
KAFKA = "apache/kafka:4.3.1"
REGISTRY = "apicurio/apicurio-registry:3.3.3"
READY_WITHIN_S = 120


def engine_answers() -> bool:
    """Whether a Docker engine answers a ping where its clients would look for it."""
    host = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    address = urlsplit(host)
    try:
        if address.scheme == "unix":
            engine = socket.socket(socket.AF_UNIX)
            engine.settimeout(5)
            with engine:
                engine.connect(address.path)
                return _ping(engine)
        with socket.create_connection((address.hostname or LOOPBACK, address.port or 2375), timeout=5) as engine:
            return _ping(engine)
    except OSError:
        return False


def _ping(engine: socket.socket) -> bool:
    engine.sendall(b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n")
    return b" 200 " in engine.recv(64)


@contextmanager
def postgres(version: str | None) -> Iterator[str]:
    """The conninfo of a PostgreSQL server."""
    port = choose_port(None, "PostgreSQL")
    settings = [word for name, value in SETTINGS.items() for word in ("-c", f"{name}={value}")]
    container = (
        DockerContainer(POSTGRES.format(version=version or "18"))
        .with_env("POSTGRES_HOST_AUTH_METHOD", "trust")
        .with_command(["postgres", *settings])
    )
    _bind(container, 5432, port)
    dsn = f"host={LOOPBACK} port={port} user=postgres dbname=postgres"

    with container:
        _wait(container, lambda: psycopg.connect(dsn, connect_timeout=5).close(), psycopg.OperationalError)
        yield dsn


@contextmanager
def kafka() -> Iterator[str]:
    """The bootstrap address of one broker. Its host port is chosen before it starts, because it has to advertise it."""
    port = choose_port(None, "Kafka")
    environment = {
        "KAFKA_NODE_ID": "0",
        "KAFKA_PROCESS_ROLES": "broker,controller",
        "KAFKA_CONTROLLER_QUORUM_VOTERS": "0@localhost:9093",
        "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
        # The broker writes a transaction's end through a connection to itself; the host's port is not to be reached from inside.
        "KAFKA_LISTENERS": "CLIENT://:9092,CONTROLLER://:9093,BROKER://localhost:9094",
        "KAFKA_ADVERTISED_LISTENERS": f"CLIENT://{LOOPBACK}:{port},BROKER://localhost:9094",
        "KAFKA_INTER_BROKER_LISTENER_NAME": "BROKER",
        "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT,BROKER:PLAINTEXT",
        "KAFKA_AUTO_CREATE_TOPICS_ENABLE": "false",
        "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
        "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
        "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
        "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": "1",
        "KAFKA_SHARE_COORDINATOR_STATE_TOPIC_REPLICATION_FACTOR": "1",
        "KAFKA_SHARE_COORDINATOR_STATE_TOPIC_MIN_ISR": "1",
        "KAFKA_TRANSACTION_ABORT_TIMED_OUT_TRANSACTION_CLEANUP_INTERVAL_MS": "1000",
    }
    container = DockerContainer(KAFKA).with_envs(**environment)
    _bind(container, 9092, port)
    bootstrap = f"{LOOPBACK}:{port}"

    def answers() -> None:
        AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}).list_topics(timeout=5)

    with container:
        _wait(container, answers, KafkaException)
        yield bootstrap


@contextmanager
def registry() -> Iterator[str]:
    """The URL for a client of Confluent's registry."""
    port = choose_port(None, "the registry")
    container = DockerContainer(REGISTRY)
    _bind(container, 8080, port)
    url = RegistryServer.address(port)

    with container:
        _wait(container, lambda: RegistryServer.prove_ready(url), OSError)
        yield url


def _bind(container: DockerContainer, inside: int, port: int) -> None:
    """On loopback alone: with_bind_ports would open the port on all addresses of this machine."""
    container.ports[str(inside)] = (LOOPBACK, port)  # type: ignore[assignment]  # Docker takes an address with it


def _wait(container: DockerContainer, answers: Callable[[], None], not_yet: type[Exception]) -> None:
    """Until the server in the container answers; with its last words if it does not."""
    deadline = time.monotonic() + READY_WITHIN_S
    while True:
        try:
            return answers()
        except not_yet as error:
            if time.monotonic() > deadline:
                said = b"".join(container.get_logs()).decode(errors="replace")[-2000:]
                raise TimeoutError(
                    f"{container.image} does not answer after {READY_WITHIN_S} s: {error}\n{said}"
                ) from error
        time.sleep(0.2)
