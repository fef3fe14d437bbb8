"""Debezium's JDBC sink in Kafka Connect: writes the topics of tables into another PostgreSQL
database.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote, urlsplit

from bench.connect import ConnectWorker
from psycopg.conninfo import conninfo_to_dict

AS_LITERALS = "stringtype=unspecified"
"""The driver sends text without a type, so that PostgreSQL reads it as it reads a literal of the
column's type.
"""


def made_worker(folder: Path, bootstrap: str) -> ConnectWorker:
    """A worker that knows the sink.

    In another time zone than UTC it would write another `timestamptz`.
    """
    return ConnectWorker(
        folder, bootstrap, plugins=("jdbc",), group=folder.name, jvm=("-Xmx768m", "-Duser.timezone=UTC")
    )


def settings(topics: Iterable[str], registry_url: str, conninfo: str, options: str = "") -> dict[str, str]:
    """A sink's.

    It writes into tables that are named as in the source, and makes those that are not there.
    """
    target = {name: str(value) for name, value in conninfo_to_dict(conninfo).items()}
    url = f"jdbc:postgresql://{target['host']}:{target['port']}/{quote(target['dbname'])}?{options}"
    registry = urlsplit(registry_url)
    converter = {
        "": "io.apicurio.registry.utils.converter.AvroConverter",
        ".apicurio.registry.url": f"{registry.scheme}://{registry.netloc}/apis/registry/v2",
        # The frame that Confluent's serializers write, and the ids that its API gives.
        ".apicurio.registry.as-confluent": "true",
        ".apicurio.registry.use-id": "contentId",
    }
    return {
        "connector.class": "io.debezium.connector.jdbc.JdbcSinkConnector",
        "topics": ",".join(topics),
        "consumer.override.auto.offset.reset": "earliest",
        "consumer.override.isolation.level": "read_committed",
        "connection.url": url,
        "connection.username": target["user"],
        "connection.password": target.get("password", "none"),
        "insert.mode": "upsert",
        "delete.enabled": "true",
        "primary.key.mode": "record_key",
        "schema.evolution": "basic",
        "collection.name.format": "${source.table}",
        "flush.max.retries": "0",
        **{f"{part}.converter{name}": value for part in ("key", "value") for name, value in converter.items()},
    }
