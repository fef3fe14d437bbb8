"""What a transaction keeps of rows that people's commands name, with real plans and messages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from struct import pack
from types import SimpleNamespace
from typing import Any

import pytest

from helpers.source.collecting import make_collector
from twofold.bridge.events import PrepareRead
from twofold.errors import MalformedMessage, Refused
from twofold.kafka.record_sizes import RecordTooLarge
from twofold.kafka.row_batch import SKIPPED, RowBatch
from twofold.kafka.schema_registry import SchemaRefused
from twofold.lives.skipped_rows import SkipCommand, SkipCommands, name_by_key
from twofold.spool import Spool
from twofold.stream.skipping import offer_record
from twofold.stream.source_transaction import SourceTransaction
from twofold.stream.streamed import StreamedTransaction, StreamUnclear
from twofold.tables.table_version import RowPlans, TableVersion, TransactionInfo
from twofold_avro.records import Pin
from twofold_avro.shapes import ColumnShape, TableShape, TypeShape
from twofold_avro.transcode import Packer

TOPIC = "bank.public.note"
INT, TEXT = (TypeShape(0, "pg_catalog", name, typmod=-1) for name in ("int4", "text"))


def table(*, keyed: bool = True, committed: bool = True) -> TableVersion:
    columns = (
        ColumnShape("id", INT, keyed, keyed),
        ColumnShape("n", INT, False, False),
        ColumnShape("t", TEXT, False, False),
    )
    shape = TableShape(7, "public", "note", columns, "default" if keyed else "full")
    plan = RowPlans("bank", "bank", tombstones=True, placeholders=False).make(shape, 3, 1, 2)
    made = TableVersion(shape, TOPIC, 3, plan, 2, lambda _: False)
    made.ids = (1, 2) if committed else None
    return made


class Tables:
    """One table, whose shape the registry may refuse."""

    skips = SkipCommands()

    def __init__(self, version: TableVersion) -> None:
        self._version = version

    def of_relation(self, oid: int, *, provisional: bool) -> TableVersion:
        if not provisional:
            self.register_committed((self._version,))
        return self._version

    def register_committed(self, tables: Any) -> None:
        for each in tables:
            if not each.committed:
                raise SchemaRefused("the registry refuses", at_stake="", repair="another compatibility")


def values(*texts: object) -> bytes:
    given = [str(text).encode() for text in texts]
    return pack(">H", len(given)) + b"".join(b"t" + pack(">I", len(each)) + each for each in given)


def insert(*texts: object, before: bytes = b"") -> bytes:
    return b"I" + before + pack(">I", 7) + b"N" + values(*texts)


def rekey(old: int, *texts: object) -> bytes:
    key = pack(">H", 3) + b"t" + pack(">I", len(str(old))) + str(old).encode() + b"nn"
    return b"U" + pack(">I", 7) + b"K" + key + b"N" + values(*texts)


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    spool = Spool(tmp_path, memory_max=1000, disk_max=1 << 30)
    yield spool
    spool.close()


class Reading:
    """A plain transaction as one reads it, however often."""

    def __init__(self, version: TableVersion, spool: Spool) -> None:
        self.tables = Tables(version)
        self._spool = spool

    def read(self, *rows: tuple[int, bytes], kind: type[SourceTransaction] = SourceTransaction) -> SourceTransaction:
        info = TransactionInfo(9, 0, "9:0/1", None)
        made: SourceTransaction
        if kind is StreamedTransaction:
            made = StreamedTransaction(9, self.tables, Packer(), self._spool)  # type: ignore[arg-type]
        else:
            made = SourceTransaction(info, RowBatch(), self.tables, self._spool)  # type: ignore[arg-type]
        at, received = 0, list(rows)
        while at < len(received):
            at = made.append_rows(received, at, 0)  # type: ignore[arg-type]
        return made

    def skip(self, error: Exception) -> SkipCommand:
        """Command what the error offers."""
        found = re.search(
            r"twofold skip public\.note --position 0/([0-9A-F]+) --row (\S+); then twofold run", str(error)
        )
        assert found, error
        command = SkipCommand(TOPIC, int(found[1], 16), found[2])
        self.tables.skips = SkipCommands([command])
        return command


def keys(transaction: SourceTransaction, topic: str = TOPIC) -> list[bytes | None]:
    return sorted(
        (
            r["key"] and r["key"][5:]
            for name, _, records in transaction.batch.partitions()
            if name == topic
            for r in records
        ),
        key=lambda key: key or b"",
    )


def notes(transaction: SourceTransaction) -> list[Any]:
    noted = transaction.batch.take_topic(SKIPPED)
    return [record for _, _, records in noted.partitions() for record in records] if noted else []


@pytest.mark.parametrize("keyed", [True, False])
def test_a_malformed_row_is_named_and_left_out_alone(spool: Spool, *, keyed: bool) -> None:
    """Three rows of one position: its neighbours stay."""
    here = Reading(table(keyed=keyed), spool)
    rows = (
        (16, insert(1, 1, "a")),
        (17, insert(2, 1, "b")),
        (17, insert(3, "x", "c")),
        (17, insert(4, 1, "d")),
        (18, insert(5, 1, "e")),
    )
    with pytest.raises(MalformedMessage, match=r"column n of public\.note: not a number at byte") as raised:
        here.read(*rows)
    command = here.skip(raised.value)
    read = here.read(*rows)
    assert notes(read) == [{**command._asdict(), "key": b"\x06" if keyed else None}]
    assert keys(read) == ([b"\x02", b"\x04", b"\x08", b"\x0a"] if keyed else [None] * 4)
    assert read.rows == 5
    assert read.has_skipped


def test_a_row_whose_key_is_malformed(spool: Spool) -> None:
    here = Reading(table(), spool)
    rows = (17, insert("x", 1, "a")), (17, insert(2, 1, "b"))
    with pytest.raises(MalformedMessage) as raised:
        here.read(*rows)
    assert here.skip(raised.value).row.startswith("raw-")
    read = here.read(*rows)
    assert [each["key"] for each in notes(read)] == [None]
    assert keys(read) == [b"\x04"]


def large(key: bytes | None, value: bytes, lsn: int, op: str = "c") -> Refused:
    refusal = RecordTooLarge(TOPIC, 0, 9, {"key": key and b"\0\0\0\0\1" + key, "value": value}, "kafka")
    return offer_record(refusal, Pin("public", "note", 3), lambda _: (lsn, op, False))


def test_of_a_row_too_large_that_changes_its_key_the_delete_stays(spool: Spool) -> None:
    here = Reading(table(), spool)
    here.skip(large(b"\x04", b"v" * 100, 17))
    read = here.read((17, rekey(1, 2, 1, "large")), (17, insert(3, 1, "b")))
    assert [each["key"] for each in notes(read)] == [b"\x04"]
    assert keys(read) == [b"\x02", b"\x02", b"\x06"]  # the delete and its tombstone


def test_a_row_too_large_without_a_key_is_named_by_its_size(spool: Spool) -> None:
    here = Reading(table(keyed=False), spool)
    rows = (17, insert(1, 1, "a")), (17, insert(2, 1, "large" * 50)), (17, insert(3, 1, "c"))
    ((_, _, records),) = here.read(*rows).batch.partitions()
    here.skip(large(None, records[1]["value"], 17))
    read = here.read(*rows)
    assert [each["key"] for each in notes(read)] == [None]
    assert keys(read) == [None, None]


def test_ordinals_are_those_of_a_transaction_with_the_row(spool: Spool) -> None:
    here = Reading(table(keyed=False), spool)
    rows = (16, insert(1, 1, "a")), (17, insert(2, 1, "large")), (18, insert(3, 1, "c"))
    ((_, _, before),) = here.read(*rows).batch.partitions()
    here.skip(large(None, before[1]["value"], 17))
    left = here.read(*rows)
    notes(left)
    ((_, _, after),) = left.batch.partitions()
    assert after == [before[0], before[2]]


@pytest.mark.parametrize("op", ["r", "t"])
def test_a_loads_row_and_a_truncate_are_not_offered(op: str) -> None:
    assert "twofold skip" not in str(large(b"\x04", b"v", 17, op))
    assert "twofold skip" in str(large(b"\x04", b"v", 17))


def test_a_row_whose_shape_the_registry_refuses(spool: Spool) -> None:
    here = Reading(table(committed=False), spool)
    with pytest.raises(Refused) as raised:
        here.read((17, rekey(1, 2, 1, "a")))
    here.skip(raised.value)
    read = here.read((17, rekey(1, 2, 1, "a")))
    assert [each["key"] for each in notes(read)] == [b"\x02", b"\x04"]  # nothing of it has a schema
    assert not read.tables
    with pytest.raises(Refused) as again:
        here.read((17, insert(2, 1, "a")), (18, insert(3, 1, "a")))
    assert here.skip(again.value).lsn == 18


@pytest.mark.parametrize("kind", [SourceTransaction, StreamedTransaction])
def test_the_first_row_is_named_of_a_shape_that_is_refused_at_the_outcome(spool: Spool, kind: Any) -> None:
    here = Reading(table(committed=False), spool)
    before = pack(">I", 9) if kind is StreamedTransaction else b""
    rows = (17, insert(1, 1, "a", before=before)), (18, insert(2, 1, "b", before=before))
    if kind is StreamedTransaction:
        read = here.read(*rows, kind=kind)
        read.end(TransactionInfo(9, 0, "9:0/1", "g"))  # type: ignore[attr-defined]
    else:
        read = SourceTransaction(TransactionInfo(9, 0, "9:0/1", "g"), RowBatch(), here.tables, spool)  # type: ignore[arg-type]
        read.is_prepared = True
        for at in range(2):
            read.append_rows(list(rows), at, 0)
        read.complete()
    with pytest.raises(Refused) as raised:
        read.register()
    assert here.skip(raised.value).lsn == 17


def test_a_streamed_row_is_read_again_without_streaming_and_others_are_not(spool: Spool) -> None:
    here = Reading(table(), spool)
    here.tables.skips = SkipCommands([SkipCommand(TOPIC, 17, "0")])
    before = pack(">I", 9)
    here.read((16, insert(1, 1, "a", before=before)), (18, insert(2, 1, "b", before=before)), kind=StreamedTransaction)
    with pytest.raises(StreamUnclear):
        here.read(
            (16, insert(1, 1, "a", before=before)), (17, insert(2, 1, "b", before=before)), kind=StreamedTransaction
        )


def test_a_command_for_another_row_changes_nothing(spool: Spool) -> None:
    here = Reading(table(), spool)
    rows = [(n, insert(n, 1, "a")) for n in (15, 16, 17, 18)]
    before = list(here.read(*rows).batch.partitions())
    for command in (SkipCommand(TOPIC, 17, "00000000"), SkipCommand("another", 16, "x"), SkipCommand(TOPIC, 99, "x")):
        here.tables.skips = SkipCommands([command])
        read = here.read(*rows)
        assert list(read.batch.partitions()) == before
        assert read.rows == 4
        assert not read.has_skipped


@pytest.mark.parametrize(
    ("skips", "parks"),
    [
        (SkipCommands(), False),
        (SkipCommands(lacking=["another"]), False),
        (SkipCommands(lacking=[TOPIC]), True),
        (SkipCommands([SkipCommand(TOPIC, 999, "0")]), True),
    ],
)
def test_a_prepared_transaction_of_a_table_that_lacks_a_row_is_parked(
    spool: Spool, skips: SkipCommands, *, parks: bool
) -> None:
    assert (parked(table(), spool, skips) is not None) == parks


def test_a_prepared_transaction_of_nothing_but_a_skipped_row_is_parked(spool: Spool) -> None:
    named = SkipCommand(TOPIC, 17, name_by_key(17, b"\x02"))
    assert parked(table(committed=False), spool, SkipCommands([named])) == "it touches a table that lacks a skipped row"


def parked(version: TableVersion, spool: Spool, skips: SkipCommands) -> str | None:
    """Why the prepared transaction of one row is parked."""
    tables = Tables(version)
    tables.skips = skips
    tables.ddl = SimpleNamespace(prepare=None, resolve=None)  # type: ignore[attr-defined]
    at = pack(">QQqI", 20, 30, 0, 9) + b"g\0"
    stream = [(0, b"b" + at), (17, insert(1, 1, "a")), (30, b"P\0" + at)]
    (event,) = [
        each.event
        for each in make_collector(tables, spool, knows=lambda _: True).collect(stream, 0)  # type: ignore[arg-type]
        if isinstance(each.event, PrepareRead)
    ]
    return event.park_reason
