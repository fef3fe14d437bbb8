"""Confluent's frame around the Avro bytes, and the partition that Java's default partitioner would
choose. Pure.

Compiled if a C compiler is there, because every row's key passes through here. `wire.pxd` declares
it, so that the transcoder calls it as C.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twofold_avro.errors import NotFramed

if TYPE_CHECKING:
    from twofold_avro import plain as cython
else:
    try:
        import cython
    except ModuleNotFoundError:
        from twofold_avro import plain as cython

HEADER_BYTES = 5
"""Magic 0 and the registry's id of the schema, big-endian."""


def header(schema_id: int) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big")


def frame(schema_id: int, body: bytes) -> bytes:
    return header(schema_id) + body


def unframe(message: bytes) -> tuple[int, bytes]:
    """Return the schema's id and the Avro bytes."""
    if len(message) < HEADER_BYTES or message[0] != 0:
        start = message[:HEADER_BYTES].hex() or "nothing"
        raise NotFramed(
            f"not in the registry's wire format: {len(message)} bytes that start with {start}, "
            "expected 00 and a schema id; was this topic written by another program?"
        )
    return int.from_bytes(message[1:HEADER_BYTES], "big"), message[HEADER_BYTES:]


def murmur2(data: bytes) -> cython.uint:
    """Return Kafka's murmur2 (32 bits, seed 0x9747b28c) as an unsigned number."""
    src: cython.p_uchar = data
    size: cython.Py_ssize_t = len(data)
    whole: cython.Py_ssize_t = size & ~3
    at: cython.Py_ssize_t = 0
    # As variables, because Cython takes literals above 2**31 for Python's numbers.
    m: cython.ulonglong = 0x5BD1E995
    bits: cython.ulonglong = 0xFFFFFFFF
    k: cython.ulonglong
    h: cython.ulonglong = 0x9747B28C
    h ^= size
    while at < whole:
        k = src[at + 3]
        k = k << 24 | src[at + 2] << 16 | src[at + 1] << 8 | src[at]
        k = k * m & bits
        k = (k ^ (k >> 24)) * m & bits
        h = (h * m & bits) ^ k
        at += 4
    if size > whole:
        k = src[whole]
        if size > whole + 1:
            k |= src[whole + 1] << 8
        if size > whole + 2:
            k |= src[whole + 2] << 16
        h = (h ^ k) * m & bits
    h = (h ^ (h >> 13)) * m & bits
    return h ^ (h >> 15)


def partition_of(key: bytes, partitions: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Return the partition of a key by its whole bytes, frame included, as a Java producer chooses
    it.
    """
    hashed: cython.uint = murmur2(key)
    return (hashed & 0x7FFFFFFF) % partitions
