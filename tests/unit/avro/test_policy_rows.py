"""The data policy in rows, keys and schemas: what replaces values, and that they are gone."""

from __future__ import annotations

import hashlib
import hmac
import json
import struct
from dataclasses import replace

import pytest

from helpers.avro.capture import HASH_KEY, Bench
from twofold_avro.errors import MalformedRow
from twofold_avro.hashing import KeyedHash
from twofold_avro.schemas import envelope_schema, key_schema, newly_hidden, policy_of
from twofold_avro.shapes import ColumnShape, PolicyAction, TableShape, TypeShape
from twofold_avro.types import copy_item

TEXT = TypeShape(25, "pg_catalog", "text")
CANARY = b"canary@example.org"


def shape(key_policy: PolicyAction | None = None) -> TableShape:
    names: list[tuple[str, PolicyAction | None]] = [
        ("kept", None),
        ("dropped", "drop"),
        ("nulled", "null"),
        ("redacted", "redact"),
        ("hashed", "hash"),
    ]
    key = ColumnShape("id", TEXT, in_key=True, in_identity=True, policy=key_policy)
    return TableShape(4711, "public", "t", (key, *(ColumnShape(n, TEXT, policy=p) for n, p in names)))


def tuple_of(values: list[bytes | None], absent: bytes = b"n") -> bytes:
    items = (absent if v is None else b"t" + struct.pack(">I", len(v)) + v for v in values)
    return struct.pack(">H", len(values)) + b"".join(items)


def message(kind: bytes, tuples: bytes) -> bytes:
    return kind + struct.pack(">I", 4711) + tuples


def hashed(value: bytes) -> str:
    return hmac.digest(HASH_KEY, value, "sha256").hex()


def test_policy_leaves_nothing_of_a_value() -> None:
    bench = Bench(shape())
    row = tuple_of([b"1", b"here", CANARY, CANARY, CANARY, CANARY])
    gone = message(b"D", b"O" + row)
    moved = message(b"U", b"O" + row + b"N" + tuple_of([b"2", b"here", CANARY, CANARY, CANARY, CANARY]))
    messages = [m for _, m in bench.stream([message(b"I", b"N" + row), moved, gone])]
    assert not [m for m in messages if CANARY in (m["key"] or b"") + (m["value"] or b"")]
    values = [bench.value(m) for m in messages if m["value"] is not None]
    expected = {"nulled": None, "redacted": "[redacted]", "hashed": hashed(CANARY), "kept": "here"}
    for value in values:
        for found in filter(None, (value["before"], value["after"])):
            assert {name: text for name, text in found.items() if name != "id"} == expected


def test_policy_keeps_null_and_what_was_not_sent() -> None:
    bench = Bench(shape())
    [(_, of_nulls)] = bench.stream([message(b"I", b"N" + tuple_of([b"1", None, None, None, None, None]))])
    after = bench.value(of_nulls)["after"]
    assert after == {"id": "1", "kept": None, "nulled": None, "redacted": None, "hashed": None}
    [(_, of_toast)] = bench.stream([message(b"U", b"N" + tuple_of([b"1", None, None, None, None, None], b"u"))])
    value = bench.value(of_toast)
    assert value["unchanged"] == ["kept", "hashed"]
    assert value["after"] == {**after, "redacted": "[redacted]"}


def test_policy_hashes_a_key() -> None:
    bench = Bench(shape("hash"))
    [(_, made)] = bench.stream([message(b"I", b"N" + tuple_of([CANARY, None, None, None, None, None]))])
    assert CANARY not in (made["key"] or b"") + (made["value"] or b"")
    assert bench.key(made) == {"id": hashed(CANARY)}
    assert bench.value(made)["after"]["id"] == hashed(CANARY)


def test_policy_is_a_part_of_the_schema() -> None:
    """So a change of the policy is a change of the schema, and of the key's."""
    plain = shape()
    assert policy_of(envelope_schema(plain, "p")) == plain.policy
    assert '"name": "dropped"' not in json.dumps(envelope_schema(plain, "p"))
    nothing = replace(plain, columns=tuple(replace(c, policy=None) for c in plain.columns))
    assert key_schema(plain, "p") == key_schema(nothing, "p") != key_schema(shape("hash"), "p")
    assert "twofold.policy" not in json.dumps(envelope_schema(nothing, "p"))


def test_policy_that_is_new_names_the_columns_that_rows_have_shown() -> None:
    hidden = shape()
    shown = replace(hidden, columns=tuple(replace(c, policy=None) for c in hidden.columns))
    without = replace(shown, columns=shown.columns[:2])
    old, new = envelope_schema(shown, "p"), envelope_schema(hidden, "p")
    assert newly_hidden(old, new) == {"dropped": "drop", "nulled": "null", "redacted": "redact", "hashed": "hash"}
    assert newly_hidden(new, new) == newly_hidden(new, old) == newly_hidden(envelope_schema(without, "p"), new) == {}


def test_policy_reads_no_hidden_value_in_a_copy() -> None:
    items = {c.name: copy_item(c) for c in shape().columns}
    assert items["dropped"] == items["nulled"] == "NULL"
    assert items["redacted"] == "CASE WHEN \"redacted\" IS DISTINCT FROM NULL THEN '' END"
    tuples = struct.pack(">H", 6) + b"".join(
        struct.pack(">i", -1) if v is None else struct.pack(">i", len(v)) + v
        for v in (b"1", b"here", None, None, b"", CANARY)
    )
    bench = Bench(shape())
    [(_, made)] = bench.copy([tuples])
    assert CANARY not in (made["value"] or b"")
    assert bench.value(made)["after"] == {
        "id": "1",
        "kept": "here",
        "nulled": None,
        "redacted": "[redacted]",
        "hashed": hashed(CANARY),
    }


def test_policy_does_not_hash_a_binary_form() -> None:
    """The same value would have another hash than in text."""
    binary = struct.pack(">H", 6) + b"t\0\0\0\x011" + b"nnnn" + b"b" + struct.pack(">I", 8) + struct.pack(">q", 7)
    with pytest.raises(MalformedRow, match="cannot be hashed"):
        Bench(shape()).stream([message(b"I", b"N" + binary)])


@pytest.mark.parametrize("size", [32, 64, 65, 200])
def test_policy_hash_is_hmac(size: int) -> None:
    key = hashlib.sha512(b"key").digest() * 4
    made = KeyedHash(key[:size])
    for value in (b"", b"x", b"y" * 1000):
        assert made.encode(value)[2:].decode() == hmac.digest(key[:size], value, "sha256").hex()


@pytest.mark.parametrize("count", [pytest.param(20_000, marks=pytest.mark.slow), 2_000])
def test_policy_hash_of_a_value_that_comes_again(count: int) -> None:
    """Values in an order that brings some back at once and all later, in the long form more than
    are remembered; long ones, of which none is, and one that differs in its last byte alone.
    """
    values = [b"%d" % (number * 7919 % count) for number in range(count) for _ in range(1 + (number % 10 == 0))]
    values += [b"", b"", b"y" * 300, b"y" * 299 + b"z", b"y" * 300, b"y" * 256, b"y" * 255 + b"z", b"y" * 256]
    values += values[:2_000]
    bench = Bench(shape())
    rows = (message(b"I", b"N" + tuple_of([b"1", None, None, None, None, value])) for value in values)
    found = [bench.value(made)["after"]["hashed"] for _, made in bench.stream(list(rows))]
    assert found == [hashed(value) for value in values]


def test_policy_refuses_a_short_key() -> None:
    with pytest.raises(ValueError, match="31 bytes"):
        KeyedHash(b"k" * 31)
