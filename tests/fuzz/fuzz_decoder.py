"""Coverage-guided fuzzing of the decoder: any bytes give a message or MalformedMessage, and what is
accepted means exactly its bytes.

    python tests/fuzz/fuzz_decoder.py SECONDS

The first byte of an input says whether a stream block is open; the rest is the message. Starts from
messages of each kind: written by hand, and captured from servers. The last line is `{"executions":
..., "crashes": 0}`; a crash prints its input before it, and ends with status 1.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path

import atheris

with atheris.instrument_imports():
    import twofold.source.decoder  # noqa: F401  (so that each branch of it is counted)

sys.path.insert(0, str(Path(__file__).parents[1]))
from fuzz.captured import captured, check
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


def report(path: Path, crashes: int) -> None:
    print(json.dumps({"executions": int(path.read_text() or 0), "crashes": crashes}), flush=True)


def fuzz(seconds: int, count_file: Path) -> None:
    """Runs in a child, because libFuzzer ends its process itself; the count is left in a file from
    time to time.
    """
    executions = 0
    written = 0.0

    def one_input(data: bytes) -> None:
        nonlocal executions, written
        executions += 1
        if executions % 1000 == 0 and (now := time.monotonic()) - written > 0.2:
            count_file.write_text(str(executions))
            written = now
        check_input(data)

    with tempfile.TemporaryDirectory() as corpus:
        for number, seed in enumerate(seeds()):
            (Path(corpus) / str(number)).write_bytes(seed)
        options = ["fuzz_decoder", corpus, f"-max_total_time={seconds}", "-max_len=600", "-verbosity=0", "-timeout=5"]
        atheris.Setup([*options, f"-artifact_prefix={corpus}/"], one_input)
        atheris.Fuzz()


def main(seconds: int) -> int:
    with tempfile.NamedTemporaryFile() as file:
        child = os.fork()
        if child == 0:
            try:
                fuzz(seconds, Path(file.name))
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        _, status = os.waitpid(child, 0)
        crashes = int(status != 0)
        report(Path(file.name), crashes)
    return crashes


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
