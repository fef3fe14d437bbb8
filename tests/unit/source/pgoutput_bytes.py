"""Writes messages as PostgreSQL does: the decoder's opposite, written from the protocol's
documentation and used only by tests.
"""

from __future__ import annotations

from struct import pack

from twofold.source import messages as m

EPOCH_US = 946_684_800_000_000
IDENTITIES = {"default": b"d", "index": b"i", "full": b"f", "nothing": b"n"}


def encode(message: m.Message) -> bytes:
    match message:
        case m.Begin(lsn, ts, xid):
            return pack(">cQqI", b"B", lsn, ts - EPOCH_US, xid)
        case m.Commit(lsn, end, ts):
            return pack(">cBQQq", b"C", 0, lsn, end, ts - EPOCH_US)
        case m.BeginPrepare(lsn, end, ts, identity):
            return pack(">cQQqI", b"b", lsn, end, ts - EPOCH_US, identity.xid) + zero(identity.gid)
        case m.Prepare(lsn, end, ts, identity):
            return pack(">cBQQqI", b"P", 0, lsn, end, ts - EPOCH_US, identity.xid) + zero(identity.gid)
        case m.StreamPrepare(lsn, end, ts, identity):
            return pack(">cBQQqI", b"p", 0, lsn, end, ts - EPOCH_US, identity.xid) + zero(identity.gid)
        case m.CommitPrepared(lsn, end, ts, identity):
            return pack(">cBQQqI", b"K", 0, lsn, end, ts - EPOCH_US, identity.xid) + zero(identity.gid)
        case m.RollbackPrepared(prepare_end, end, prepared, rolled_back, identity):
            times = (prepared - EPOCH_US, rolled_back - EPOCH_US)
            return pack(">cBQQqqI", b"r", 0, prepare_end, end, *times, identity.xid) + zero(identity.gid)
        case m.StreamCommit(xid, lsn, end, ts):
            return pack(">cIBQQq", b"c", xid, 0, lsn, end, ts - EPOCH_US)
        case m.StreamAbort(xid, subxid, lsn, ts):
            tail = b"" if lsn is None or ts is None else pack(">Qq", lsn, ts - EPOCH_US)
            return pack(">cII", b"A", xid, subxid) + tail
        case _:
            return _encode_other(message)


def _encode_other(message: m.Message) -> bytes:
    match message:
        case m.Relation(oid, schema, table, identity, columns, xid):
            parts = [pack(">B", c.in_identity) + zero(c.name) + pack(">Ii", c.type_oid, c.typmod) for c in columns]
            head = within(b"R", xid) + pack(">I", oid) + zero(schema) + zero(table) + IDENTITIES[identity]
            return head + pack(">H", len(columns)) + b"".join(parts)
        case m.Type(oid, schema, name, xid):
            return within(b"Y", xid) + pack(">I", oid) + zero(schema) + zero(name)
        case m.Insert(oid, new, xid):
            return within(b"I", xid) + pack(">I", oid) + row(b"N", new)
        case m.Update(oid, key, old, new, xid):
            before = row(b"K", key) if key is not None else row(b"O", old) if old is not None else b""
            return within(b"U", xid) + pack(">I", oid) + before + row(b"N", new)
        case m.Delete(oid, key, old, xid):
            assert (key is None) != (old is None)
            return within(b"D", xid) + pack(">I", oid) + (row(b"K", key) if key is not None else row(b"O", old or ()))
        case m.Truncate(oids, cascade, restart, xid):
            return within(b"T", xid) + pack(f">IB{len(oids)}I", len(oids), cascade | restart << 1, *oids)
        case m.StreamStart(xid, first):
            return pack(">cIB", b"S", xid, first)
        case m.StreamStop():
            return b"E"
        case m.Origin(lsn, name):
            return pack(">cQ", b"O", lsn) + zero(name)
        case m.LogicalMessage(transactional, lsn, prefix, content, xid):
            head = within(b"M", xid) + pack(">BQ", transactional, lsn) + zero(prefix)
            return head + pack(">I", len(content)) + content
        case _:
            raise AssertionError(message)


def within(tag: bytes, xid: int | None) -> bytes:
    return tag if xid is None else tag + pack(">I", xid)


def zero(text: str) -> bytes:
    return text.encode() + b"\0"


def row(tag: bytes, values: m.Row) -> bytes:
    out = [tag, pack(">H", len(values))]
    for value in values:
        match value:
            case None:
                out.append(b"n")
            case m.Unchanged():
                out.append(b"u")
            case m.Text(data):
                out += [b"t", pack(">I", len(data)), data]
            case m.Binary(data):
                out += [b"b", pack(">I", len(data)), data]
    return b"".join(out)
