"""Decodes bytes of pgoutput into the values of `messages`.

Pure: no IO, no state, no memory of earlier messages. Each byte is read once, and none is left over.
Bytes that are not exactly a message of protocol versions 1 to 4 raise MalformedMessage with the
offset of the first wrong byte; nothing else is ever raised. The payload's length bounds time and
memory: no count in the payload is trusted beyond the bytes that back it.

Only the caller knows whether a stream block is open, between StreamStart and StreamStop. Most
messages in a block have an additional xid, so `in_stream` is an argument. The wrong argument gives
an error or wrong values.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from struct import Struct
from typing import Any

from twofold.errors import MalformedMessage
from twofold.source import messages as m
from twofold.source.cursor import POSTGRES_EPOCH_US, Cursor
from twofold_avro.shapes import ReplicaIdentity
from twofold_common.positions import Lsn, PreparedIdentity

_BEGIN = Struct(">xQqI")
_COMMIT = Struct(">xBQQq")
_TWO_PHASE = Struct(">QQqI")
_BEGIN_PREPARE = Struct(">xQQqI")
_PREPARE_OR_COMMIT = Struct(">xxQQqI")
_ROLLBACK_PREPARED = Struct(">xxQQqqI")
_U16 = Struct(">H")
_U32 = Struct(">I")
_TEXT, _NULL = ord("t"), ord("n")
_ROW_PLACE = Struct(">II")

_REPLICA_IDENTITIES: dict[int, ReplicaIdentity] = {
    ord("d"): "default",
    ord("i"): "index",
    ord("f"): "full",
    ord("n"): "nothing",
}


def decode(payload: bytes, *, in_stream: bool) -> m.Message:
    """Decode one message: the payload of one XLogData, without its header."""
    first = payload[:1]
    if first == b"B":
        return _begin(payload)
    if first == b"C":
        return _commit(payload)
    form = _OF_PREPARED.get(first)
    if form is not None and (of_prepared := _decode_of_prepared(payload, form)) is not None:
        return of_prepared
    cursor = Cursor(payload)
    tag = cursor.u8("the message's tag")
    if (plain := _PLAIN.get(tag)) is not None:
        message = plain(cursor)
    elif (streamable := _STREAMABLE.get(tag)) is not None:
        message = streamable(cursor, cursor.u32("xid") if in_stream else None)
    else:
        raise MalformedMessage(f"no message of pgoutput starts with {bytes((tag,))!r}", offset=0)
    cursor.end()
    return message


def row_relation(payload: bytes, in_stream: bool) -> int:
    """Read only the relation oid of an Insert, Update or Delete, at its fixed offset."""
    try:
        oid: int = _U32.unpack_from(payload, 5 if in_stream else 1)[0]
    except struct.error:
        raise _no_relation(payload) from None
    return oid


def described_relations(payloads: Iterable[bytes]) -> Iterator[int]:
    """Yield the oids of the tables that the Relation messages outside of stream blocks describe."""
    return (row_relation(payload, in_stream=False) for payload in payloads if payload[:1] == b"R")


def row_place(payload: bytes) -> tuple[int, int]:
    """Read the subtransaction and the relation's oid of a row in a stream block."""
    try:
        subxid, oid = _ROW_PLACE.unpack_from(payload, 1)
    except struct.error:
        raise _no_relation(payload) from None
    return subxid, oid


def insert_texts(payload: bytes, *, in_stream: bool) -> list[bytes | None] | None:
    """Read an Insert's row at once, if all its values are text or null: an outbox's always are.

    None: the message is another one, or has a flaw that `decode` names.
    """
    at = 9 if in_stream else 5
    if payload[:1] != b"I" or payload[at : at + 1] != b"N":
        return None
    row: list[bytes | None] = []
    try:
        columns, at = _U16.unpack_from(payload, at + 1)[0], at + 3
        for _ in range(columns):
            kind = payload[at]
            if kind == _TEXT:
                begin = at + 5
                at = begin + _U32.unpack_from(payload, at + 1)[0]
                row.append(payload[begin:at])
            elif kind == _NULL:
                row.append(None)
                at += 1
            else:
                return None
    except (struct.error, IndexError):
        return None
    return row if at == len(payload) else None


def _no_relation(payload: bytes) -> MalformedMessage:
    return MalformedMessage("the message ends before its relation", offset=len(payload))


def _unpack_numbers(payload: bytes, form: Struct, fields: tuple[str, ...]) -> tuple[Any, ...]:
    """Decode a message of numbers alone at once.

    Two of a small transaction's three messages are of this kind.
    """
    if len(payload) != form.size:
        cursor = Cursor(payload)
        cursor.u8("the message's tag")
        cursor.numbers(Struct(form.format.replace("x", "")), fields)
        cursor.end()
    return form.unpack(payload)


def _begin(payload: bytes) -> m.Begin:
    lsn, ts, xid = _unpack_numbers(payload, _BEGIN, ("commit_lsn", "commit_ts", "xid"))
    return m.Begin(lsn, ts + POSTGRES_EPOCH_US, xid)


def _commit(payload: bytes) -> m.Commit:
    flags, lsn, end_lsn, ts = _unpack_numbers(payload, _COMMIT, ("flags", "commit_lsn", "end_lsn", "commit_ts"))
    if flags:
        raise MalformedMessage(f"flags {flags:#04x} has unknown bits", offset=1)
    return m.Commit(lsn, end_lsn, ts + POSTGRES_EPOCH_US)


def _decode_of_prepared(payload: bytes, form: Struct) -> m.Message | None:
    """Decode a message about a prepared transaction at once: numbers, then the gid.

    None: it has a flaw that reading it field by field will name.
    """
    if payload.find(0, form.size) != len(payload) - 1:
        return None
    try:
        gid = payload[form.size : -1].decode()
    except UnicodeDecodeError:
        return None
    if form is _BEGIN_PREPARE:
        lsn, end_lsn, ts, xid = form.unpack_from(payload)
        return m.BeginPrepare(lsn, end_lsn, ts + POSTGRES_EPOCH_US, PreparedIdentity(xid, gid))
    if payload[1]:  # flags
        return None
    if form is _ROLLBACK_PREPARED:
        lsn, end_lsn, ts, at, xid = form.unpack_from(payload)
        times = ts + POSTGRES_EPOCH_US, at + POSTGRES_EPOCH_US
        return m.RollbackPrepared(lsn, end_lsn, *times, PreparedIdentity(xid, gid))
    lsn, end_lsn, ts, xid = form.unpack_from(payload)
    kind = m.Prepare if payload[0] == _PREPARE else m.CommitPrepared
    return kind(lsn, end_lsn, ts + POSTGRES_EPOCH_US, PreparedIdentity(xid, gid))


_PREPARE = ord("P")
_OF_PREPARED = {b"b": _BEGIN_PREPARE, b"P": _PREPARE_OR_COMMIT, b"K": _PREPARE_OR_COMMIT, b"r": _ROLLBACK_PREPARED}
_PREPARE_FIELDS = ("prepare_lsn", "end_lsn", "prepare_ts", "xid")
_OUTCOME_FIELDS = ("commit_lsn", "end_lsn", "commit_ts", "xid")


def _two_phase(cursor: Cursor, fields: tuple[str, ...]) -> tuple[Lsn, Lsn, int, PreparedIdentity]:
    """Read the fields common to all messages about a prepared transaction, except its rollback.

    They are the record's start and end, the time when it was written, and the transaction's
    identity.
    """
    lsn, end_lsn, ts, xid = cursor.numbers(_TWO_PHASE, fields)
    return lsn, end_lsn, ts + POSTGRES_EPOCH_US, PreparedIdentity(xid, cursor.text("gid"))


def _begin_prepare(cursor: Cursor) -> m.BeginPrepare:
    return m.BeginPrepare(*_two_phase(cursor, _PREPARE_FIELDS))


def _prepare(cursor: Cursor) -> m.Prepare:
    cursor.flags("flags", 0)
    return m.Prepare(*_two_phase(cursor, _PREPARE_FIELDS))


def _stream_prepare(cursor: Cursor) -> m.StreamPrepare:
    cursor.flags("flags", 0)
    return m.StreamPrepare(*_two_phase(cursor, _PREPARE_FIELDS))


def _commit_prepared(cursor: Cursor) -> m.CommitPrepared:
    cursor.flags("flags", 0)
    return m.CommitPrepared(*_two_phase(cursor, _OUTCOME_FIELDS))


def _rollback_prepared(cursor: Cursor) -> m.RollbackPrepared:
    cursor.flags("flags", 0)
    return m.RollbackPrepared(
        cursor.lsn("prepare_end_lsn"),
        cursor.lsn("rollback_end_lsn"),
        cursor.time("prepare_ts"),
        cursor.time("rollback_ts"),
        PreparedIdentity(cursor.u32("xid"), cursor.text("gid")),
    )


def _stream_start(cursor: Cursor) -> m.StreamStart:
    return m.StreamStart(cursor.u32("xid"), bool(cursor.flags("first_segment", 1)))


def _stream_stop(_: Cursor) -> m.StreamStop:
    return m.StreamStop()


def _stream_commit(cursor: Cursor) -> m.StreamCommit:
    xid = cursor.u32("xid")
    cursor.flags("flags", 0)
    return m.StreamCommit(xid, cursor.lsn("commit_lsn"), cursor.lsn("end_lsn"), cursor.time("commit_ts"))


def _stream_abort(cursor: Cursor) -> m.StreamAbort:
    xid, subxid = cursor.u32("xid"), cursor.u32("subxid")
    if cursor.offset == len(cursor.data):
        return m.StreamAbort(xid, subxid)
    return m.StreamAbort(xid, subxid, cursor.lsn("abort_lsn"), cursor.time("abort_ts"))


def _origin(cursor: Cursor) -> m.Origin:
    return m.Origin(cursor.lsn("origin_lsn"), cursor.text("the origin's name"))


def _schema(cursor: Cursor) -> str:
    return cursor.text("the schema's name") or "pg_catalog"


def _relation(cursor: Cursor, xid: int | None) -> m.Relation:
    oid, schema, table = cursor.u32("oid"), _schema(cursor), cursor.text("the table's name")
    setting = cursor.u8("the replica identity")
    if (identity := _REPLICA_IDENTITIES.get(setting)) is None:
        raise MalformedMessage(f"{bytes((setting,))!r} is not a replica identity", offset=cursor.offset - 1)
    columns = tuple([_column(cursor) for _ in range(cursor.u16("the number of columns"))])
    return m.Relation(oid, schema, table, identity, columns, xid)


def _column(cursor: Cursor) -> m.RelationColumn:
    in_identity = bool(cursor.flags("the column's flags", 1))
    name = cursor.text("the column's name")
    return m.RelationColumn(name, cursor.u32("the type's oid"), cursor.i32("the type's modifier"), in_identity)


def _type(cursor: Cursor, xid: int | None) -> m.Type:
    return m.Type(cursor.u32("oid"), _schema(cursor), cursor.text("the type's name"), xid)


def _insert(cursor: Cursor, xid: int | None) -> m.Insert:
    relation = cursor.u32("the relation's oid")
    _expect_new(cursor, cursor.u8("the new row's tag"))
    return m.Insert(relation, _row(cursor), xid)


def _update(cursor: Cursor, xid: int | None) -> m.Update:
    relation = cursor.u32("the relation's oid")
    tag = cursor.u8("a row's tag")
    key = old = None
    if tag == ord("K"):
        key = _row(cursor)
    elif tag == ord("O"):
        old = _row(cursor)
    if key is not None or old is not None:
        tag = cursor.u8("the new row's tag")
    _expect_new(cursor, tag)
    return m.Update(relation, key, old, _row(cursor), xid)


def _delete(cursor: Cursor, xid: int | None) -> m.Delete:
    relation = cursor.u32("the relation's oid")
    tag = cursor.u8("the old row's tag")
    if tag == ord("K"):
        return m.Delete(relation, _row(cursor), None, xid)
    if tag == ord("O"):
        return m.Delete(relation, None, _row(cursor), xid)
    raise MalformedMessage(f"an old row starts with K or O, not {bytes((tag,))!r}", offset=cursor.offset - 1)


def _expect_new(cursor: Cursor, tag: int) -> None:
    if tag != ord("N"):
        raise MalformedMessage(f"a new row starts with N, not {bytes((tag,))!r}", offset=cursor.offset - 1)


def _row(cursor: Cursor) -> m.Row:
    return tuple([_value(cursor) for _ in range(cursor.u16("the number of columns"))])


def _value(cursor: Cursor) -> m.Value:
    kind = cursor.u8("a value's kind")
    if kind == ord("t"):
        return m.Text(cursor.counted("a value"))
    if kind == ord("n"):
        return None
    if kind == ord("b"):
        return m.Binary(cursor.counted("a value"))
    if kind == ord("u"):
        return m.Unchanged.TOAST
    raise MalformedMessage(f"{bytes((kind,))!r} is not a kind of value", offset=cursor.offset - 1)


def _truncate(cursor: Cursor, xid: int | None) -> m.Truncate:
    count = cursor.u32("the number of relations")
    flags = cursor.flags("flags", 3)
    if count * _U32.size > len(cursor.data) - cursor.offset:
        raise MalformedMessage(f"the message announces {count} relations, but ends before them", offset=cursor.offset)
    relations = tuple([cursor.u32("a relation's oid") for _ in range(count)])
    return m.Truncate(relations, bool(flags & 1), bool(flags & 2), xid)


def _message(cursor: Cursor, xid: int | None) -> m.LogicalMessage:
    transactional = bool(cursor.flags("flags", 1))
    lsn, prefix = cursor.lsn("lsn"), cursor.text("the prefix")
    return m.LogicalMessage(transactional, lsn, prefix, cursor.counted("the content"), xid)


_PLAIN: dict[int, Callable[[Cursor], m.Message]] = {
    ord("b"): _begin_prepare,
    ord("P"): _prepare,
    ord("K"): _commit_prepared,
    ord("r"): _rollback_prepared,
    ord("S"): _stream_start,
    ord("E"): _stream_stop,
    ord("c"): _stream_commit,
    ord("A"): _stream_abort,
    ord("p"): _stream_prepare,
    ord("O"): _origin,
}
"""Messages that have the same form inside and outside a stream block."""

_STREAMABLE: dict[int, Callable[[Cursor, int | None], m.Message]] = {
    ord("R"): _relation,
    ord("Y"): _type,
    ord("I"): _insert,
    ord("U"): _update,
    ord("D"): _delete,
    ord("T"): _truncate,
    ord("M"): _message,
}
"""Messages that have the subtransaction's xid between StreamStart and StreamStop."""
