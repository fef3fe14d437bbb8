"""Confluent's own deserializer and registry take our schemas and bytes as they are."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Protocol

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient, topic_subject_name_strategy
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from fixtures.connector import Installation, Maker, wait_until
from helpers.avro.capture import LSN, PARTITIONS, SERVER, TS_US, Capture, Message, append, modules
from helpers.connector.topics import Reader
from twofold_avro.names import topic_of
from twofold_avro.schemas import canonical, envelope_schema, key_schema

pytestmark = pytest.mark.core


class _Registry(Protocol):
    @property
    def url(self) -> str: ...


@pytest.fixture
def capture(database: str, prefix: str) -> Iterator[Capture]:
    made = Capture(database, prefix)
    made.run(
        "CREATE TABLE public.t (id int, day date, note text, price numeric(9,2), tags text[], PRIMARY KEY (id, day))"
    )
    made.publish("public.t")
    yield made
    made.close()


def test_confluents_deserializer_reads_key_and_value(capture: Capture, registry: _Registry, prefix: str) -> None:
    capture.run(
        "INSERT INTO public.t VALUES (1, '2024-02-29', 'ä', 'NaN', '{a,NULL}'), (2, 'infinity', NULL, 1.50, NULL)"
    )
    capture.run("UPDATE public.t SET id = 3 WHERE id = 1")
    capture.run("DELETE FROM public.t")
    payloads = capture.changes()
    shape = capture.shape("t")
    topic = topic_of(prefix, shape.schema, shape.table)
    with SchemaRegistryClient({"url": registry.url, "timeout": 10}) as client:
        key_id = client.register_schema(f"{topic}-key", Schema(canonical(key_schema(shape, prefix)), "AVRO"))
        value_id = client.register_schema(f"{topic}-value", Schema(canonical(envelope_schema(shape, prefix)), "AVRO"))
        assert value_id == client.register_schema(
            f"{topic}-value", Schema(canonical(envelope_schema(shape, prefix)), "AVRO")
        )
        read = AvroDeserializer(client)
        for module in modules():
            ids = {"key_schema_id": key_id, "value_schema_id": value_id}
            plan = module.RowPlan(shape, **ids, partitions=PARTITIONS, server=SERVER, tombstones=True)
            header = module.TransactionHeader(7, TS_US, "7:1")
            made: list[Message] = []
            for payload in payloads:
                lists: list[list[Message]] = [[] for _ in range(PARTITIONS)]
                append(plan, payload, LSN, header, lists)
                made += [m for messages in lists for m in messages]
            keys: list[Any] = [read(m["key"], SerializationContext(topic, MessageField.KEY)) for m in made]
            values: list[Any] = [read(m["value"], SerializationContext(topic, MessageField.VALUE)) for m in made]
            assert {(key["id"], key["day"]) for key in keys} == {(1, "2024-02-29"), (2, "infinity"), (3, "2024-02-29")}
            assert sorted(v["op"] for v in values if v is not None) == ["c", "c", "c", "d", "d", "d"]
            assert values.count(None) == 3


class Confluents(Reader):
    """Reads every record in Avro with Confluent's deserializer as well, which must agree; counts
    them.
    """

    def __init__(self, bootstrap: str, registry_url: str, client: SchemaRegistryClient) -> None:
        super().__init__(bootstrap, registry_url)
        # Its default strategy would ask the registry for an association first, at each call.
        self._confluents = AvroDeserializer(client, conf={"subject.name.strategy": topic_subject_name_strategy})
        self.agreed = 0

    def decode(self, data: bytes | None) -> Any:
        read = super().decode(data)
        if data is not None and data.startswith(b"\0"):
            assert self._confluents(data, SerializationContext("any", MessageField.VALUE)) == read
            self.agreed += 1
        return read


def noted(here: Installation, gid: str) -> bool:
    """In the ledger, where what ends at once never comes."""
    return gid in {entry["gid"] for entry in here.records("prepared")}


def test_it_reads_every_topic_of_a_connector(connector: Maker, registry: _Registry) -> None:
    here = connector()
    with here.carrying():
        here.sql(
            "INSERT INTO account VALUES (1, 1, 'x')",
            "DELETE FROM account",
            "INSERT INTO journal VALUES ('keyless')",
            "SELECT pg_logical_emit_message(true, 'p', 'within'), pg_logical_emit_message(false, 'p', 'outside')",
        )
        for gid, end in (("a", "COMMIT"), ("b", "ROLLBACK")):
            here.prepare(gid, f"INSERT INTO transfer VALUES ('{gid}', 1, 1)")
            wait_until(partial(noted, here, gid))
            here.sql(f"{end} PREPARED '{gid}'")
        here.sql("TRUNCATE transfer")
        here.caught_up()
    with SchemaRegistryClient({"url": registry.url, "timeout": 10}) as client:
        reader = Confluents(registry_url=registry.url, bootstrap=here.reader.bootstrap, client=client)
        for topic in here.reader.topics(here.prefix):
            seen = reader.read([topic])
            in_avro = sum(isinstance(part, dict) for s in seen for part in (s.key, s.value))
            assert reader.agreed == in_avro > 0, topic
            reader.agreed = 0
