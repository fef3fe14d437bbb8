"""Confluent's frame, and the partition that a Java producer would choose."""

from __future__ import annotations

import io
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.avro.capture import uncompiled
from twofold_avro import wire
from twofold_avro.errors import MalformedRecord, NotFramed
from twofold_avro.schemas import envelope_schema
from twofold_avro.shapes import TableShape

JAVA = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}
"""The vectors of Kafka's own UtilsTest.testMurmur2."""


@pytest.mark.parametrize("module", [wire, uncompiled("wire")], ids=["installed", "source"])
def test_murmur2_is_kafkas(module: object) -> None:
    for data, signed in JAVA.items():
        assert module.murmur2(data) == signed & 0xFFFFFFFF  # type: ignore[attr-defined]


@given(st.binary(max_size=70), st.integers(1, 1000))
def test_both_runs_agree(data: bytes, partitions: int) -> None:
    assert wire.murmur2(data) == uncompiled("wire").murmur2(data)
    assert 0 <= wire.partition_of(data, partitions) < partitions


@given(st.integers(0, 2**31 - 1), st.binary(max_size=20))
def test_a_frame_comes_off_again(schema_id: int, body: bytes) -> None:
    message = wire.frame(schema_id, body)
    assert message[0] == 0
    assert int.from_bytes(message[1:5], "big") == schema_id
    assert wire.unframe(message) == (schema_id, body)


@pytest.mark.parametrize("message", [b"", b"\0\0\0\0", b"\1\0\0\0\1x", b'{"a": 1}'])
def test_what_has_no_frame_is_refused(message: bytes) -> None:
    with pytest.raises(NotFramed, match="another program"):
        wire.unframe(message)


TAIL = {**envelope_schema(TableShape(0, "public", "t", ()), "bank"), "name": "Tail"}
TAIL["fields"] = TAIL["fields"][2:]
PARSED = fastavro.parse_schema(TAIL)
LONG, TEXT = st.integers(-(2**63), 2**63 - 1), st.text(max_size=5)
SPECIAL = st.fixed_dictionaries({"row": TEXT, "column": TEXT, "text": TEXT})
SOURCE = st.fixed_dictionaries(
    {
        **dict.fromkeys(("version", "connector", "name", "db", "schema", "table", "snapshot"), TEXT),
        **dict.fromkeys(("ts_ms", "ts_us", "lsn"), LONG),
        **dict.fromkeys(("txId", "commit_lsn"), st.none() | LONG),
        **dict.fromkeys(("gid", "global_id", "branch"), st.none() | TEXT),
    }
)
TRANSACTION = st.fixed_dictionaries({"id": TEXT, "total_order": LONG, "data_collection_order": LONG})
ENVELOPE = st.fixed_dictionaries(
    {
        "source": SOURCE,
        "op": TEXT,
        "ts_ms": st.none() | LONG,
        "transaction": st.none() | TRANSACTION,
        "unchanged": st.lists(TEXT, max_size=3),
        "special": st.lists(SPECIAL, max_size=3),
    }
)


def encoded(envelope: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, PARSED, envelope)
    return out.getvalue()


@pytest.mark.parametrize("module", [wire, uncompiled("wire")], ids=["installed", "source"])
@given(ENVELOPE, st.binary(max_size=5))
def test_what_is_behind_the_rows_is_read_as_fastavro_reads_it(module: Any, envelope: Any, before: bytes) -> None:
    source, transaction = envelope["source"], envelope["transaction"] or {"id": None, "total_order": 0}
    assert module.read_origin(before + encoded(envelope), len(before)) == (
        *(source[name] for name in ("schema", "table", "ts_us", "lsn", "commit_lsn")),
        envelope["op"],
        transaction["id"],
        transaction["total_order"],
        envelope["unchanged"],
        envelope["special"],
    )


@pytest.mark.parametrize("module", [wire, uncompiled("wire")], ids=["installed", "source"])
@given(ENVELOPE, st.data())
def test_bytes_that_end_early_or_go_on_are_malformed(module: Any, envelope: Any, data: st.DataObject) -> None:
    whole = encoded(envelope)
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    for wrong in (cut, whole + b"\0"):
        with pytest.raises((MalformedRecord, UnicodeDecodeError)):
            module.read_origin(wrong, 0)


@pytest.mark.parametrize("module", [wire, uncompiled("wire")], ids=["installed", "source"])
@given(st.binary(max_size=60))
def test_bytes_of_others_end_in_an_error_at_most(module: Any, data: bytes) -> None:
    try:
        module.read_origin(data, 0)
    except (MalformedRecord, UnicodeDecodeError):
        return
