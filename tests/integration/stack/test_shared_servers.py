"""The session's servers are what every other integration test stands on."""

from __future__ import annotations

import psycopg
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.schema_registry import SchemaRegistryClient

from fixtures.stack import VERSION, Kafka, Postgres, Registry

pytestmark = pytest.mark.core


def test_postgres_is_ready_for_prepared_transactions_and_logical_slots(postgres: Postgres, database: str) -> None:
    assert VERSION is None or postgres.version == int(VERSION)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("SELECT pg_create_logical_replication_slot(current_database(), 'pgoutput', false, true)")
        connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
        connection.execute("BEGIN")
        connection.execute("INSERT INTO t VALUES (1)")
        connection.execute("PREPARE TRANSACTION 'left behind for the fixture to clean'")


def test_kafka_and_registry_answer(kafka: Kafka, registry: Registry) -> None:
    assert AdminClient({"bootstrap.servers": kafka.bootstrap}).list_topics(timeout=10).brokers
    with SchemaRegistryClient({"url": registry.url, "timeout": 10}) as client:
        assert client.get_compatibility() == "BACKWARD"
