"""Confluent's frame around the Avro bytes, the partition that Java's default partitioner would
choose, and what an envelope says of its change behind the two rows. Pure.

Compiled if a C compiler is there, because every row passes through here. `wire.pxd` declares what
the transcoder calls as C.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twofold_avro.errors import MalformedRecord, NotFramed

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
    """Return the partition of a key by all its bytes, as a Java producer chooses it."""
    hashed: cython.uint = murmur2(key)
    return (hashed & 0x7FFFFFFF) % partitions


Origin = tuple[str, str, int, int, "int | None", str, "str | None", int, list[str], list[dict[str, str]]]
"""Schema, table, `ts_us`, `lsn` and `commit_lsn` of the source block; the op; the transaction's id
and the change's ordinal in it, None and 0 without one; `unchanged` and `special`."""


def read_origin(data: bytes, at: cython.Py_ssize_t) -> Origin:
    """Return what an envelope has behind `before` and `after`, from this byte on to the end.

    The layout is that of `schemas.envelope_schema`. MalformedRecord: the bytes contradict it.
    """
    reader = Reader(data, at)
    for _ in range(4):  # version, connector, name, db
        reader.skip_text()
    schema = reader.text()
    table = reader.text()
    reader.number()  # ts_ms
    ts_us: cython.longlong = reader.number()
    reader.skip_optional(False)  # txId
    lsn: cython.longlong = reader.number()
    reader.skip_optional(True)  # gid
    reader.skip_text()  # snapshot
    reader.skip_optional(True)  # global_id
    reader.skip_optional(True)  # branch
    has_commit = reader.number()
    commit_lsn = reader.number() if has_commit else None
    op = reader.text()
    reader.skip_optional(False)  # ts_ms
    identity = None
    number: cython.longlong = 0
    if reader.number():
        identity = reader.text()
        number = reader.number()
        reader.number()  # data_collection_order
    unchanged: list[str] = []
    count: cython.Py_ssize_t = reader.items()
    while count:
        unchanged += [reader.text() for _ in range(count)]
        count = reader.items()
    special: list[dict[str, str]] = []
    count = reader.items()
    while count:
        special += [{"row": reader.text(), "column": reader.text(), "text": reader.text()} for _ in range(count)]
        count = reader.items()
    reader.check_end()
    return schema, table, ts_us, lsn, commit_lsn, op, identity, number, unchanged, special


@cython.final
@cython.cclass
class Reader:
    """Reads Avro's primitives of bytes, and none beyond their end."""

    data: bytes
    src: cython.p_uchar
    at: cython.Py_ssize_t
    size: cython.Py_ssize_t

    def __init__(self, data: bytes, at: cython.Py_ssize_t) -> None:
        self.data = data
        self.src = data
        self.at = at
        self.size = len(data)

    @cython.cfunc
    def number(self) -> cython.longlong:
        value: cython.ulonglong = 0
        shift: cython.uint = 0
        part: cython.ulonglong
        while True:
            if self.at >= self.size or shift > 63:
                raise MalformedRecord("its bytes end within a number")
            part = self.src[self.at]
            self.at += 1
            value |= (part & 0x7F) << shift
            if part < 0x80:
                break
            shift += 7
        half: cython.longlong = value >> 1
        return -half - 1 if value & 1 else half

    @cython.cfunc
    def length(self) -> cython.Py_ssize_t:
        """Read the length of what follows, which must be there."""
        length: cython.longlong = self.number()
        if length < 0 or length > self.size - self.at:
            raise MalformedRecord("its bytes end within a text")
        return length

    @cython.cfunc
    def text(self) -> str:
        length: cython.Py_ssize_t = self.length()
        start: cython.Py_ssize_t = self.at
        self.at += length
        return self.data[start : start + length].decode()

    @cython.cfunc
    def skip_text(self) -> cython.Py_ssize_t:
        length: cython.Py_ssize_t = self.length()
        self.at += length
        return self.at

    @cython.cfunc
    def skip_optional(self, is_text: cython.bint) -> cython.Py_ssize_t:
        if self.number():
            if is_text:
                self.skip_text()
            else:
                self.number()
        return self.at

    @cython.cfunc
    def items(self) -> cython.Py_ssize_t:
        """Read how many items the next block of an array has; 0 behind the last."""
        count: cython.longlong = self.number()
        if count < 0:
            self.number()  # the block's bytes
            count = -count
        if count > self.size - self.at:
            raise MalformedRecord("its bytes end within an array")
        return count

    @cython.cfunc
    def check_end(self) -> cython.Py_ssize_t:
        if self.at != self.size:
            raise MalformedRecord("its bytes go on behind the envelope")
        return self.at
