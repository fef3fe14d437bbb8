"""The fixed records: a value comes back, and an older or newer writer's is read."""

from __future__ import annotations

from typing import Any

import pytest

from twofold_avro import wire
from twofold_avro.records import (
    BranchInDoubt,
    Commit,
    Frontier,
    Message,
    MessageBody,
    Pin,
    Prepared,
    PreparedOutcome,
    Progress,
    Range,
    Record,
    Seen,
    Source,
    Transaction,
)
from twofold_avro.schemas import fixed

OUTCOME = PreparedOutcome("7:100", 7, "gid", 100, 200, 1_700_000_000_123_456, "global", None)
SOURCE = Source("0.1", "shop", "db", 1, 1_000, 2**62, gid="g", txId=7, global_id="global", branch="branch")
COMMITTED = Source("0.1", "shop", "db", 1, 1_000, 2**62, txId=7, commit_lsn=2**62 + 100)
RECORDS: list[Record] = [
    Commit(
        1,
        "prepared",
        2**62,
        1_700_000_000_123_456,
        1,
        2,
        (OUTCOME,),
        (Range("t", 3, 10, 12, 2),),
        ("a", "b"),
        "s",
        ("c",),
    ),
    Commit(1, "batch", 0, -1, 0, 0),
    Progress(1, 2, "18446744073709551615", 3, "db", "slot", 8, 1_700_000_000_123_456, "s"),
    Pin("public", "t", 6, '{"a":1}', 3, 4, "running", b"\0\xff"),
    Pin("public", "t", 1, topic_id="io8n/JgLScaXilkz62s1fw"),
    Prepared(7, "gid", 100, 1_700_000_000_123_456, "open", 5, ("a",), "global", "branch", 9),
    Frontier(
        "bank", 7, 2**62, (Seen("east", 3, "a stream"), Seen("west", 0, "")), (BranchInDoubt("global", "gid", 7),), 5
    ),
    Frontier("bank", 0, 0, (), (), 0),
    Message(SOURCE, MessageBody("p", b"\0\1"), Transaction("7:1", 1, 1), 5),
    Message(Source("0.1", "shop", "db", 1, 1_000, 5), MessageBody("", b"")),
    Message(COMMITTED, MessageBody("", b"")),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda r: type(r).__name__)
def test_a_record_comes_back(record: Record) -> None:
    message = record.to_bytes(42)
    assert wire.unframe(message)[0] == 42
    assert type(record).from_bytes(message) == record
    assert type(record).from_bytes(message, fixed(record.schema_name)) == record


def test_a_writer_without_a_field_gives_its_default() -> None:
    older: dict[str, Any] = fixed("pin")
    older["fields"] = [f for f in older["fields"] if f["name"] != "key_schema_id"]
    message = Pin("public", "t", 6, "k", None, 4).to_bytes(1)
    schema_id, body = wire.unframe(message)
    # The null of key_schema_id is one byte between those of the key's schema and of the value's
    # schema id.
    at = body.index(b"k") + 1
    assert Pin.from_bytes(wire.frame(schema_id, body[:at] + body[at + 1 :]), older) == Pin(
        "public", "t", 6, "k", None, 4
    )
