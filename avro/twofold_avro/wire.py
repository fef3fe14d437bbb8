"""Around the Avro bytes: Confluent's frame, and the partition that Java's default partitioner would choose. Pure."""

from __future__ import annotations

from twofold_avro.errors import NotFramed

MAGIC = 0
HEADER_BYTES = 5
MAX_SCHEMA_ID = 0x7FFFFFFF


def header(schema_id: int) -> bytes:
    """What stands before every message's Avro bytes: magic 0 and the registry's id, big-endian."""
    return bytes([MAGIC]) + schema_id.to_bytes(4, "big")


def frame(schema_id: int, body: bytes) -> bytes:
    return header(schema_id) + body


def unframe(message: bytes) -> tuple[int, bytes]:
    """The schema's id and the Avro bytes."""
    if len(message) < HEADER_BYTES or message[0] != MAGIC:
        raise NotFramed(
            f"not in the registry's wire format: {len(message)} bytes that start with {message[:HEADER_BYTES].hex() or 'nothing'}; "
            "expected 00 and a schema id: was this topic written by another program?"
        )
    return int.from_bytes(message[1:HEADER_BYTES], "big"), message[HEADER_BYTES:]


def murmur2(data: bytes) -> int:
    """Kafka's murmur2 (32 bits, seed 0x9747b28c), as an unsigned number."""
    length = len(data)
    h = 0x9747B28C ^ length
    whole = length & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * 0x5BD1E995 & 0xFFFFFFFF
        k ^= k >> 24
        h = (h * 0x5BD1E995 & 0xFFFFFFFF) ^ (k * 0x5BD1E995 & 0xFFFFFFFF)
    if length > whole:
        h = (h ^ int.from_bytes(data[whole:], "little")) * 0x5BD1E995 & 0xFFFFFFFF
    h = (h ^ h >> 13) * 0x5BD1E995 & 0xFFFFFFFF
    return h ^ h >> 15


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of a key, by its whole bytes, frame included: what a Java producer would choose."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
