"""What a prepared transaction costs the thread that reads: CPU microseconds from BEGIN PREPARE to
its outcome, by how many are in doubt at any time.

    make bench-prepared ARGS='[TRANSACTIONS] [IN_DOUBT ...]'

The messages are made here, as PostgreSQL sends them: transactions of five rows of ten columns,
every tenth of them rolled back, each outcome as many transactions behind its prepare as are in
doubt. Collector, bridge, executor, timers, spool, worker and the status page's bookkeeping are the
product's; the server, the registry and Kafka are stood in for. The last line is one JSON object.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from struct import pack
from types import SimpleNamespace
from typing import Any, cast

from twofold.bridge import initial
from twofold.config import PreparedConfig, TurnConfig
from twofold.lives.skipped_rows import NO_COMMANDS
from twofold.run.doubt_warnings import InDoubtWarnings
from twofold.run.executor import ActionExecutor, ReportedPositions
from twofold.run.run import Run, Timers
from twofold.run.worker import Worker
from twofold.source.cursor import POSTGRES_EPOCH_US
from twofold.source.session import Received
from twofold.spool import Spool
from twofold.stream.bookkeeping_records import ConnectorOrigin, Ledger
from twofold.stream.collector import Collector
from twofold.tables.ddl_descriptions import DdlDescriptions
from twofold.tables.table_version import RowPlans, TableVersion
from twofold.watch.activity import Activity
from twofold_avro.shapes import ColumnShape, TableShape, TypeShape
from twofold_common.positions import Lsn

ROWS = 5
START = 1_000
RECORD = 100
_VALUES = (b"%d", b"17", b"customer 4711", b"123.45", b"2024-01-01 00:00:00+00", b'{"sku": "A-1", "gift": true}', b"t")
_REST = (b"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", b"nnnnnnnnnnnnnnnnnnnnnnnnnnnnnn", b"1000003")
_TYPES = ("int8", "int4", "text", "numeric", "timestamptz", "jsonb", "bool", "uuid", "text", "int8")


def messages(transactions: int, in_doubt: int) -> Iterator[bytes]:
    """The stream: with each prepare the outcome of the one so many before it."""
    now_us = int(time.time() * 1e6) - POSTGRES_EPOCH_US
    for n in range(1, transactions + in_doubt + 1):
        if n <= transactions:
            at, gid = START + 2 * RECORD * n, b"gid-%d\0" % n
            yield b"b" + pack(">QQqI", at, at + RECORD, now_us, n) + gid
            for row in range(ROWS):
                values = (b"%d" % (ROWS * n + row), *_VALUES[1:], *_REST)
                columns = b"".join(b"t" + pack(">I", len(value)) + value for value in values)
                yield b"I" + pack(">I", 7) + b"N" + pack(">H", len(values)) + columns
            yield b"P\0" + pack(">QQqI", at, at + RECORD, now_us, n) + gid
        if (ended := n - in_doubt) > 0:
            at, gid = START + 2 * RECORD * n + RECORD, b"gid-%d\0" % ended
            prepare = START + 2 * RECORD * ended
            if ended % 10:
                yield b"K\0" + pack(">QQqI", at, at + RECORD, now_us, ended) + gid
            else:
                yield b"r\0" + pack(">QQqqI", prepare + RECORD, at + RECORD, now_us, now_us, ended) + gid


def _position(payload: bytes) -> int:
    """The position in the frame: of a prepare and an outcome, the end of its record."""
    return int.from_bytes(payload[10:18], "big") if payload[:1] in b"PKr" else START


class Session:
    """The stream in reads of a socket's size. The clock runs while it is consumed."""

    def __init__(self, stream: list[bytes], stop: threading.Event) -> None:
        self._stream, self._at, self._stop = stream, 0, stop
        self.positions = (0, 0)
        self.cpu_s = 0.0

    def read(self, *, rows_max: int, **_: Any) -> Received:
        if not self._at:
            self.cpu_s = -time.thread_time()
        part: Received = [(_position(payload), payload) for payload in self._stream[self._at : self._at + rows_max]]
        self._at += len(part)
        if not part and not self._stop.is_set():
            self.cpu_s += time.thread_time()
            self._stop.set()
        return part

    def tend(self) -> None: ...

    def report(self, *, write: int, flush: int) -> None:
        self.positions = write, flush


class LoadMerger:
    """Kafka, which takes everything at once."""

    rows = 0

    def produce(self, batch: Any) -> None:
        self.rows += batch.records

    def commit(self, records: Any) -> SimpleNamespace:
        return SimpleNamespace(commit=records.commit, pins={})

    def commit_prepared(self, _slot: int, records: Any) -> SimpleNamespace:
        self.rows += ROWS
        return self.commit(records)


def table() -> TableVersion:
    columns = tuple(
        ColumnShape(f"c{n}", TypeShape(n, "pg_catalog", name), in_key=n == 0, in_identity=n == 0)
        for n, name in enumerate(_TYPES)
    )
    shape = TableShape(7, "public", "orders", columns)
    plan = RowPlans("shop", "shop", tombstones=True, placeholders=False).make(shape, 3, 1, 2)
    return TableVersion(shape, "shop.public.orders", 3, plan, 3, lambda _: False, ids=(1, 2))


def measure(transactions: int, in_doubt: int, folder: Path) -> float:
    """Return the CPU microseconds of the reading thread for each transaction."""
    stop, known = threading.Event(), table()
    stream = list(messages(transactions, in_doubt))
    session, worker, merger = Session(stream, stop), Worker(), LoadMerger()
    tables: Any = SimpleNamespace(
        of_relation=lambda _oid, **_: known,
        register_committed=lambda _: None,
        owner=SimpleNamespace(bind=lambda: None),
        pins=SimpleNamespace(all={}, take_unwritten=dict, note_ddl=lambda _: None),
        lives=SimpleNamespace(take_for_merger=tuple),
        ddl=DdlDescriptions("p"),
        skips=NO_COMMANDS,
        note_changed=lambda *_: None,
    )
    state = initial(applied_lsn=Lsn(START), confirmed_lsn=Lsn(START), sequence=0, pool=8)
    spool = Spool(folder, memory_max=64 << 20, disk_max=1 << 30)
    publisher = SimpleNamespace(open=lambda *_: None, abort=lambda *_: None)
    origin = cast("ConnectorOrigin", SimpleNamespace(progress=lambda *_: None, stream_id=""))
    executor = ActionExecutor(
        worker=worker,
        publisher=cast("Any", publisher),
        merger=cast("Any", merger),
        tables=tables,
        origin=origin,
        reported=ReportedPositions(state.write, state.flush),
        ledger=Ledger((), ()),
        tend=session.tend,
    )
    settings = PreparedConfig.model_validate({})
    run = Run(
        state=state,
        session=cast("Any", session),
        collector=Collector(
            tables=tables,
            spool=spool,
            is_applied=state.is_applied,
            is_applied_upto=state.is_applied_upto,
            knows=executor.keeps,
            parks=settings.parks,
            open_within_s=settings.open_within,
            pool=settings.pool,
        ),
        executor=executor,
        worker=worker,
        loading=cast("Any", SimpleNamespace(turn=list, due=lambda _: None, progress=lambda: (), busy=False)),
        timers=Timers(
            open_within_s=settings.open_within, pool=8, hold_s=settings.hold, idle_s=10.0, now=time.monotonic()
        ),
        doubt_warnings=InDoubtWarnings("shop", settings.doubt_warning),
        limits=TurnConfig.model_validate({}),
        registrar=cast("Any", SimpleNamespace(begin=lambda _: None, is_asking_ahead=False)),
        stop=stop,
    )
    run.go(cast("Any", Activity()))
    worker.close(1)
    spool.close()
    assert not run.state.prepared, "each has its outcome"
    assert merger.rows == ROWS * (transactions - transactions // 10), "those of an opened one are counted at its commit"
    return session.cpu_s / transactions * 1e6


def main() -> None:
    transactions, *numbers = map(int, sys.argv[1:]) if sys.argv[1:] else [40_000]
    figures: dict[str, list[float]] = {}
    for _ in range(3):
        for in_doubt in numbers or (0, 4, 200, 1_000, 5_000):
            folder = Path(tempfile.mkdtemp())
            try:
                us = measure(transactions, in_doubt, folder)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            print(f"{in_doubt} in doubt at any time: {us:.1f} us a transaction, {us / ROWS:.1f} CPU s a million rows")
            figures.setdefault(str(in_doubt), []).append(round(us, 1))
    print(json.dumps({"us_per_prepared_transaction": figures}))


if __name__ == "__main__":
    main()
