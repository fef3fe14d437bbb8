"""Confluent's frame, and the partition that a Java producer would choose."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.avro.capture import uncompiled
from twofold_avro import wire
from twofold_avro.errors import NotFramed

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
