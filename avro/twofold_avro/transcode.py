"""Turns a row's bytes from PostgreSQL into the bytes of its Kafka messages, in one pass, by a plan
for each table version.

    plan = RowPlan(shape, key_schema_id=1, value_schema_id=2, partitions=6,
                   server=ServerConstants(...), tombstones=True)
    behind, taken = plan.append_run([(wal_start, payload), ...], at, offset, header, ts_ms,
                                    lists, bytes_max)

Written in Cython's pure Python mode: one source that runs as it is, and that setup.py compiles if a
C compiler is there. The bytes are the same (tests/unit/avro). Pure: no IO, no clock, no registry.
It allocates its results and little else. One plan serves one thread, because it writes into a
buffer of its own.

A value that its Avro type cannot hold is null in its column and stands in `special`; see
`types.py`. Bytes that contradict the relation raise MalformedRow, and nothing is appended then.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from dataclasses import field as data_field
from math import isnan
from typing import TYPE_CHECKING, Any

from twofold_avro.errors import MalformedRow
from twofold_avro.hashing import HASH_SIZE
from twofold_avro.names import avro_name
from twofold_avro.shapes import ColumnShape, TableShape
from twofold_avro.text import NO_DIGITS, array_elements, binary_text, numeric_text
from twofold_avro.types import Encoding, How, encoding_of, key_encoding_of
from twofold_avro.wire import HEADER_BYTES
from twofold_avro.wire import header as frame_header

if TYPE_CHECKING:
    from twofold_avro import plain as cython
else:
    try:
        import cython
    except ModuleNotFoundError:
        from twofold_avro import plain as cython

if cython.compiled:
    from cython.cimports.libc.string import memcmp, memcpy
    from cython.cimports.twofold_avro.hashing import KeyedHash
    from cython.cimports.twofold_avro.wire import partition_of
else:
    from twofold_avro.hashing import KeyedHash
    from twofold_avro.wire import partition_of

# The numbers of types.How, as C numbers.
TEXT = cython.declare(cython.uint, 0)
TEXT_ONLY = cython.declare(cython.uint, 1)
INT = cython.declare(cython.uint, 2)
UNSIGNED = cython.declare(cython.uint, 3)
BOOL = cython.declare(cython.uint, 4)
FLOAT4 = cython.declare(cython.uint, 5)
FLOAT8 = cython.declare(cython.uint, 6)
BYTES = cython.declare(cython.uint, 7)
NUMERIC = cython.declare(cython.uint, 8)
DECIMAL = cython.declare(cython.uint, 9)
DATE = cython.declare(cython.uint, 10)
TIME = cython.declare(cython.uint, 11)
TIMESTAMP = cython.declare(cython.uint, 12)
TIMESTAMPTZ = cython.declare(cython.uint, 13)
UUID = cython.declare(cython.uint, 14)
JSONB = cython.declare(cython.uint, 15)
CHAR = cython.declare(cython.uint, 16)
ARRAY = cython.declare(cython.uint, 17)

# Bytes of the protocol, and of text.
INSERT = cython.declare(cython.uchar, 0x49)
UPDATE = cython.declare(cython.uchar, 0x55)
DELETE = cython.declare(cython.uchar, 0x44)
NEW_TUPLE = cython.declare(cython.uchar, 0x4E)
KEY_TUPLE = cython.declare(cython.uchar, 0x4B)
OLD_TUPLE = cython.declare(cython.uchar, 0x4F)
AS_NULL = cython.declare(cython.uchar, 0x6E)
AS_UNCHANGED = cython.declare(cython.uchar, 0x75)
AS_TEXT = cython.declare(cython.uchar, 0x74)
AS_BINARY = cython.declare(cython.uchar, 0x62)
MINUS = cython.declare(cython.uchar, 0x2D)
POINT = cython.declare(cython.uchar, 0x2E)
COLON = cython.declare(cython.uchar, 0x3A)
SPACE = cython.declare(cython.uchar, 0x20)
ZERO = cython.declare(cython.uchar, 0x30)
LETTER_BEFORE_10 = cython.declare(cython.uchar, 0x57)
"""The a of hexadecimal digits, less ten."""

LOWEST_TENTH = cython.declare(cython.longlong, -922_337_203_685_477_580)
"""The smallest number of 64 bits without its last digit."""
DAY_US = cython.declare(cython.longlong, 86_400_000_000)
DAYS_1970_TO_2000 = cython.declare(cython.longlong, 10_957)
FIRST_DAY = cython.declare(cython.longlong, -719_162)
LAST_DAY = cython.declare(cython.longlong, 2_932_896)
"""0001-01-01 and 9999-12-31, from 1970: the years that every reader of Avro supports."""
FLOAT8_FRACTION = cython.declare(cython.ulonglong, 0xF_FFFF_FFFF_FFFF)
FLOAT8_NAN = cython.declare(cython.ulonglong, 0x7FF8_0000_0000_0000)
FLOAT4_FRACTION = cython.declare(cython.ulonglong, 0x7F_FFFF)
FLOAT4_NAN = cython.declare(cython.ulonglong, 0x7FC0_0000)
NUMERIC_NEGATIVE = cython.declare(cython.longlong, 0x4000)
NUMERIC_HEAD_BYTES = cython.declare(cython.Py_ssize_t, 8)

# What a data policy does with a column.
KEEP = cython.declare(cython.uint, 0)
DROP = cython.declare(cython.uint, 1)
MAKE_NULL = cython.declare(cython.uint, 2)
REDACT = cython.declare(cython.uint, 3)
HASH = cython.declare(cython.uint, 4)
POLICIES = {None: 0, "drop": 1, "null": 2, "redact": 3, "hash": 4}
REDACTED = b"\x14[redacted]"
BINARY_HASH = "came in binary form, of which the text cannot be hashed: read this table without the option binary"

PLACEHOLDER = "__debezium_unavailable_value"
NAN = float("nan")
NO_OID = "the payload is of another relation"
NOT_ISO = "not a date of DateStyle ISO: the session that read it must set DateStyle"


@dataclass(frozen=True, slots=True)
class ServerConstants:
    """The values that all rows of one connector share."""

    version: str
    prefix: str
    db: str
    hash_key: bytes = data_field(default=b"", repr=False)
    """The key of hashed columns."""


def is_compiled() -> bool:
    """Whether the compiled row path is in use."""
    return bool(cython.compiled)


@cython.final
@cython.cclass
class Writer:
    """Writes Avro's primitives into a buffer that grows."""

    store: bytearray
    out: cython.p_uchar
    room: cython.Py_ssize_t
    n: cython.Py_ssize_t

    def __init__(self) -> None:
        self.store = bytearray(FIRST_ROOM)
        self.out = self.store
        self.room = FIRST_ROOM
        self.n = 0

    @cython.cfunc
    @cython.inline
    def reserve(self, more: cython.Py_ssize_t) -> None:
        if self.n + more > self.room:
            self.grow(more)

    @cython.cfunc
    def grow(self, more: cython.Py_ssize_t) -> None:
        self.store.extend(bytes(min(self.room, KEPT_ROOM) + more))
        self.out = self.store
        self.room = len(self.store)

    @cython.cfunc
    @cython.inline
    def byte(self, value: cython.uchar) -> None:
        """Write a byte without checking the room, like `long`: `copy` and every value's start
        reserve more.
        """
        self.out[self.n] = value
        self.n += 1

    @cython.cfunc
    @cython.inline
    def long(self, value: cython.longlong) -> None:
        rest: cython.ulonglong = (value << 1) ^ (value >> 63)
        n: cython.Py_ssize_t = self.n
        while rest > 0x7F:
            self.out[n] = (rest & 0x7F) | 0x80
            rest >>= 7
            n += 1
        self.out[n] = rest
        self.n = n + 1

    @cython.cfunc
    @cython.inline
    def copy(self, src: cython.p_uchar, at: cython.Py_ssize_t, size: cython.Py_ssize_t) -> None:
        self.reserve(size + SLACK)
        if cython.compiled:
            memcpy(self.out + self.n, src + at, size)
        else:
            self.out[self.n : self.n + size] = src[at : at + size]
        self.n += size

    @cython.cfunc
    @cython.inline
    def sized(self, src: cython.p_uchar, at: cython.Py_ssize_t, size: cython.Py_ssize_t) -> None:
        """Write a string or bytes."""
        self.long(size)
        self.copy(src, at, size)

    @cython.cfunc
    def whole(self, data: bytes) -> None:
        self.copy(data, 0, len(data))

    @cython.cfunc
    def taken(self) -> bytes:
        """Return what was written, and empty the buffer."""
        written: bytes = self.out[: self.n] if cython.compiled else bytes(self.store[: self.n])
        self.empty()
        return written

    @cython.cfunc
    @cython.inline
    def empty(self) -> None:
        self.n = 0
        if self.room > KEPT_ROOM:
            self.store = bytearray(FIRST_ROOM)
            self.out = self.store
            self.room = FIRST_ROOM


FRAME_BYTES = cython.declare(cython.Py_ssize_t, HEADER_BYTES)
HASH_BYTES = cython.declare(cython.Py_ssize_t, HASH_SIZE)
SLACK = cython.declare(cython.Py_ssize_t, 128)
"""Room that is always there: more than all fixed-size parts that are written between two copies."""
FIRST_ROOM = cython.declare(cython.Py_ssize_t, 4096)
KEPT_ROOM = cython.declare(cython.Py_ssize_t, 16 << 20)
"""A buffer doubles up to this size. What a large value needs beyond it is given back behind the
value.
"""


@cython.final
@cython.cclass
class Codec:
    """The encoding of one column, as C numbers."""

    how: cython.uint
    as_text: cython.bint
    reads_binary: cython.bint
    scale: cython.uint
    width: cython.Py_ssize_t
    element: Codec
    delimiter: bytes

    def __init__(self, encoding: Encoding) -> None:
        self.how = int(encoding.how)
        self.as_text = encoding.as_text
        self.reads_binary = encoding.reads_binary
        self.scale = encoding.scale
        self.width = encoding.width
        self.element = Codec(encoding.element) if encoding.element is not None else self
        self.delimiter = encoding.delimiter.encode()


@cython.final
@cython.cclass
class Column:
    """A column of the plan."""

    shape: ColumnShape
    name: bytes
    value: Codec
    key: Codec
    in_key: cython.bint
    optional: cython.bint
    policy: cython.uint
    not_sent: bytes

    def __init__(self, shape: ColumnShape, *, placeholders: bool) -> None:
        encoding = encoding_of(shape.type)
        self.shape = shape
        self.name = avro_string(avro_name(shape.name))
        self.policy = POLICIES[shape.policy]
        if self.policy == HASH:
            encoding = replace(encoding, reads_binary=False)  # what COPY sends is text that needs no form
        self.value = Codec(encoding)
        self.key = Codec(key_encoding_of(shape.type))
        self.in_key = shape.in_key
        self.optional = shape.optional or not (shape.in_key and encoding.total)
        placeholder = placeholder_of(encoding) if placeholders else None
        self.not_sent = b"\0" if placeholder is None else b"\2" + placeholder


@cython.final
@cython.cclass
class Field:
    """The place of a column's value in the payload."""

    tag: cython.uchar
    at: cython.Py_ssize_t
    size: cython.Py_ssize_t

    def __init__(self) -> None:
        self.tag = 0
        self.at = 0
        self.size = 0


NOT_OF_SNAPSHOT = b"\x0afalse"
ENDING = b"\0" + NOT_OF_SNAPSHOT + b"\0\0"
ENDING_OF_SNAPSHOT = b"\0\x08true\0\0"
"""The end of a header without a gid: the mark of a snapshot's row, and nulls for the gid's parts.

The commit's position follows.
"""


NOTHING = b"\0\0\0\0"


@cython.final
@cython.cclass
class TransactionHeader:
    """The part that all rows of one transaction share, encoded once; it counts their order.

    `xid` and `transaction_id` are None for backfilled rows, which belong to no transaction. `ts_us`
    is since 1970. `global_id` and `branch` come from the gid, if its form is known. `commit_lsn` is
    known if the rows are encoded behind the decision to commit.

    The header that `later()` makes leaves out what a row of a transaction in progress cannot know
    yet. Such values are no messages until the header of the transaction's end completes them with
    `finish`.
    """

    origin: bytes
    ending: bytes
    block: bytes
    total: cython.longlong
    of_table: dict[int, int]
    open_end: cython.bint

    def __init__(
        self,
        xid: int | None,
        ts_us: int,
        transaction_id: str | None,
        gid: str | None = None,
        global_id: str | None = None,
        branch: str | None = None,
        commit_lsn: int | None = None,
    ) -> None:
        self.open_end = False
        self.origin = avro_long(ts_us // 1000) + avro_long(ts_us) + optional_long(xid)
        if gid is None:
            self.ending = ENDING if xid is not None else ENDING_OF_SNAPSHOT
        else:
            self.ending = optional_string(gid) + NOT_OF_SNAPSHOT + optional_string(global_id) + optional_string(branch)
        self.ending += optional_long(commit_lsn)
        self.block = b"" if transaction_id is None else b"\2" + avro_string(transaction_id)
        self.total = 0
        self.of_table = {}

    def next_order(self, relation: int) -> tuple[int, int]:
        """Count one more change: its ordinal in the transaction and in its relation (0 for logical
        messages).
        """
        self.total += 1
        ordinal: int = self.of_table.get(relation, 0) + 1
        self.of_table[relation] = ordinal
        return self.total, ordinal

    @staticmethod
    def later() -> TransactionHeader:
        """Return a header for rows of a transaction in progress."""
        header = TransactionHeader(None, 0, None)
        header.open_end = True
        return header

    def finish(
        self,
        packed: bytes,
        relation: int,
        ids: tuple[int, int],
        lists: list[list[dict[str, bytes | None]]],
    ) -> None:
        """Complete a `Packer`'s records of one relation, count the changes in order, append them to
        their lists.

        A record without a key goes to all lists. `ids` are the schemas' ids of key and value,
        whichever were known when the rows were encoded.
        """
        src: cython.p_uchar = packed
        at: cython.Py_ssize_t = 0
        end: cython.Py_ssize_t = len(packed)
        size: cython.Py_ssize_t
        w: Writer = Writer()
        partitions = len(lists)
        key_id: cython.longlong = ids[0]
        key_frame: bytes = frame_header(ids[0])
        value_frame: bytes = frame_header(ids[1])
        ordinal: cython.longlong = self.of_table.get(relation, 0)
        key: bytes | None
        value: bytes | None
        while at < end:
            key = value = None
            size = be32(src, at) - 1
            at += 4
            if size >= 0:
                if be32(src, at + 1) == key_id:
                    key = src[at : at + size]
                else:
                    w.whole(key_frame)
                    w.copy(src, at + FRAME_BYTES, size - FRAME_BYTES)
                    key = w.taken()
                at += size
            size = be32(src, at) - 1
            at += 4
            if size >= 0:
                self.total += 1
                ordinal += 1
                value = self._finished(w, src, at, at + size - 4, value_frame, ordinal)
                at += size
            record: dict[str, bytes | None] = {"key": key, "value": value}
            if key is not None:
                lists[partition_of(key, partitions)].append(record)
            else:
                for of_partition in lists:
                    of_partition.append(record)
        self.of_table[relation] = ordinal

    @cython.cfunc
    def _finished(
        self,
        w: Writer,
        src: cython.p_uchar,
        start: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        frame: bytes,
        ordinal: cython.longlong,
    ) -> bytes:
        """Return a completed value.

        Its last four bytes say where the origin belongs; the lsn, the op with ts_ms, and the rest
        follow there.
        """
        origin_at: cython.Py_ssize_t = start + be32(src, end)
        ending_at: cython.Py_ssize_t = after_long(src, origin_at)
        block_at: cython.Py_ssize_t = after_long(src, ending_at + 3)
        w.whole(frame)
        w.copy(src, start + FRAME_BYTES, origin_at - start - FRAME_BYTES)
        w.whole(self.origin)
        w.copy(src, origin_at, ending_at - origin_at)
        w.whole(self.ending)
        w.copy(src, ending_at, block_at - ending_at)
        w.whole(self.block)
        w.long(self.total)
        w.long(ordinal)
        w.copy(src, block_at, end - block_at)
        return w.taken()

    @cython.cfunc
    def count(self, w: Writer, relation: int) -> None:
        """Return the block of the transaction, with the next ordinals in it."""
        if not self.block:
            w.byte(0)
            return
        self.total += 1
        ordinal: int = self.of_table.get(relation, 0) + 1
        self.of_table[relation] = ordinal
        w.whole(self.block)
        w.long(self.total)
        w.long(ordinal)


@cython.final
@cython.cclass
class Packer:
    """Packs rows of transactions in progress as bytes, for `TransactionHeader.finish`.

    Its buffer is kept: a new one for each megabyte would cost more than filling it.
    """

    writer: Writer

    def __init__(self) -> None:
        self.writer = Writer()

    def pack(self, records: list[dict[str, bytes | None]], start: cython.Py_ssize_t, end: cython.Py_ssize_t) -> bytes:
        """Pack a part of `records`: key and value of each, behind their sizes plus one; 0 means
        None.
        """
        record: dict[str, bytes | None]
        i: cython.Py_ssize_t
        for i in range(start, end):
            record = records[i]
            pack(self.writer, record["key"])
            pack(self.writer, record["value"])
        return self.writer.taken()


@cython.final
@cython.cclass
class PartitionPacker:
    """Packs rows of a snapshot as bytes, by partition, for `PackedRecords`.

    Many rows wait for their publication. Packed, they take half the memory of records, and are not
    fetched from memory object by object.
    """

    writers: list[Writer]

    def __init__(self, partitions: int) -> None:
        self.writers = [Writer() for _ in range(partitions)]

    def take_rows(self) -> list[bytes]:
        """Return each partition's packed rows, and empty the buffers."""
        w: Writer
        packed: list[bytes] = []
        for w in self.writers:
            packed.append(w.taken())  # noqa: PERF401 - the loop's variable has a type in C
        return packed

    @cython.cfunc
    def add(self, partition: cython.Py_ssize_t, key: bytes | None, value: Writer) -> None:
        """Pack a row whose value stands in a writer, and empty that."""
        w: Writer = self.writers[partition]
        pack(w, key)
        pack_size(w, value.n)
        w.copy(value.out, 0, value.n)
        value.empty()


@cython.final
@cython.cclass
class PackedRecords:
    """The records in packed bytes: an iterable, which makes each when it is asked for."""

    packed: bytes

    def __init__(self, packed: bytes) -> None:
        self.packed = packed

    def __iter__(self) -> PackedIterator:
        return PackedIterator(self.packed)


@cython.final
@cython.cclass
class PackedIterator:
    """One walk through packed records."""

    packed: bytes
    at: cython.Py_ssize_t

    def __init__(self, packed: bytes) -> None:
        self.packed = packed
        self.at = 0

    def __iter__(self) -> PackedIterator:
        return self

    def __next__(self) -> dict[str, bytes | None]:
        if self.at >= len(self.packed):
            raise StopIteration
        return {"key": self._next(), "value": self._next()}

    @cython.cfunc
    def _next(self) -> bytes | None:
        src: cython.p_uchar = self.packed
        size: cython.Py_ssize_t = be32(src, self.at) - 1
        start: cython.Py_ssize_t = self.at + 4
        if size < 0:
            self.at = start
            return None
        self.at = start + size
        return src[start : self.at]  # type: ignore[no-any-return]  # of a pointer: bytes


@cython.cfunc
def pack(w: Writer, data: bytes | None) -> None:
    """Write a key or a value behind its size plus one; 0 means None."""
    if data is None:
        w.whole(NOTHING)
        return
    pack_size(w, len(data))
    w.whole(data)


@cython.cfunc
@cython.inline
def pack_size(w: Writer, size: cython.Py_ssize_t) -> None:
    size += 1
    w.reserve(SLACK)
    w.byte(size >> 24 & 0xFF)
    w.byte(size >> 16 & 0xFF)
    w.byte(size >> 8 & 0xFF)
    w.byte(size & 0xFF)


@cython.final
@cython.cclass
class RowPlan:
    """Turns the rows of one version of one table into messages."""

    shape: TableShape
    columns: list[Column]
    new: list[Field]
    old: list[Field]
    width: cython.Py_ssize_t
    oid: cython.uint
    keyless: cython.bint
    tombstones: cython.bint
    partitions: cython.Py_ssize_t
    key_head: bytes
    value_head: bytes
    origin: bytes
    writer: Writer
    column: cython.Py_ssize_t
    at: cython.Py_ssize_t
    unchanged: list[bytes]
    special: list[bytes]
    hashed: KeyedHash | None

    def __init__(
        self,
        shape: TableShape,
        *,
        key_schema_id: int | None,
        value_schema_id: int,
        partitions: int,
        server: ServerConstants,
        tombstones: bool,
        placeholders: bool = False,
    ) -> None:
        """`placeholders`: write Debezium's placeholder for a value that PostgreSQL did not send, in
        place of null.
        """
        self.shape = shape
        self.columns = [Column(column, placeholders=placeholders) for column in shape.columns]
        self.new = [Field() for _ in shape.columns]
        self.old = [Field() for _ in shape.columns]
        self.width = len(shape.columns)
        self.oid = shape.oid
        self.keyless = key_schema_id is None
        self.tombstones = tombstones and not self.keyless
        self.partitions = partitions
        self.key_head = b"" if key_schema_id is None else frame_header(key_schema_id)
        self.value_head = frame_header(value_schema_id)
        constants = (server.version, "postgresql", server.prefix, server.db, shape.schema, shape.table)
        self.origin = b"".join(map(avro_string, constants))
        self.writer = Writer()
        self.column = -1
        self.at = 0
        self.unchanged = []
        self.special = []
        self.hashed = KeyedHash(server.hash_key) if "hash" in shape.policy.values() else None

    def append_run(
        self,
        received: list[Any],
        at: cython.Py_ssize_t,
        offset: cython.Py_ssize_t,
        header: TransactionHeader,
        ts_ms: cython.longlong,
        lists: list[list[dict[str, bytes | None]]],
        bytes_max: cython.Py_ssize_t,
    ) -> tuple[int, int]:
        """Append the messages of the row at `at` and of the run of rows behind it.

        The run ends at something that is not a row of the same relation (and subtransaction, if one
        stands before the oid), or past `bytes_max`. The relation's oid is at `offset`. Return the
        index behind the run, and its bytes.
        """
        first: bytes = received[at][1]
        src: cython.p_uchar = first
        payload: bytes
        taken: cython.Py_ssize_t = 0
        end: cython.Py_ssize_t = len(received)
        self.column = -1
        try:
            while True:
                lsn, payload = received[at]
                self._change(payload, offset, lsn, header, ts_ms, lists)
                taken += len(payload)
                at += 1
                if at == end or taken > bytes_max or not is_row_like(src, offset + 4, received[at]):
                    return at, taken
        except ValueError as error:
            raise self._malformed(str(error)) from error

    def append_copy(
        self,
        data: bytes,
        snapshot_lsn: cython.longlong,
        header: TransactionHeader,
        ts_ms: cython.longlong,
        packer: PartitionPacker,
    ) -> tuple[int, bytes | None]:
        """Pack the messages of a run of tuples of COPY's binary form, which show their own ends.

        `types.copy_item` selected their columns. Return their number and the last one's key. Tuples
        before a malformed one are packed.
        """
        start: cython.Py_ssize_t = 0
        at: cython.Py_ssize_t = 0
        end: cython.Py_ssize_t = len(data)
        rows: cython.Py_ssize_t = 0
        key: bytes | None = None
        try:
            while at < end:
                start = at
                at = self._scan_copy(data, start, end)
                key = self._key(data, self.new)
                self._write_envelope(data, b"r", None, self.new, header, snapshot_lsn, ts_ms)
                packer.add(0 if key is None else partition_of(key, self.partitions), key, self.writer)
                rows += 1
        except ValueError as error:
            self.at -= start
            raise self._malformed(str(error)) from error
        return rows, key

    def truncate(
        self, wal_start: int, header: TransactionHeader, ts_ms: int, lists: list[list[dict[str, bytes | None]]]
    ) -> int:
        """Append a truncate to every partition."""
        value = self._envelope(b"", b"t", None, None, header, wal_start, ts_ms)
        for partition in range(self.partitions):
            lists[partition].append({"key": None, "value": value})
        return int(self.partitions)

    def keys_of(self, payload: bytes, offset: cython.Py_ssize_t) -> tuple[bytes | None, ...]:
        """Return the message keys of the records that a row's message becomes: the old one first
        where the change has two. ValueError: they cannot be read; it may have no more than that.
        """
        src: cython.p_uchar = payload
        end: cython.Py_ssize_t = len(payload)
        at: cython.Py_ssize_t = offset + 5
        keys: list[bytes | None] = []
        self.column = -1
        if at > end or be32(src, offset) != self.oid:
            raise ValueError(NO_OID)
        has_old: cython.bint = src[offset + 4] in (KEY_TUPLE, OLD_TUPLE)
        if has_old:
            at = self._scan(src, at, end, self.old) + 1
            keys.append(self._key(payload, self.old))
        if src[0] != DELETE:
            self._scan(src, at, end, self.new)
            if has_old:
                self._take_unchanged()
            keys.append(self._key(payload, self.new))
        return tuple(dict.fromkeys(keys))

    @cython.cfunc
    def _change(
        self,
        payload: bytes,
        offset: cython.Py_ssize_t,
        lsn: cython.longlong,
        header: TransactionHeader,
        ts_ms: cython.longlong,
        lists: list[list[dict[str, bytes | None]]],
    ) -> None:
        src: cython.p_uchar = payload
        end: cython.Py_ssize_t = len(payload)
        at: cython.Py_ssize_t = offset + 5
        if offset < 1 or at > end:
            raise ValueError("ends before its first tuple")
        if be32(src, offset) != self.oid:
            raise ValueError(NO_OID)
        kind: cython.uchar = src[0]
        mark: cython.uchar = src[offset + 4]
        has_old: cython.bint = mark in (KEY_TUPLE, OLD_TUPLE)
        has_new: cython.bint = kind != DELETE
        if kind not in (INSERT, UPDATE, DELETE) or (kind == INSERT and has_old) or (kind == DELETE and not has_old):
            raise ValueError(f"message {kind:#04x} with tuple {mark:#04x}")
        if has_old:
            at = self._scan(src, at, end, self.old)
        if has_new:
            if has_old:
                at += 1
            if at > end or src[at - 1] != NEW_TUPLE:
                raise ValueError("no new tuple")
            at = self._scan(src, at, end, self.new)
        if at != end:
            raise ValueError(f"{end - at} bytes too many")
        if not has_old:
            key = self._key(payload, self.new)
            op = b"c" if kind == INSERT else b"u"
            self._emit(key, self._envelope(payload, op, None, self.new, header, lsn, ts_ms), False, lists)
            return
        old_key = self._key(payload, self.old)
        if not has_new:
            value = self._envelope(payload, b"d", self.old, None, header, lsn, ts_ms)
            self._emit(old_key, value, self.tombstones, lists)
            return
        self._take_unchanged()
        key = self._key(payload, self.new)
        if key == old_key:
            value = self._envelope(payload, b"u", self.old, self.new, header, lsn, ts_ms)
            self._emit(key, value, False, lists)
            return
        gone = self._envelope(payload, b"d", self.old, None, header, lsn, ts_ms)
        value = self._envelope(payload, b"c", self.old, self.new, header, lsn, ts_ms)
        self._emit(old_key, gone, self.tombstones, lists)
        self._emit(key, value, False, lists)

    @cython.cfunc
    def _emit(
        self,
        key: bytes | None,
        value: bytes,
        tombstone: cython.bint,
        lists: list[list[dict[str, bytes | None]]],
    ) -> int:
        partition = 0 if key is None else partition_of(key, self.partitions)
        messages = lists[partition]
        messages.append({"key": key, "value": value})
        if not tombstone:
            return 1
        messages.append({"key": key, "value": None})
        return 2

    @cython.cfunc
    def _scan(
        self, src: cython.p_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t, fields: list[Field]
    ) -> cython.Py_ssize_t:
        """Note the place of each column's value; return the end of the tuple."""
        i: cython.Py_ssize_t
        field: Field
        if at + 2 > end:
            raise ValueError("ends before its columns")
        if (src[at] << 8 | src[at + 1]) != self.width:
            raise ValueError(f"a tuple of {src[at] << 8 | src[at + 1]} columns where the relation has {self.width}")
        at += 2
        for i in range(self.width):
            field = fields[i]
            if at >= end:
                raise self._in_column(i, at, "the payload ends before it")
            field.tag = src[at]
            at += 1
            field.at = at
            field.size = 0
            if field.tag in (AS_TEXT, AS_BINARY):
                if at + 4 > end:
                    raise self._in_column(i, at, "the payload ends in its length")
                field.size = be32(src, at)
                field.at = at + 4
                if field.size > end - field.at:
                    raise self._in_column(i, at, f"a value of {field.size} bytes where {end - field.at} are left")
                at = field.at + field.size
            elif field.tag not in (AS_NULL, AS_UNCHANGED):
                raise self._in_column(i, at - 1, f"unknown kind of value {field.tag:#04x}")
        return at

    @cython.cfunc
    def _scan_copy(self, data: bytes, offset: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Note the place of each column's value; return the end of the tuple."""
        src: cython.p_uchar = data
        at: cython.Py_ssize_t = offset + 2
        i: cython.Py_ssize_t
        field: Field
        column: Column
        if at > end or (src[offset] << 8 | src[offset + 1]) != self.width:
            raise self._in_column(-1, offset, f"not a COPY tuple of {self.width} columns")
        for i in range(self.width):
            field = self.new[i]
            column = self.columns[i]
            if at + 4 > end:
                raise self._in_column(i, at, "the tuple ends in its length")
            size: cython.longlong = be32(src, at)
            field.at = at + 4
            if size == 0xFFFFFFFF:
                field.tag = AS_NULL
                field.size = 0
            elif size > end - field.at:
                raise self._in_column(i, at, f"a value of {size} bytes where {end - field.at} are left")
            else:
                field.tag = AS_BINARY if column.value.reads_binary else AS_TEXT
                field.size = size
            at = field.at + field.size
        return at

    @cython.cfunc
    def _take_unchanged(self) -> None:
        """Take the values that the new tuple leaves out from the old one, if it has them."""
        i: cython.Py_ssize_t
        new: Field
        old: Field
        for i in range(self.width):
            new = self.new[i]
            if new.tag == AS_UNCHANGED:
                old = self.old[i]
                if old.tag in (AS_TEXT, AS_BINARY):
                    new.tag = old.tag
                    new.at = old.at
                    new.size = old.size

    @cython.cfunc
    def _key(self, payload: bytes, fields: list[Field]) -> bytes | None:
        if self.keyless:
            return None
        i: cython.Py_ssize_t
        column: Column
        field: Field
        self.writer.n = 0
        self.writer.whole(self.key_head)
        for i in range(self.width):
            column = self.columns[i]
            if column.in_key:
                self.writer.reserve(SLACK)
                field = fields[i]
                self.column = i
                self.at = field.at
                if field.tag not in (AS_TEXT, AS_BINARY):
                    raise ValueError("a column of the key without a value")
                if column.policy == HASH:
                    self._put_hash(payload, field)
                else:
                    put(self.writer, column.key, payload, field.at, field.size, field.tag == AS_BINARY)
        return self.writer.taken()

    @cython.cfunc
    def _put_hash(self, payload: bytes, field: Field) -> None:
        if field.tag != AS_TEXT:
            raise ValueError(BINARY_HASH)
        hashed: KeyedHash | None = self.hashed
        assert hashed is not None, "a column is hashed"
        self.writer.copy(hashed.find(payload, field.at, field.size), 0, HASH_BYTES)

    @cython.cfunc
    def _put_hidden(self, payload: bytes, i: cython.Py_ssize_t, field: Field) -> None:
        """Write what the data policy leaves of a column's value."""
        w: Writer = self.writer
        column: Column = self.columns[i]
        if column.policy == DROP:
            return
        self.column = i
        self.at = field.at
        if column.policy == MAKE_NULL:
            w.byte(0)
        elif field.tag == AS_NULL:
            if not column.optional:
                raise ValueError("a column of the key without a value")
            w.byte(0)
        elif column.policy == REDACT:
            w.byte(2)
            w.whole(REDACTED)
        elif field.tag == AS_UNCHANGED:
            self.unchanged.append(column.name)
            w.whole(column.not_sent)
        else:
            if column.optional:
                w.byte(2)
            self._put_hash(payload, field)

    @cython.cfunc
    def _envelope(
        self,
        payload: bytes,
        op: bytes,
        before: list[Field] | None,
        after: list[Field] | None,
        header: TransactionHeader,
        lsn: cython.longlong,
        ts_ms: cython.longlong,
    ) -> bytes:
        self._write_envelope(payload, op, before, after, header, lsn, ts_ms)
        return self.writer.taken()

    @cython.cfunc
    def _write_envelope(
        self,
        payload: bytes,
        op: bytes,
        before: list[Field] | None,
        after: list[Field] | None,
        header: TransactionHeader,
        lsn: cython.longlong,
        ts_ms: cython.longlong,
    ) -> None:
        w: Writer = self.writer
        w.n = 0
        w.whole(self.value_head)
        self._row(payload, before, b"\x0cbefore")
        self._row(payload, after, b"\x0aafter")
        w.whole(self.origin)
        origin_at: cython.Py_ssize_t = w.n
        if not header.open_end:
            w.whole(header.origin)
        w.long(lsn)
        if not header.open_end:
            w.whole(header.ending)
        w.byte(2)
        w.whole(op)
        w.byte(2)
        w.long(ts_ms)
        if not header.open_end:
            header.count(w, self.oid)
        self._names(self.unchanged)
        self._names(self.special)
        if header.open_end:
            w.whole(struct.pack(">I", origin_at))

    @cython.cfunc
    def _row(self, payload: bytes, fields: list[Field] | None, label: bytes) -> None:
        """Write one of the envelope's two rows; note its entries of `unchanged` and `special`."""
        w: Writer = self.writer
        if fields is None:
            w.byte(0)
            return
        w.byte(2)
        i: cython.Py_ssize_t
        start: cython.Py_ssize_t
        column: Column
        field: Field
        for i in range(self.width):
            column = self.columns[i]
            field = fields[i]
            w.reserve(SLACK)
            if column.policy != KEEP:
                self._put_hidden(payload, i, field)
            elif field.tag in (AS_TEXT, AS_BINARY):
                start = w.n
                if column.optional:
                    w.byte(2)
                self.column = i
                self.at = field.at
                if not put(w, column.value, payload, field.at, field.size, field.tag == AS_BINARY):
                    w.n = start
                    w.byte(0)
                    self._note_special(payload, column, field, label)
            elif column.optional:
                if field.tag == AS_UNCHANGED:
                    self.unchanged.append(column.name)
                    w.whole(column.not_sent)
                else:
                    w.byte(0)
            else:
                self.column = i
                self.at = field.at
                raise ValueError("a column of the key without a value")

    @cython.cfunc
    def _note_special(self, payload: bytes, column: Column, field: Field, label: bytes) -> None:
        text = payload[field.at : field.at + field.size]
        if field.tag == AS_BINARY:
            text = binary_text(column.value.how, text).encode()
        self.special.append(label + column.name + avro_long(len(text)) + text)

    @cython.cfunc
    def _names(self, items: list[bytes]) -> None:
        """Write encoded items as an array in one block, and empty them."""
        if items:
            self.writer.long(len(items))
            for item in items:
                self.writer.whole(item)
            items.clear()
        self.writer.byte(0)

    @cython.cfunc
    def _in_column(self, i: cython.Py_ssize_t, at: cython.Py_ssize_t, what: str) -> ValueError:
        self.column = i
        self.at = at
        return ValueError(what)

    @cython.cfunc
    def _malformed(self, what: str) -> MalformedRow:
        """Return an error with its place: the column that was being read, if there was one."""
        self.unchanged.clear()
        self.special.clear()
        column = None if self.column < 0 else self.columns[self.column].shape.name
        return MalformedRow(what, table=f"{self.shape.schema}.{self.shape.table}", column=column, offset=self.at)


@cython.cfunc
def is_row_like(src: cython.p_uchar, end: cython.Py_ssize_t, item: object) -> cython.bint:
    """Whether the received bytes are a row whose message begins, behind its tag, like that one."""
    if type(item) is not tuple:
        return False
    payload: bytes = item[1]
    other: cython.p_uchar = payload
    if len(payload) < end or other[0] not in (INSERT, UPDATE, DELETE):
        return False
    if cython.compiled:
        return bool(memcmp(src + 1, other + 1, end - 1) == 0)
    return bool(src[1:end] == other[1:end])


def avro_long(value: cython.longlong) -> bytes:
    """Return one encoded long."""
    rest: cython.ulonglong = (value << 1) ^ (value >> 63)
    out: bytearray = bytearray()
    while rest > 0x7F:
        out.append((rest & 0x7F) | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def avro_string(text: str) -> bytes:
    data = text.encode()
    return avro_long(len(data)) + data


def placeholder_of(encoding: Encoding) -> bytes | None:
    """Return Debezium's placeholder for a value of this type that PostgreSQL did not send; None
    without one.
    """
    match encoding.how:
        case How.TEXT | How.TEXT_ONLY | How.JSONB | How.NUMERIC | How.BYTES:
            return avro_string(PLACEHOLDER)
        case How.ARRAY:
            return _placeholder_array(encoding.element)
        case _:
            return None


def _placeholder_array(element: Encoding | None) -> bytes | None:
    """Return the placeholder of an array: its text as the one element, or its characters'
    numbers.
    """
    assert element is not None, "an array has elements"
    if element.how is How.INT:
        items = [avro_long(byte) for byte in PLACEHOLDER.encode()]
    elif (one := placeholder_of(element)) is not None:
        items = [one]
    else:
        return None
    return avro_long(len(items)) + b"".join(b"\2" + item for item in items) + b"\0"


def optional_string(text: str | None) -> bytes:
    return b"\0" if text is None else b"\2" + avro_string(text)


def optional_long(value: int | None) -> bytes:
    return b"\0" if value is None else b"\2" + avro_long(value)


@cython.cfunc
@cython.inline
def be32(src: cython.p_uchar, at: cython.Py_ssize_t) -> cython.longlong:
    high: cython.longlong = src[at]
    value: cython.longlong = high << 24 | src[at + 1] << 16 | src[at + 2] << 8 | src[at + 3]
    return value


@cython.cfunc
@cython.inline
def be16(src: cython.p_uchar, at: cython.Py_ssize_t) -> cython.longlong:
    value: cython.longlong = src[at] << 8 | src[at + 1]
    return value


@cython.cfunc
@cython.inline
def after_long(src: cython.p_uchar, at: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Return the index behind a long that starts there."""
    while src[at] > 0x7F:
        at += 1
    return at + 1


@cython.cfunc
def be_signed(
    src: cython.p_uchar, at: cython.Py_ssize_t, size: cython.Py_ssize_t, width: cython.Py_ssize_t
) -> cython.longlong:
    """Read a signed number that must have this width."""
    if size != width:
        raise ValueError(f"a number of {size} bytes where its type has {width}")
    value: cython.longlong = src[at]
    if value > 0x7F:
        value -= 0x100
    i: cython.Py_ssize_t
    for i in range(at + 1, at + size):
        value = (value * 256) + src[i]
    return value


@cython.cfunc
def put(  # noqa: C901, PLR0912 - a switch, the most frequent first
    w: Writer, c: Codec, data: bytes, at: cython.Py_ssize_t, size: cython.Py_ssize_t, binary: cython.bint
) -> cython.bint:
    """Write one value.

    False: its Avro type cannot hold it, and the caller removes what was written.
    """
    src: cython.p_uchar = data
    how: cython.uint = c.how
    if binary and not c.reads_binary:
        raise ValueError("came in binary form, which has no text: read this table without the option binary")
    if c.as_text or how == NUMERIC:
        if binary:
            return put_binary_text(w, how, data, at, size)
        w.sized(src, at, size)
    elif how in (TEXT, TEXT_ONLY):
        w.sized(src, at, size)
    elif how == INT:
        w.long(be_signed(src, at, size, c.width) if binary else parse_int(src, at, size))
    elif how in (TIMESTAMPTZ, TIMESTAMP):
        return put_timestamp(w, src, at, size, binary, how == TIMESTAMPTZ)
    elif how == JSONB:
        if binary:
            if size < 1 or src[at] != 1:
                raise ValueError("a jsonb of an unknown version")
            at += 1
            size -= 1
        w.sized(src, at, size)
    elif how == BOOL:
        put_bool(w, src, at, size, binary)
    elif how == UUID:
        put_uuid(w, src, at, size, binary)
    elif how == DECIMAL:
        return put_decimal(w, c.scale, data, at, size, binary)
    elif how == DATE:
        return put_date(w, src, at, size, binary)
    elif how in (FLOAT8, FLOAT4):
        put_float(w, data, at, size, binary, how == FLOAT8)
    else:
        return put_rare(w, c, data, at, size, binary)
    return True


@cython.cfunc
def put_rare(
    w: Writer, c: Codec, data: bytes, at: cython.Py_ssize_t, size: cython.Py_ssize_t, binary: cython.bint
) -> cython.bint:
    src: cython.p_uchar = data
    if c.how == BYTES:
        if binary:
            w.sized(src, at, size)
        else:
            put_hex(w, data, at, size)
    elif c.how == TIME:
        return put_time(w, src, at, size, binary)
    elif c.how == UNSIGNED:
        if binary and size != 4:
            raise ValueError(f"a number of {size} bytes")
        w.long(be32(src, at) if binary else parse_int(src, at, size))
    elif c.how == CHAR:
        put_char(w, src, at, size)
    else:
        return put_array(w, c, data[at : at + size])
    return True


@cython.cfunc
def put_binary_text(
    w: Writer, how: cython.uint, data: bytes, at: cython.Py_ssize_t, size: cython.Py_ssize_t
) -> cython.bint:
    """Write the text of a value in binary form."""
    if how in (NUMERIC, DECIMAL):
        return put_numeric(w, data, at, size)
    return put_text(w, binary_text(how, data[at : at + size]))


@cython.cfunc
def put_text(w: Writer, text: str) -> cython.bint:
    data: bytes = text.encode()
    w.sized(data, 0, len(data))
    return True


@cython.cfunc
def parse_int(src: cython.p_uchar, at: cython.Py_ssize_t, size: cython.Py_ssize_t) -> cython.longlong:
    end: cython.Py_ssize_t = at + size
    negative: cython.bint = size > 1 and src[at] == MINUS
    value: cython.longlong = 0
    if negative:
        at += 1
    if at == end or end - at > 19:
        raise ValueError("not a number")
    while at < end:
        if not 0x30 <= src[at] <= 0x39:
            raise ValueError("not a number")
        if value < LOWEST_TENTH or (value == LOWEST_TENTH and src[at] > 0x37 + negative):
            raise ValueError("a number of more than 64 bits")
        value = value * 10 - (src[at] - 0x30)  # downwards, because the smallest has no positive counterpart
        at += 1
    return value if negative else -value


@cython.cfunc
def put_bool(
    w: Writer, src: cython.p_uchar, at: cython.Py_ssize_t, size: cython.Py_ssize_t, binary: cython.bint
) -> None:
    if size != 1:
        raise ValueError("not a boolean")
    if binary:
        w.byte(1 if src[at] else 0)
    elif src[at] == 0x74:
        w.byte(1)
    elif src[at] == 0x66:
        w.byte(0)
    else:
        raise ValueError("not a boolean")


@cython.cfunc
def put_float(
    w: Writer,
    data: bytes,
    at: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    binary: cython.bint,
    wide: cython.bint,
) -> None:
    if binary:
        put_binary_float(w, data, at, size, wide)
        return
    text: str = data[at : at + size].decode("latin-1")
    value: float
    try:
        value = float(text)
    except ValueError:  # compiled and not, Python words it differently where a zero byte is in the text
        raise ValueError("not a float") from None
    if isnan(value):
        value = NAN
    try:
        w.whole(struct.pack("<d" if wide else "<f", value))
    except OverflowError:
        raise ValueError("a float that is too large for its type") from None


@cython.cfunc
def put_binary_float(
    w: Writer, src: cython.p_uchar, at: cython.Py_ssize_t, size: cython.Py_ssize_t, wide: cython.bint
) -> None:
    if size != (8 if wide else 4):
        raise ValueError(f"a float of {size} bytes")
    bits: cython.ulonglong = 0
    i: cython.Py_ssize_t
    for i in range(at, at + size):
        bits = bits << 8 | src[i]
    # One NaN, as in text: its bits would otherwise depend on how it came about.
    if wide and (bits >> 52 & 0x7FF) == 0x7FF and bits & FLOAT8_FRACTION:
        bits = FLOAT8_NAN
    elif not wide and (bits >> 23 & 0xFF) == 0xFF and bits & FLOAT4_FRACTION:
        bits = FLOAT4_NAN
    for i in range(size):
        w.byte((bits >> (8 * i)) & 0xFF)


@cython.cfunc
def put_uuid(
    w: Writer, src: cython.p_uchar, at: cython.Py_ssize_t, size: cython.Py_ssize_t, binary: cython.bint
) -> None:
    if size != (16 if binary else 36):
        raise ValueError("not a uuid")
    if not binary:
        w.sized(src, at, size)
        return
    i: cython.Py_ssize_t
    w.long(36)
    for i in range(16):
        if i in (4, 6, 8, 10):
            w.byte(MINUS)
        w.byte(hex_digit(src[at + i] >> 4))
        w.byte(hex_digit(src[at + i] & 0xF))


@cython.cfunc
@cython.inline
def hex_digit(value: cython.uchar) -> cython.uchar:
    digit: cython.uchar = (ZERO if value < 10 else LETTER_BEFORE_10) + value
    return digit


@cython.cfunc
def put_hex(w: Writer, data: bytes, at: cython.Py_ssize_t, size: cython.Py_ssize_t) -> None:
    if size < 2 or data[at] != 0x5C or data[at + 1] != 0x78:
        raise ValueError("not hexadecimal: the session that read it must set bytea_output to hex")
    raw: bytes = bytes.fromhex(data[at + 2 : at + size].decode("ascii"))
    w.sized(raw, 0, len(raw))


@cython.cfunc
def put_char(w: Writer, src: cython.p_uchar, at: cython.Py_ssize_t, size: cython.Py_ssize_t) -> None:
    """Write the one-byte type: nothing for zero, and \\ooo for a byte that is no character.

    PostgreSQL 16 writes it so.
    """
    if size == 1 and src[at] > 0x7F:
        put_text(w, f"\\{src[at]:03o}")
    elif size == 1 and src[at] == 0:
        w.byte(0)
    else:
        w.sized(src, at, size)


@cython.cfunc
def put_array(w: Writer, c: Codec, text: bytes) -> cython.bint:
    elements = array_elements(text, c.delimiter)
    if elements is None:
        return False
    if elements:
        w.long(len(elements))
    for element in elements:
        w.reserve(SLACK)
        if element is None:
            w.byte(0)
        else:
            w.byte(2)
            if not put(w, c.element, element, 0, len(element), False):
                return False
    w.reserve(SLACK)
    w.byte(0)
    return True


@cython.cfunc
def two(src: cython.p_uchar, at: cython.Py_ssize_t) -> cython.longlong:
    """Read two digits."""
    if not (0x30 <= src[at] <= 0x39 and 0x30 <= src[at + 1] <= 0x39):
        raise ValueError(NOT_ISO)
    value: cython.longlong = (src[at] - 0x30) * 10 + (src[at + 1] - 0x30)
    return value


@cython.cfunc
def is_special_date(src: cython.p_uchar, at: cython.Py_ssize_t, size: cython.Py_ssize_t) -> cython.bint:
    """Whether a date is infinite, before year 1 or after 9999.

    As text all of these lack the dash in fifth place, or end in BC.
    """
    if size >= 8 and src[at + size - 1] == 0x79:  # the y of infinity
        return True
    if size >= 13 and src[at + size - 1] == 0x43 and src[at + size - 2] == 0x42:
        return True
    return (
        size >= 11 and src[at + 4] != MINUS and (src[at + 5] == MINUS or src[at + 6] == MINUS or src[at + 7] == MINUS)
    )


@cython.cfunc
def parse_date(src: cython.p_uchar, at: cython.Py_ssize_t) -> cython.longlong:
    """Return the days since 1970 of yyyy-mm-dd."""
    if src[at + 4] != MINUS or src[at + 7] != MINUS:
        raise ValueError(NOT_ISO)
    year: cython.longlong = two(src, at) * 100 + two(src, at + 2)
    month: cython.longlong = two(src, at + 5)
    day: cython.longlong = two(src, at + 8)
    if year < 1 or not 1 <= month <= 12 or not 1 <= day <= 31:
        raise ValueError(NOT_ISO)
    if month < 3:
        year -= 1
        month += 12
    return 365 * year + year // 4 - year // 100 + year // 400 + (153 * (month - 3) + 2) // 5 + day - 719_469


@cython.cfunc
def parse_time(src: cython.p_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.longlong:
    """Return the microseconds of hh:mm:ss[.ffffff], which ends at `end`."""
    if end - at < 8 or src[at + 2] != COLON or src[at + 5] != COLON:
        raise ValueError(NOT_ISO)
    value: cython.longlong = (two(src, at) * 60 + two(src, at + 3)) * 60 + two(src, at + 6)
    at += 8
    places: cython.Py_ssize_t = 6
    if at < end:
        if src[at] != POINT or end - at > 7:
            raise ValueError(NOT_ISO)
        at += 1
        while at < end:
            if not 0x30 <= src[at] <= 0x39:
                raise ValueError(NOT_ISO)
            value = value * 10 + (src[at] - 0x30)
            places -= 1
            at += 1
    while places > 0:
        value *= 10
        places -= 1
    return value


@cython.cfunc
def put_date(
    w: Writer, src: cython.p_uchar, at: cython.Py_ssize_t, size: cython.Py_ssize_t, binary: cython.bint
) -> cython.bint:
    days: cython.longlong
    if binary:
        days = be_signed(src, at, size, 4) + DAYS_1970_TO_2000
        if days < FIRST_DAY or days > LAST_DAY:
            return False
    elif is_special_date(src, at, size):
        return False
    elif size != 10:
        raise ValueError(NOT_ISO)
    else:
        days = parse_date(src, at)
    w.long(days)
    return True


@cython.cfunc
def put_time(
    w: Writer, src: cython.p_uchar, at: cython.Py_ssize_t, size: cython.Py_ssize_t, binary: cython.bint
) -> cython.bint:
    us: cython.longlong = be_signed(src, at, size, 8) if binary else parse_time(src, at, at + size)
    if us >= DAY_US:
        return False
    w.long(us)
    return True


@cython.cfunc
def put_timestamp(
    w: Writer,
    src: cython.p_uchar,
    at: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    binary: cython.bint,
    zoned: cython.bint,
) -> cython.bint:
    us: cython.longlong
    end: cython.Py_ssize_t = at + size
    if binary:
        us = be_signed(src, at, size, 8)
        if us < (FIRST_DAY - DAYS_1970_TO_2000) * DAY_US or us >= (LAST_DAY + 1 - DAYS_1970_TO_2000) * DAY_US:
            return False
        us += DAYS_1970_TO_2000 * DAY_US
    elif is_special_date(src, at, size):
        return False
    else:
        if zoned:
            end -= 3
            if size < 22 or src[end] != 0x2B or src[end + 1] != ZERO or src[end + 2] != ZERO:
                raise ValueError("not in UTC: the session that read it must set TimeZone to UTC, and DateStyle to ISO")
        if end - at < 19 or src[at + 10] != SPACE:
            raise ValueError(NOT_ISO)
        us = parse_date(src, at) * DAY_US + parse_time(src, at + 11, end)
    w.long(us)
    return True


@cython.cfunc
def put_decimal(
    w: Writer, scale: cython.uint, data: bytes, at: cython.Py_ssize_t, size: cython.Py_ssize_t, binary: cython.bint
) -> cython.bint:
    """Write the unscaled number, big-endian in two's complement."""
    src: cython.p_uchar = data
    unscaled: cython.longlong = 0
    if binary:
        return put_binary_decimal(w, scale, data, at, size)
    if size > 18 or size == 0 or src[at + size - 1] == 0x4E:
        return put_decimal_text(w, scale, data[at : at + size].decode("ascii"))
    end: cython.Py_ssize_t = at + size
    negative: cython.bint = src[at] == MINUS
    places: cython.Py_ssize_t = -1
    if negative:
        at += 1
    while at < end:
        if src[at] == POINT and places < 0:
            places = 0
        elif 0x30 <= src[at] <= 0x39:
            unscaled = unscaled * 10 + (src[at] - 0x30)
            if places >= 0:
                places += 1
        else:
            raise ValueError("not a number")
        at += 1
    if max(places, 0) != scale or src[end - 1] in (MINUS, POINT):
        raise ValueError(f"a number of {max(places, 0)} decimals where the type has {scale}")
    put_unscaled(w, unscaled, negative)
    return True


@cython.cfunc
def put_unscaled(w: Writer, unscaled: cython.longlong, negative: cython.bint) -> None:
    count: cython.Py_ssize_t = 1
    while count < 8 and unscaled >> (8 * count - 1):
        count += 1
    if negative:
        unscaled = -unscaled
    w.long(count)
    while count > 0:
        count -= 1
        w.byte((unscaled >> (8 * count)) & 0xFF)


@cython.cfunc
@cython.cdivision(True)
def put_binary_decimal(
    w: Writer, scale: cython.uint, data: bytes, at: cython.Py_ssize_t, size: cython.Py_ssize_t
) -> cython.bint:
    """Write a numeric of up to 18 digits; its text serves for the others."""
    src: cython.p_uchar = data
    if not is_finite_numeric(src, at, size):
        return put_decimal_text(w, scale, numeric_text(data[at : at + size]))
    weight: cython.longlong = be_signed(src, at + 2, 2, 2)
    place: cython.longlong = max(weight, -1)
    if 4 * (place + 1) + scale > 18 or be16(src, at + 6) != scale:
        return put_decimal_text(w, scale, numeric_text(data[at : at + size]))
    unscaled: cython.longlong = 0
    left: cython.longlong = scale
    while place >= 0:
        unscaled = unscaled * 10_000 + numeric_digits(src, at, weight - place)
        place -= 1
    while left >= 4:
        unscaled = unscaled * 10_000 + numeric_digits(src, at, weight - place)
        place -= 1
        left -= 4
    if left > 0:
        digits: cython.longlong = numeric_digits(src, at, weight - place)
        divisor: cython.longlong = 1000
        while left > 0:
            unscaled = unscaled * 10 + digits // divisor % 10
            divisor //= 10
            left -= 1
    put_unscaled(w, unscaled, be16(src, at + 4) == NUMERIC_NEGATIVE)
    return True


@cython.cfunc
def put_numeric(w: Writer, data: bytes, at: cython.Py_ssize_t, size: cython.Py_ssize_t) -> cython.bint:
    """Write the text of a numeric in binary form."""
    src: cython.p_uchar = data
    if not is_finite_numeric(src, at, size):
        return put_text(w, numeric_text(data[at : at + size]))
    weight: cython.longlong = be_signed(src, at + 2, 2, 2)
    scale: cython.longlong = be16(src, at + 6)
    negative: cython.bint = be16(src, at + 4) == NUMERIC_NEGATIVE
    place: cython.longlong = max(weight, 0)
    while place > 0 and numeric_digits(src, at, weight - place) == 0:
        place -= 1
    digits: cython.longlong = numeric_digits(src, at, weight - place)
    shown: cython.longlong = 1 + (digits > 9) + (digits > 99) + (digits > 999)
    length: cython.longlong = negative + shown + 4 * place + (1 + scale if scale else 0)
    w.long(length)
    w.reserve(length + SLACK)
    if negative:
        w.byte(MINUS)
    put_digits(w, digits, 4 - shown, 4)
    while place > 0:
        place -= 1
        put_digits(w, numeric_digits(src, at, weight - place), 0, 4)
    if scale > 0:
        w.byte(POINT)
    while scale > 0:
        place -= 1
        put_digits(w, numeric_digits(src, at, weight - place), 0, min(scale, 4))
        scale -= 4
    return True


@cython.cfunc
@cython.cdivision(True)
def put_digits(w: Writer, digits: cython.longlong, first: cython.longlong, end: cython.longlong) -> None:
    """Write a part of the four decimal digits."""
    divisor: cython.longlong = 1000
    i: cython.longlong
    for i in range(end):
        if i >= first:
            w.byte(ZERO + digits // divisor % 10)
        divisor //= 10


@cython.cfunc
def is_finite_numeric(src: cython.p_uchar, at: cython.Py_ssize_t, size: cython.Py_ssize_t) -> cython.bint:
    """Whether it is well-formed, and neither NaN nor infinite."""
    return (
        size >= NUMERIC_HEAD_BYTES
        and be16(src, at + 4) in (0, NUMERIC_NEGATIVE)
        and size == NUMERIC_HEAD_BYTES + 2 * be16(src, at)
    )


@cython.cfunc
def numeric_digits(src: cython.p_uchar, at: cython.Py_ssize_t, index: cython.longlong) -> cython.longlong:
    """Return four decimal digits of a numeric as a number; what it leaves out is zero."""
    if index < 0 or index >= be16(src, at):
        return 0
    digits: cython.longlong = be16(src, at + NUMERIC_HEAD_BYTES + 2 * index)
    if digits > 9999:
        raise ValueError(NO_DIGITS)
    return digits


@cython.cfunc
def put_decimal_text(w: Writer, scale: cython.uint, text: str) -> cython.bint:
    if text == "NaN":
        return False
    whole, _, decimals = text.partition(".")
    if len(decimals) != scale:
        raise ValueError(f"a number of {len(decimals)} decimals where the type has {scale}")
    unscaled: int = int(whole + decimals)
    packed: bytes = unscaled.to_bytes((abs(unscaled).bit_length() + 8) // 8, "big", signed=True)
    w.sized(packed, 0, len(packed))
    return True
