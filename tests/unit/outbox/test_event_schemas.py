"""Payloads of outbox events by the registry's schemas: asked for once, and again for what does not
fit.
"""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from twofold.errors import Refused
from twofold.kafka.registrar import Registrar
from twofold.kafka.schema_registry import SubjectSchema
from twofold.outbox.event_topics import EventSchemas
from twofold.outbox.outbox import OutboxEvent

TOPIC = "shop.outbox.event.order"
PLACED = {"type": "record", "name": "Placed", "fields": [{"name": "n", "type": "long"}]}
NOTED = {**PLACED, "fields": [*PLACED["fields"], {"name": "note", "type": "string", "default": ""}]}


class Registry:
    """Has schemas of one subject, and counts the questions."""

    def __init__(self, *schemas: object, kind: str = "AVRO", refers: bool = False) -> None:
        self.schemas = [json.dumps(schema) for schema in schemas]
        self.kind = kind
        self.refers = refers
        self.asked = 0

    def latest(self, subject: str) -> SubjectSchema | None:
        assert subject == f"{TOPIC}-value"
        self.asked += 1
        number = len(self.schemas)
        return SubjectSchema(number, self.schemas[-1], self.kind, self.refers) if number else None


def schemas_of(registry: Registry) -> EventSchemas:
    return EventSchemas(Registrar(cast("Any", registry), cast("Any", None), "shop"))


def event(payload: str | None) -> OutboxEvent:
    return OutboxEvent(TOPIC, b"A", None if payload is None else payload.encode(), (("id", b"1"),))


def value(schemas: EventSchemas, payload: str | None) -> bytes | None:
    encoded = schemas.encoded(event(payload), "public.outbox")
    assert encoded._replace(value=None) == event(None), "key and headers stay as they are"
    return encoded.value


def test_payloads_are_avro_by_the_schema_of_their_topic_which_is_asked_for_once() -> None:
    registry = Registry(PLACED)
    schemas = schemas_of(registry)
    assert [value(schemas, f'{{"n": {n}}}') for n in (1, 2)] == [b"\0\0\0\0\1\2", b"\0\0\0\0\1\4"]
    assert value(schemas, None) is None
    assert registry.asked == 1


def test_a_payload_of_the_next_version_finds_it() -> None:
    registry = Registry(PLACED)
    schemas = schemas_of(registry)
    assert value(schemas, '{"n": 1}') == b"\0\0\0\0\1\2"
    registry.schemas.append(json.dumps(NOTED))
    assert value(schemas, '{"n": 1}') == b"\0\0\0\0\1\2", "nobody has to ask for it"
    assert value(schemas, '{"n": 1, "note": "x"}') == b"\0\0\0\0\2\2\2x"
    assert value(schemas, '{"n": 1}') == b"\0\0\0\0\2\2\0"
    assert registry.asked == 2


def test_a_payload_that_fits_no_version_is_refused_by_its_place() -> None:
    schemas = schemas_of(Registry(PLACED))
    with pytest.raises(
        Refused, match=r"does not fit schema 1 of the subject shop\S*-value: \.n is no long, but a string"
    ):
        schemas.encoded(event('{"n": "x"}'), "public.outbox")


@pytest.mark.parametrize(
    ("registry", "words"),
    [
        (Registry(), "has no schema"),
        (Registry(PLACED, kind="JSON"), "it is JSON"),
        (Registry(PLACED, refers=True), "it refers to other subjects"),
        (Registry("bytes"), "has no values in JSON"),
    ],
)
def test_a_subject_without_a_schema_that_fits_is_refused(registry: Registry, words: str) -> None:
    with pytest.raises(Refused, match=words):
        schemas_of(registry).encoded(event("{}"), "public.outbox")
