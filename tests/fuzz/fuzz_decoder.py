"""Coverage-guided fuzzing of the decoder: any bytes give a message or MalformedMessage, and what is
accepted means exactly its bytes.

    python tests/fuzz/fuzz_decoder.py SECONDS

The first byte of an input says whether a stream block is open; the rest is the message. Starts from
messages of each kind: written by hand, and captured from servers. The last line is `{"executions":
..., "crashes": 0}`; a crash prints its input before it, and ends with status 1.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

with atheris.instrument_imports():
    import twofold.source.decoder  # noqa: F401  (so that each branch of it is counted)

sys.path.insert(0, str(Path(__file__).parents[1]))
from fuzz.captured import captured, check
from fuzz.child import fuzz_in_child
from twofold.source import messages as m
from twofold_common.positions import Lsn, PreparedIdentity
from unit.source.pgoutput_bytes import encode

NOBODY = PreparedIdentity(7, "gid")
ROW = (m.Text(b"a"), None, m.Unchanged.TOAST, m.Binary(b"\0\1"))
COLUMNS = (m.RelationColumn("k", 23, -1, True), m.RelationColumn("v", 25, 4, False))
LOW, HIGH, NOW = Lsn(0x16B3748), Lsn(0x1_0000_0000), 1_790_000_000_000_000


def seeds() -> list[bytes]:
    plain: list[m.Message] = [
        m.Begin(LOW, NOW, 7),
        m.Commit(LOW, HIGH, NOW),
        m.BeginPrepare(LOW, HIGH, NOW, NOBODY),
        m.Prepare(LOW, HIGH, NOW, NOBODY),
        m.CommitPrepared(LOW, HIGH, NOW, NOBODY),
        m.RollbackPrepared(LOW, HIGH, NOW, NOW, NOBODY),
        m.StreamStart(7, True),
        m.StreamStop(),
        m.StreamCommit(7, LOW, HIGH, NOW),
        m.StreamAbort(7, 8),
        m.StreamAbort(7, 8, LOW, NOW),
        m.StreamPrepare(LOW, HIGH, NOW, NOBODY),
        m.Origin(LOW, "origin"),
    ]
    out = [b"\0" + encode(message) for message in plain]
    for in_stream, xid in ((b"\0", None), (b"\1", 9)):
        streamable: list[m.Message] = [
            m.Relation(1, "s", "t", "default", COLUMNS, xid),
            m.Type(1, "s", "t", xid),
            m.Insert(1, ROW, xid),
            m.Update(1, ROW, None, ROW, xid),
            m.Update(1, None, ROW, ROW, xid),
            m.Delete(1, ROW, None, xid),
            m.Truncate((1, 2), True, True, xid),
            m.LogicalMessage(True, LOW, "prefix", b"content", xid),
        ]
        out += [in_stream + encode(message) for message in streamable]
    return out + [bytes([in_stream]) + payload for in_stream, payload in captured()]


def check_input(data: bytes) -> None:
    if data:
        check(data[1:], in_stream=bool(data[0] & 1))


if __name__ == "__main__":
    sys.exit(fuzz_in_child(check_input, seeds(), int(sys.argv[1])))
