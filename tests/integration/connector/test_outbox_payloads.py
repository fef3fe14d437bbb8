"""Payloads of outbox events by the registry's schemas, read by Confluent's own deserializer."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient, topic_subject_name_strategy
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from fixtures.connector import Installation, Maker, wait_until
from helpers.connector import ledger
from helpers.reading import read_to_end

OUTBOX = "CREATE TABLE outbox (id bigserial PRIMARY KEY, aggregatetype text NOT NULL, aggregateid text, type text, payload jsonb)"
AS_AVRO = '\n[[outbox]]\ntable = "public.outbox"\npayload_encoding = "avro"\n'
ORDER: dict[str, Any] = {
    "type": "record", "name": "Order", "namespace": "shop", "fields": [
        {"name": "id", "type": "long"},
        {"name": "total", "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}},
        {"name": "placed_at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "lines", "type": {"type": "array", "items": {"type": "record", "name": "Line", "fields": [
            {"name": "sku", "type": "string"}, {"name": "count", "type": "int"}]}}},
    ],
}  # fmt: skip
WITH_NOTE = {**ORDER, "fields": [*ORDER["fields"], {"name": "note", "type": ["null", "string"], "default": None}]}
SAID = {"id": 1, "total": 12.5, "placed_at": "2026-11-26T01:00:00.000001+01:00", "lines": [{"sku": "A", "count": 2}]}
READ = {**SAID, "total": Decimal("12.50"), "placed_at": datetime(2026, 11, 26, 0, 0, 0, 1, tzinfo=UTC)}


@pytest.fixture
def here(connector: Maker) -> Installation:
    """An installation whose outbox is Avro."""
    made = connector(init=False)
    made.sql(ledger.SCHEMA, OUTBOX)
    made.configure({"source": {"tables": ["public.account", "public.outbox"]}})
    with made.file.open("a") as file:
        file.write(AS_AVRO)
    assert (done := made.init()).returncode == 0, done.stderr
    return made


def topic(here: Installation) -> str:
    return f"{here.prefix}.outbox.event.order"


def register(here: Installation, schema: object) -> int:
    with SchemaRegistryClient({"url": here.reader.registry_url, "timeout": 10}) as client:
        return int(client.register_schema(f"{topic(here)}-value", Schema(json.dumps(schema), "AVRO")))


def say(here: Installation, *payloads: object) -> None:
    for payload in payloads:
        text = "NULL" if payload is None else f"'{json.dumps(payload)}'"
        here.sql(f"INSERT INTO outbox (aggregatetype, aggregateid, payload) VALUES ('order', 'A', {text})")


def raw(here: Installation) -> list[bytes | None]:
    """The values of all events, of one key, in their order."""
    here.caught_up()
    wanted = int(here.ask("SELECT count(*) FROM outbox"))

    def read_all() -> list[bytes | None] | None:
        values = [message.value() for message in read_to_end(here.reader.bootstrap, [topic(here)], patience_s=20)]
        return values if len(values) == wanted else None

    found: list[bytes | None] = wait_until(read_all, 90, f"{wanted} events")
    return found


def read(here: Installation, values: list[bytes | None]) -> list[Any]:
    where = SerializationContext(topic(here), MessageField.VALUE)
    with SchemaRegistryClient({"url": here.reader.registry_url, "timeout": 10}) as client:
        deserializer = AvroDeserializer(client, conf={"subject.name.strategy": topic_subject_name_strategy})
        return [value and deserializer(value, where) for value in values]


@pytest.mark.core
def test_outbox_payloads_are_avro_by_the_registrys_schema_and_its_next_version(here: Installation) -> None:
    first = register(here, ORDER)
    with here.carrying():
        say(here, SAID, None)
        assert read(here, raw(here)) == [READ, None]
        second = register(here, WITH_NOTE)
        here.prepare("noted", f"INSERT INTO outbox (aggregatetype, aggregateid, payload) VALUES ('order', 'A', '{json.dumps({**SAID, 'note': 'new'})}')")  # fmt: skip
        here.sql("COMMIT PREPARED 'noted'")
        say(here, SAID)
        values = raw(here)
    assert [int.from_bytes(value[1:5], "big") for value in values if value] == [first, second, second]
    assert read(here, values) == [READ, None, {**READ, "note": "new"}, {**READ, "note": None}]


def test_an_outbox_topic_without_a_schema_is_refused_until_there_is_one(here: Installation) -> None:
    say(here, SAID)
    refusal = here.refusal()
    assert f"the subject {topic(here)}-value has no schema" in str(refusal)
    register(here, ORDER)
    with here.carrying():
        assert read(here, raw(here)) == [READ]


def test_an_outbox_payload_that_does_not_fit_is_refused_with_repairs_that_work(here: Installation) -> None:
    register(here, ORDER)
    say(here, SAID, {**SAID, "note": "a secret"})
    refusal = here.refusal()
    assert f"does not fit schema {register(here, ORDER)} of the subject {topic(here)}-value: .note is no field of shop.Order" in str(refusal)  # fmt: skip
    assert "a secret" not in str(refusal)
    register(here, WITH_NOTE)
    with here.carrying():
        assert read(here, raw(here)) == [READ, {**READ, "note": "a secret"}]
    say(here, {**SAID, "id": "seventeen"})
    assert ".id is no long, but a string" in str(here.refusal())
    as_avro = here.file.read_text()
    here.file.write_text(as_avro.replace('"avro"', '"none"'))
    with here.carrying():
        *_, text = raw(here)
    assert text is not None
    assert json.loads(text)["id"] == "seventeen"
    here.file.write_text(as_avro)
    with here.carrying():
        say(here, SAID)
        values = raw(here)
    assert read(here, values[3:]) == [{**READ, "note": None}]
