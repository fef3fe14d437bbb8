"""The test servers as containers, with the same settings as the local stack. Used by fix_stack where a Docker engine answers."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import psycopg
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from testcontainers.core.container import DockerContainer
from testcontainers.core.waiting_utils import wait_container_is_ready

from twofold.stack.postgres import SETTINGS
from twofold.stack.process import LOOPBACK, choose_port
from twofold.stack.registry import RegistryServer

POSTGRES = "postgres:{version}"
KAFKA = "apache/kafka:4.3.1"
REGISTRY = "apicurio/apicurio-registry:3.3.3"


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
        .with_bind_ports(5432, port)
    )
    dsn = f"host={LOOPBACK} port={port} user=postgres dbname=postgres"

    @wait_container_is_ready(psycopg.OperationalError)
    def answers() -> None:
        psycopg.connect(dsn, connect_timeout=5).close()

    with container:
        answers()
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
        "KAFKA_LISTENERS": "CLIENT://:9092,CONTROLLER://:9093",
        "KAFKA_ADVERTISED_LISTENERS": f"CLIENT://{LOOPBACK}:{port}",
        "KAFKA_INTER_BROKER_LISTENER_NAME": "CLIENT",
        "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "KAFKA_AUTO_CREATE_TOPICS_ENABLE": "false",
        "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
        "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
        "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
        "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": "1",
        "KAFKA_SHARE_COORDINATOR_STATE_TOPIC_REPLICATION_FACTOR": "1",
        "KAFKA_SHARE_COORDINATOR_STATE_TOPIC_MIN_ISR": "1",
        "KAFKA_TRANSACTION_ABORT_TIMED_OUT_TRANSACTION_CLEANUP_INTERVAL_MS": "1000",
    }
    container = DockerContainer(KAFKA).with_bind_ports(9092, port).with_envs(**environment)
    bootstrap = f"{LOOPBACK}:{port}"

    @wait_container_is_ready(KafkaException)
    def answers() -> None:
        AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}).list_topics(timeout=5)

    with container:
        answers()
        yield bootstrap


@contextmanager
def registry() -> Iterator[str]:
    """The URL for a client of Confluent's registry."""
    port = choose_port(None, "the registry")
    container = DockerContainer(REGISTRY).with_bind_ports(8080, port)
    url = RegistryServer.address(port)

    @wait_container_is_ready(OSError)
    def answers() -> None:
        RegistryServer.prove_ready(url)

    with container:
        answers()
        yield url
