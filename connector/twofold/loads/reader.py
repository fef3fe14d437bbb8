"""Reads one table for its backfill: a snapshot, a range of the key, rows encoded on arrival.

Each chunk has the position that the stream must pass before the rows may be published.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import replace

from twofold.errors import Refused
from twofold.lives.chunk_rule import Snapshot
from twofold.lives.load_progress import LoadProgress
from twofold.loads.chunk import KEY_HEAD, Chunk, EncodingRequest, ReloadTruncate, SnapshotSeen, TableEncoding
from twofold.source import locks
from twofold.source.messages import Relation
from twofold.source.table_copier import CopyView, TableCopier
from twofold.spool import Spool
from twofold_avro.shapes import TableShape
from twofold_avro.transcode import PackedRecords, PartitionPacker, TransactionHeader
from twofold_avro.types import How, key_encoding_of
from twofold_common.table_names import table_argument

PIECE_BYTES = 1 << 20
AGAIN_MAX = 200
"""The number of keys that are read again at a time."""
AskEncoding = Callable[[EncodingRequest], TableEncoding]
"""Asks the turn's thread how rows are encoded."""


class Reader:
    """The reader of one table. One thread uses it, except for `cancel`."""

    def __init__(
        self,
        conninfo: str,
        publication: str,
        *,
        topic: str,
        schema: str,
        table: str,
        chunk_rows: int,
        chunk_bytes: int,
        spool: Spool,
    ) -> None:
        self._copier = TableCopier(conninfo, publication, schema, table)
        self._topic = topic
        self._schema, self._table = schema, table
        self._chunk_rows = chunk_rows
        self._chunk_bytes = chunk_bytes
        self._spool = spool
        self._known: tuple[tuple[Relation, tuple[int, ...]], TableEncoding] | None = None
        """The encoding for these columns, by their numbers too."""
        self.estimate: int | None = None
        """The planner's row count; queried once."""

    def cancel(self) -> None:
        self._copier.cancel()

    def close(self) -> None:
        self._copier.close()

    def forget_encoding(self) -> None:
        """Forget the encoding: the stream has described the table differently since."""
        self._known = None

    def writers(self) -> tuple[locks.TableWriter, ...]:
        """Return the transactions that may be writing to the table now."""
        return self._copier.writers()

    def wait_for_all(self) -> bool:
        """Wait for every running transaction where locks do not suffice; else return False."""
        return self._copier.wait_for_all()

    def current_snapshot(self) -> SnapshotSeen:
        """Take a snapshot and return it."""
        return SnapshotSeen(self._topic, Snapshot.parse(self._copier.snapshot()))

    def make_truncate(self, *, ask: AskEncoding) -> ReloadTruncate:
        """Make the truncate that begins a reload and executes the reload's command."""
        with self._copier.view() as view:
            if view.described is None:
                return ReloadTruncate(self._topic, None, [], view.lsn, view.at_us)
            encoding = ask(EncodingRequest(view.described.relation))
            lists: list[list[dict[str, bytes | None]]] = [[] for _ in range(encoding.partitions)]
            header = TransactionHeader(None, view.at_us, None)
            encoding.plan.truncate(view.lsn, header, time.time_ns() // 1_000_000, lists)
        return ReloadTruncate(self._topic, encoding, lists, view.lsn, view.at_us)

    def read(self, progress: LoadProgress, *, ask: AskEncoding) -> Chunk:
        """Read the next chunk: keys to be read again first, otherwise the next range."""
        among = frozenset(sorted(progress.again)[:AGAIN_MAX])
        begun = time.monotonic()
        with self._copier.view() as view:
            if view.described is None:
                return replace(self._empty_chunk(view, None), among=progress.again)
            if self.estimate is None:
                self.estimate = self._copier.estimate(view.described)
            columns = view.described.relation, view.described.numbers
            if self._known is None or self._known[0] != columns:
                self._known = columns, ask(EncodingRequest(view.described.relation))
            encoding = self._known[1]
            if encoding.shape.keyless:
                return self._read_whole(view, encoding, begun)
            if hashed := [column.name for column in encoding.shape.key if column.policy]:
                raise _hashed_key(self._schema, self._table, hashed)
            key_order = view.described.key_order(frozenset(column.name for column in encoding.shape.key))
            order = tuple(each.identity for each in key_order)
            if progress.order not in {(), order}:
                # The key was made again, or has another type, collation or operator class.
                # In another order, other rows follow the last one.
                progress = replace(progress, after=None)
            packer = PartitionPacker(encoding.partitions)
            header, ts_ms = TransactionHeader(None, view.at_us, None), time.time_ns() // 1_000_000
            rows = size = 0
            full = False
            key: bytes | None = None
            with closing(self._rows(view, encoding, progress, among)) as runs:
                for run in runs:
                    count, key = encoding.plan.append_copy(run, view.lsn, header, ts_ms, packer)
                    rows += count
                    size += len(run)
                    if size >= self._chunk_bytes:
                        full = True
                        break
        return replace(
            self._empty_chunk(view, encoding),
            scanned=not among and not full and rows < self._chunk_rows,
            lists=[PackedRecords(packed) for packed in packer.take_rows()],
            last=None if key is None or among else key[KEY_HEAD:],
            among=among,
            rows=rows,
            size=size,
            begun=begun,
            order=() if among else order,
        )

    def _rows(
        self, view: CopyView, encoding: TableEncoding, progress: LoadProgress, among: frozenset[bytes]
    ) -> Generator[bytes]:
        assert view.described is not None
        shape, mark = encoding.shape, self._chunk_bytes
        if among:
            keys = [key_texts(shape, key) for key in sorted(among)]
            return self._copier.rows(view.described, shape, among=keys, mark=mark)
        after = None if progress.after is None else key_texts(shape, progress.after)
        return self._copier.rows(view.described, shape, after=after, limit=self._chunk_rows, mark=mark)

    def _read_whole(self, view: CopyView, encoding: TableEncoding, begun: float) -> Chunk:
        """Read all rows at once: without a key nothing shows which rows the stream has too."""
        assert view.described is not None
        header, ts_ms = TransactionHeader(None, view.at_us, None), time.time_ns() // 1_000_000
        whole, packer = self._spool.new(), PartitionPacker(1)
        rows = size = waiting = 0
        try:
            for run in self._copier.rows(view.described, encoding.shape):
                count, _ = encoding.plan.append_copy(run, view.lsn, header, ts_ms, packer)
                rows += count
                size += len(run)
                waiting += len(run)
                if waiting >= PIECE_BYTES:
                    whole.append(packer.take_rows()[0])
                    waiting = 0
            whole.append(packer.take_rows()[0])
        except BaseException:
            whole.drop()
            raise
        return replace(self._empty_chunk(view, encoding), rows=rows, size=size, begun=begun, whole=whole)

    def _empty_chunk(self, view: CopyView, encoding: TableEncoding | None) -> Chunk:
        """Return a chunk of this moment without rows, as if no row followed."""
        snapshot = Snapshot.parse(view.snapshot)
        return Chunk(self._topic, encoding, snapshot, view.lsn, view.at_us, scanned=True)


def _hashed_key(schema: str, table: str, columns: list[str]) -> Refused:
    name = f"{schema}.{table}"
    return Refused(
        f"table {name} cannot be loaded: its key {', '.join(columns)} is hashed, and rows are loaded in the order of the key",
        at_stake="a load that cannot go on where it was would publish rows twice; nothing was loaded",
        repair=f"twofold backfill cancel {table_argument(schema, table)}; to load the table, take its key out of the policy",
    )


def key_texts(shape: TableShape, key: bytes) -> dict[str, str]:
    """Return the key's columns with their values in PostgreSQL's text form.

    A load continues behind the last published key: `key` is that message key without its schema's
    id.
    """
    offset, texts = 0, {}

    def long() -> int:
        nonlocal offset
        number = shift = 0
        while True:
            byte = key[offset]
            offset += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (number >> 1) ^ -(number & 1)
            shift += 7

    def sized(size: int) -> bytes:
        nonlocal offset
        offset += size
        return key[offset - size : offset]

    for column in shape.key:
        encoding = key_encoding_of(column.type)
        how = How.TEXT if encoding.as_text else encoding.how
        match how:
            case How.INT | How.UNSIGNED:
                text = str(long())
            case How.BOOL:
                text = str(bool(sized(1)[0])).lower()
            case How.FLOAT4:
                text = repr(struct.unpack("<f", sized(4))[0])
            case How.FLOAT8:
                text = repr(struct.unpack("<d", sized(8))[0])
            case How.BYTES:
                text = "\\x" + sized(long()).hex()
            case _:
                text = sized(long()).decode()
        texts[column.name] = text
    assert offset == len(key), f"a key of {shape.schema}.{shape.table} has {len(key) - offset} bytes too many"
    return texts
