"""The short form of `make fuzz` for the readers of Kafka's records."""

from __future__ import annotations

import io
import json
import random
from itertools import islice

import fastavro
import pytest

from fuzz.hostile_records import ENVELOPE_ID, IDS, READERS, VALUES, Registry, hostile, judge, varint
from twofold.errors import UnreadableRecord
from twofold_avro import wire
from twofold_avro.records import Commit


@pytest.mark.parametrize("reader", READERS)
def test_hostile_bytes_are_a_value_or_named(reader: str) -> None:
    messages = islice(hostile(random.Random(reader)), 500)
    assert {judge(READERS[reader], message) for message in messages} >= {False}


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_record_and_each_of_its_beginnings(value: Commit) -> None:
    kind = type(value)
    whole = value.to_bytes(IDS[kind])
    read = READERS[kind.__name__.lower()]
    assert read(whole) == value
    assert [judge(read, whole[:end]) for end in range(len(whole))] == [False] * len(whole)
    assert not judge(read, whole + b"\0")


def test_an_array_of_a_trillion_is_named_at_once() -> None:
    commit = Commit(5, "batch", 100, 5, 0, 0).to_bytes(IDS[Commit])
    endless = commit[:-3] + varint(2 << 40)
    with pytest.raises(UnreadableRecord, match=r"bank\.progress \[0\] at offset 4711 cannot be read: .*EOFError"):
        READERS["commit"](endless)


@pytest.mark.parametrize("source", ["text", {"table": "t"}])
@pytest.mark.parametrize("rest", ["text", 5, {"row": "before"}])
@pytest.mark.parametrize("op", ["c", "m", 5, {}])
def test_a_row_in_another_programs_schema_is_named(op: object, source: object, rest: object) -> None:
    """Its fields have the envelope's names, and other types."""
    row = dict.fromkeys(("before", "after", "special", "unchanged", "message"), rest) | {"op": op, "source": source}
    body = io.BytesIO()
    fastavro.schemaless_writer(body, json.loads(Registry().schema(ENVELOPE_ID)), row)
    is_message = op == "m" and isinstance(source, dict)
    assert judge(READERS["change"], wire.frame(ENVELOPE_ID, body.getvalue())) == is_message
