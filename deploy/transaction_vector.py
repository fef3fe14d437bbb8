"""`make vector`: a small prefix's topics as a read_committed consumer gets them, and the
transactions that must come out of them: docs/reference/transactions.json.

    python deploy/transaction_vector.py > docs/reference/transactions.json

A program in any language that puts transactions together can be checked with it. The history has
what makes that difficult: several partitions, rows of a prepared transaction that lie before those
of earlier commit records, markers and aborted records between, a prepared transaction within a
batch, tombstones, a truncate, a changed key, loads, and a table without a key. The expected
transactions are those of the history, and not what a reader made of the topics. Pure.
"""

from __future__ import annotations

import base64
import io
import json
import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import fastavro

from twofold_avro import wire
from twofold_avro.names import avro_name, topic_of
from twofold_avro.records import Commit, PreparedOutcome, Range, SkippedRow
from twofold_avro.schemas import envelope_schema, fixed, key_schema
from twofold_avro.shapes import ColumnShape, TableShape, TypeShape
from twofold_common.positions import format_lsn

PREFIX: Final = "bank"
PARTITIONS: Final = 2
_COMMIT_ID: Final = 1
_STREAM: Final = "5f1c0d"
_DAY_US: Final = 1_790_000_000_000_000
_LONG = TypeShape(20, "pg_catalog", "int8")
_TEXT = TypeShape(25, "pg_catalog", "text")
_TIME = TypeShape(1184, "pg_catalog", "timestamptz")
ACCOUNT: Final = TableShape(
    1,
    "public",
    "account",
    (
        ColumnShape("id", _LONG, in_key=True, in_identity=True),
        ColumnShape("balance", _LONG),
        ColumnShape("the owner", _TEXT),
        ColumnShape("closed", _TIME),
    ),
)
TRANSFER: Final = TableShape(
    2, "public", "transfer", (ColumnShape("no", _LONG, in_key=True, in_identity=True), ColumnShape("amount", _LONG))
)
NOTE: Final = TableShape(3, "public", "note", (ColumnShape("text", _TEXT),), replica_identity="full")
_TABLES: Final = (ACCOUNT, TRANSFER, NOTE)

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the history, as it must come out."""

    shape: TableShape
    op: Literal["c", "u", "d", "r", "t"]
    before: Row | None = None
    after: Row | None = None
    unchanged: tuple[str, ...] = ()
    special: tuple[tuple[str, str, str], ...] = ()

    @property
    def key(self) -> Row | None:
        row = self.before if self.op == "d" else self.after
        names = [column.name for column in self.shape.key]
        return {name: row[name] for name in names} if row and names else None

    def to_json(self, number: int) -> dict[str, Any]:
        return {
            "table": f"{self.shape.schema}.{self.shape.table}",
            "op": self.op,
            "key": self.key,
            "before": self.before and {c.name: self.before.get(c.name) for c in self.shape.columns},
            "after": self.after and {c.name: self.after.get(c.name) for c in self.shape.columns},
            "unchanged": list(self.unchanged),
            "special": [{"row": row, "column": column, "text": text} for row, column, text in self.special],
            "number": number,
        }


@dataclass(frozen=True, slots=True)
class History:
    """A transaction of the source."""

    xid: int
    commit_lsn: int
    changes: tuple[Change, ...]
    gid: str | None = None
    prepare_lsn: int = 0

    @property
    def id(self) -> str:
        return f"{self.xid}:{format_lsn(self.prepare_lsn or self.commit_lsn)}"

    @property
    def outcome(self) -> PreparedOutcome:
        assert self.gid is not None
        return PreparedOutcome(
            self.id, self.xid, self.gid, self.prepare_lsn, self.commit_lsn, _time(self.commit_lsn), f"g-{self.gid}", "b"
        )


@dataclass
class Topics:
    """The topics, written as a connector writes them, and what must come out."""

    schemas: dict[int, Any] = field(default_factory=lambda: {_COMMIT_ID: fixed("commit")})
    topics: dict[str, dict[str, list[Any]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    transactions: list[dict[str, Any]] = field(default_factory=list)
    _ends: dict[tuple[str, int], int] = field(default_factory=lambda: defaultdict(int))
    _sequence: int = 0
    _applied_lsn: int = 0

    def __post_init__(self) -> None:
        for shape in _TABLES:
            ids = self._ids(shape)
            self.schemas[ids[1]] = envelope_schema(shape, PREFIX)
            if not shape.keyless:
                self.schemas[ids[0]] = key_schema(shape, PREFIX)

    def write(self, transaction: History | None, changes: Iterable[Change], *, is_visible: bool = True) -> list[Range]:
        """Write rows, and return their ranges."""
        first: dict[tuple[str, int], list[int]] = {}
        counts: dict[tuple[str, int], int] = defaultdict(int)
        for number, change in enumerate(changes, 1):
            topic = topic_of(PREFIX, change.shape.schema, change.shape.table)
            key = None if change.key is None else self._encode(self._ids(change.shape)[0], _avro_row(change.key))
            value = self._encode(self._ids(change.shape)[1], _envelope(change, transaction, number))
            partitions = range(1 if change.shape.keyless else PARTITIONS)
            if change.op != "t":
                partitions = range(at := 0 if key is None else wire.partition_of(key, PARTITIONS), at + 1)
            for partition in partitions:
                for data in (value, None) if change.op == "d" and key is not None else (value,):
                    place = topic, partition
                    offset = self._ends[place]
                    self._ends[place] += 1
                    first.setdefault(place, [offset, offset])[1] = offset
                    counts[place] += 1
                    if is_visible:
                        self.topics[topic][str(partition)].append([offset, _text(key), _text(data)])
        return [Range(*place, begin, last, counts[place]) for place, (begin, last) in first.items()]

    def end(self, ranges: Iterable[Range]) -> None:
        """Write a Kafka transaction's markers: each takes an offset."""
        for each in ranges:
            self._ends[each.topic, each.partition] += 1

    def commit(
        self,
        kind: Literal["batch", "prepared", "backfill", "reload"],
        ranges: list[Range],
        transactions: Iterable[History] = (),
        *,
        backfilling: tuple[str, ...] = (),
        stale: tuple[str, ...] = (),
        skipped: tuple[SkippedRow, ...] = (),
    ) -> int:
        """Write a commit record, and the markers."""
        transactions = list(transactions)
        self._sequence += 1
        self._applied_lsn = max([self._applied_lsn, *(each.commit_lsn + 64 for each in transactions)])
        record = Commit(
            self._sequence,
            kind,
            self._applied_lsn,
            _time(self._applied_lsn),
            len(transactions),
            sum(each.count for each in ranges),
            tuple(each.outcome for each in transactions if each.gid),
            tuple(_join(ranges)),
            backfilling,
            _STREAM,
            stale,
            skipped,
        )
        topic = f"{PREFIX}.commits"
        offset = self._ends[topic, 0]
        self._ends[topic, 0] += 2
        self.topics[topic]["0"].append(
            [offset, _text(str(self._sequence).encode()), _text(record.to_bytes(_COMMIT_ID))]
        )
        self.end(record.ranges)
        return self._sequence

    def batch(self, *transactions: History, lacking: tuple[str, ...] = ()) -> None:
        """Write plain transactions, and parked ones at their outcomes, in one Kafka transaction."""
        ranges = [each for one in transactions for each in self.write(one, one.changes)]
        named = *lacking, "bank.public.other"
        skipped = tuple(SkippedRow(topic, lsn, b"\x02") for topic in named for lsn in (0x2320, 0x2340))
        sequence = self.commit("batch", ranges, transactions, stale=named, skipped=skipped)
        for each in transactions:
            self.expect("transaction", each, sequence, each.changes, lacking=lacking)

    def load(
        self, changes: tuple[Change, ...], *, is_last: bool, kind: Literal["backfill", "reload"] = "backfill"
    ) -> None:
        """Write a chunk of a load, or a reload's truncate."""
        backfilling = () if is_last else (topic_of(PREFIX, changes[0].shape.schema, changes[0].shape.table),)
        sequence = self.commit(kind, self.write(None, changes), backfilling=backfilling)
        self.expect("reload" if kind == "reload" else "load", None, sequence, changes, loading=backfilling)

    def expect(
        self,
        kind: str,
        transaction: History | None,
        sequence: int,
        changes: tuple[Change, ...],
        loading: tuple[str, ...] = (),
        lacking: tuple[str, ...] = (),
    ) -> None:
        of_one = [each.to_json(0 if transaction is None else number) for number, each in enumerate(changes, 1)]
        if transaction is None:  # a load has no order over the partitions: by partition, as the topics have it
            of_one.sort(key=lambda each: _partition_of(self, changes, each))
        self.transactions.append(
            {
                "kind": kind,
                "id": None if transaction is None else transaction.id,
                "position": format_lsn(self._applied_lsn if transaction is None else transaction.commit_lsn),
                "sequence": sequence,
                "gid": transaction.gid if transaction else None,
                "global_id": f"g-{transaction.gid}" if transaction and transaction.gid else None,
                "loading": list(loading),
                "stale": list(lacking),
                "skipped": list(lacking),
                "changes": of_one,
            }
        )

    def partition_of(self, shape: TableShape, key: Row | None) -> int:
        return 0 if key is None else wire.partition_of(self._encode(self._ids(shape)[0], _avro_row(key)), PARTITIONS)

    def _ids(self, shape: TableShape) -> tuple[int, int]:
        return 2 * shape.oid, 2 * shape.oid + 1

    def _encode(self, schema_id: int, value: Any) -> bytes:
        out = io.BytesIO()
        out.write(wire.header(schema_id))
        fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(json.dumps(self.schemas[schema_id]))), value)
        return out.getvalue()


def _partition_of(topics: Topics, changes: tuple[Change, ...], change: dict[str, Any]) -> int:
    return topics.partition_of(changes[0].shape, change["key"])


def _envelope(change: Change, transaction: History | None, number: int) -> dict[str, Any]:
    is_load = transaction is None
    at = transaction.commit_lsn if transaction else 0
    return {
        "before": _avro_row(change.before),
        "after": _avro_row(change.after),
        "source": {
            "version": "0.1.0",
            "connector": "postgresql",
            "name": PREFIX,
            "db": "bank",
            "schema": change.shape.schema,
            "table": change.shape.table,
            "ts_ms": _time(at) // 1000,
            "ts_us": _time(at),
            "txId": transaction.xid if transaction else None,
            "lsn": at - 1000 + number if transaction else 5,
            "gid": transaction.gid if transaction else None,
            "snapshot": "true" if is_load else "false",
            "commit_lsn": at if transaction and transaction.gid is None else None,
        },
        "op": change.op,
        "ts_ms": None,
        "transaction": transaction and {"id": transaction.id, "total_order": number, "data_collection_order": number},
        "unchanged": [avro_name(name) for name in change.unchanged],
        "special": [{"row": row, "column": avro_name(column), "text": text} for row, column, text in change.special],
    }


def _avro_row(row: Row | None) -> Row | None:
    return row and {avro_name(name): value for name, value in row.items()}


def _join(ranges: list[Range]) -> list[Range]:
    """One range for each partition."""
    joined: dict[tuple[str, int], Range] = {}
    for each in ranges:
        known = joined.get((each.topic, each.partition), each)
        count = each.count if known is each else known.count + each.count
        joined[each.topic, each.partition] = Range(each.topic, each.partition, known.first, each.last, count)
    return list(joined.values())


def _time(lsn: int) -> int:
    return _DAY_US + lsn


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _account(number: int, balance: int | None = None, owner: str | None = None) -> Row:
    return {"id": number, "balance": balance, "the owner": owner, "closed": None}


def _transfer(number: int, amount: int) -> Change:
    return Change(TRANSFER, "c", after={"no": number, "amount": amount})


def _update(number: int, balance: int) -> Change:
    return Change(ACCOUNT, "u", after=_account(number, balance, f"owner {number}"))


def vector() -> dict[str, Any]:
    """The topics and the transactions, as JSON."""
    topics = Topics()
    loaded = tuple(Change(ACCOUNT, "r", after=_account(each, 100, f"owner {each}")) for each in range(1, 9))
    topics.load(loaded[:5], is_last=False)
    topics.load(loaded[5:], is_last=True)
    topics.batch(
        History(10, 0x1000, (_update(1, 90), _update(2, 110), _transfer(1, 10))),
        History(12, 0x1100, (_update(3, 95), _transfer(2, 5), _update(1, 95))),
        History(11, 0x1200, (Change(NOTE, "c", after={"text": "first"}),)),
    )
    # In doubt: their rows are in Kafka before those of the next batch, in the same partitions.
    kept = History(20, 0x1600, (_update(4, 50), _transfer(3, 50), _update(5, 150), _update(6, 99)), "kept", 0x1300)
    early = topics.write(kept, kept.changes)
    undone = History(21, 0x1700, (_update(7, 1), _transfer(4, 99), _update(8, 199)), "undone", 0x1380)
    aborted = topics.write(undone, undone.changes, is_visible=False)
    topics.batch(
        History(22, 0x1400, (_update(4, 60), _update(7, 140))), History(23, 0x1500, (_transfer(5, 1), _update(5, 99)))
    )
    sequence = topics.commit("prepared", early, [kept])
    topics.expect("transaction", kept, sequence, kept.changes)
    topics.end(aborted)
    renamed = (
        Change(ACCOUNT, "d", before={"id": 8}),
        Change(ACCOUNT, "c", before={"id": 8}, after=_account(80, 100, None), unchanged=("the owner",)),
    )
    topics.batch(
        History(30, 0x2000, (_update(1, 1), *renamed)),
        History(24, 0x2100, (_update(2, 2), _transfer(6, 2)), "parked", 0x1900),
        History(
            31,
            0x2200,
            (
                Change(ACCOUNT, "d", before={"id": 2}),
                Change(
                    ACCOUNT,
                    "u",
                    after=_account(3, 3, "owner 3"),
                    special=(("after", "closed", "infinity"),),
                ),
                Change(NOTE, "d", before={"text": "first"}),
            ),
        ),
        History(32, 0x2300, (_transfer(7, 3), Change(TRANSFER, "t"), _transfer(8, 4), _update(3, 4))),
    )
    topics.load((Change(ACCOUNT, "t"),), is_last=False, kind="reload")
    topics.load(loaded[:2], is_last=True)
    topics.batch(History(40, 0x3000, (_update(1, 0),)), lacking=("bank.public.account",))
    return {
        "about": "Topics as a read_committed consumer gets them, and the transactions that they have, in order. A record is"
        " [offset, key, value], key and value in base64. Offsets that are missing are markers and aborted records.",
        "prefix": PREFIX,
        "schemas": {str(schema_id): schema for schema_id, schema in topics.schemas.items()},
        "topics": topics.topics,
        "transactions": topics.transactions,
    }


def main() -> None:
    found = vector()
    lines = ",\n".join(f" {json.dumps(name)}: {_render(value)}" for name, value in found.items())
    sys.stdout.write(f"{{\n{lines}\n}}\n")


def _render(value: Any) -> str:
    """One line for each record and transaction, so that a change of the history is read as such."""
    match value:
        case list():
            return "[\n" + ",\n".join(f"  {json.dumps(each)}" for each in value) + "\n ]"
        case dict():
            return (
                "{\n" + ",\n".join(f"  {json.dumps(name)}: {json.dumps(each)}" for name, each in value.items()) + "\n }"
            )
    return json.dumps(value)


if __name__ == "__main__":
    main()
