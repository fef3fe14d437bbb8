"""The merger publishes a chunk's packed rows in their order, and none of the dropped keys."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from twofold.kafka.publisher import Publisher, TransactionRecords
from twofold.kafka.row_batch import Record, RowBatch
from twofold.lives.chunk_rule import Snapshot
from twofold.loads.chunk import Chunk, TableEncoding
from twofold.loads.load_merger import LoadMerger
from twofold.loads.watched_topic import EnvelopeReader
from twofold.spool import Spool
from twofold_avro.records import Commit, Pin, Progress
from twofold_avro.transcode import PackedRecords, Packer
from twofold_common.positions import Lsn

TOPIC = "t.public.account"
HEAD = b"\0\0\0\0\1"
COMMIT, PROGRESS = Commit(1, "backfill", 100, 0, 0, rows=0, prepared=()), cast("Progress", None)
XID = 7


class Topic:
    """Takes the publisher's place."""

    def __init__(self) -> None:
        self.rows: dict[int, list[Record]] = {}
        self.most = 0
        self.pins: Mapping[str, Pin] = {}

    def produce(self, batch: RowBatch) -> None:
        self.most = max(self.most, batch.records)
        for _, partition, records in batch.partitions():
            self.rows.setdefault(partition, []).extend(records)

    def commit_main(self, records: TransactionRecords) -> None:
        self.pins = records.pins


class Values(EnvelopeReader):
    """A changed row's value is `u`; `u*`: an unchanged value was left out."""

    def read(self, value: bytes) -> tuple[int, str, bool]:
        return XID, "u", value == b"u*"

    read_place = read


def packed(records: list[Record]) -> PackedRecords:
    return PackedRecords(Packer().pack(records, 0, len(records)))


def row(number: int, *, keyless: bool = False) -> Record:
    return {"key": None if keyless else HEAD + b"%d" % number, "value": b"%d r" % number}


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(tmp_path, memory_max=1 << 20, disk_max=1 << 30)


def publish(spool: Spool, chunk: dict[str, Any], changed: list[int], *, keyless: bool = False) -> Topic:
    topic = Topic()
    pin = Pin("public", "account", 1, None if keyless else '"bytes"', backfill="running")
    merger = LoadMerger(
        cast("Publisher", topic),
        pins={TOPIC: pin},
        envelopes=Values(str),
        spool=spool,
    )
    batch = RowBatch()
    batch.lists(TOPIC, 1)[0].extend({"key": HEAD + b"%d" % n, "value": b"u*" if n % 2 else b"u"} for n in changed)
    merger.produce(batch)
    topic.rows.clear()
    values: dict[str, Any] = {
        "topic": TOPIC,
        "encoding": TableEncoding(cast("Any", None), 2, cast("Any", None), None),
        "snapshot": Snapshot(XID, frozenset()),
        "end_lsn": Lsn(1),
        "at_us": 0,
        "scanned": True,
    }
    made = Chunk(**(values | chunk))
    merger.publish_chunk(made, TransactionRecords(COMMIT, PROGRESS))
    result = made.answer.result(0)
    assert result is not None
    topic_rows = sum(map(len, topic.rows.values()))
    assert result.progress.rows == topic_rows
    assert result.progress.again == {b"%d" % number for number in changed if number % 2}
    return topic


def test_rows_keep_their_order_and_few_are_unpacked_at_a_time(spool: Spool) -> None:
    lists = [[row(n) for n in range(0, 9_000, 2)], [row(n) for n in range(1, 7_000, 2)]]
    topic = publish(spool, {"lists": [packed(each) for each in lists]}, [])
    assert [topic.rows[0], topic.rows[1]] == lists
    assert topic.most < 5_000


def test_dropped_keys_are_left_out_and_partial_ones_read_again(spool: Spool) -> None:
    changed = [0, 1, 2_500, 8_998, 6_999]
    lists = [[row(n) for n in range(0, 9_000, 2)], [row(n) for n in range(1, 7_000, 2)]]
    topic = publish(spool, {"lists": [packed(each) for each in lists]}, changed)
    for partition, read in enumerate(lists):
        assert topic.rows[partition] == [r for r in read if r not in [row(n) for n in changed]]


def test_a_table_without_a_key_is_published_whole(spool: Spool) -> None:
    whole, rows = spool.new(), [row(n, keyless=True) for n in range(5_000)]
    for at in range(0, len(rows), 2_500):
        part = rows[at : at + 2_500]
        whole.append(Packer().pack(part, 0, len(part)))
    topic = publish(spool, {"whole": whole}, [], keyless=True)
    assert topic.rows == {0: rows}
