"""The transcoder on bytes made by hand: what no server sends is told with its place, and never read
past.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from helpers.avro.capture import (
    KEY_ID,
    LSN,
    PARTITIONS,
    TS_MS,
    TS_US,
    VALUE_ID,
    XID,
    Bench,
    Message,
    append,
    uncompiled,
)
from twofold_avro.errors import MalformedRow
from twofold_avro.shapes import ColumnShape, TableShape, TypeShape
from twofold_avro.text import numeric_text
from twofold_avro.types import How

OID = 4711


def type_(name: str, typmod: int = -1) -> TypeShape:
    return TypeShape(0, "pg_catalog", name, typmod=typmod)


def array(name: str) -> TypeShape:
    return TypeShape(0, "pg_catalog", f"_{name}", "array", element=type_(name))


VALUES: dict[str, tuple[TypeShape, bytes, bytes | None]] = {
    "id": (type_("int8"), b"-9223372036854775808", struct.pack(">q", -(2**63))),
    "i2": (type_("int2"), b"-7", struct.pack(">h", -7)),
    "ok": (type_("bool"), b"t", b"\1"),
    "f4": (type_("float4"), b"1.5", struct.pack(">f", 1.5)),
    "f8": (type_("float8"), b"NaN", b"\xff\xf8\0\0\0\0\0\0"),
    "n": (type_("numeric"), b"-10000.50", struct.pack(">HhHHHHH", 3, 1, 0x4000, 2, 1, 0, 5000)),
    "n2": (type_("numeric", (12 << 16 | 2) + 4), b"-1.28", struct.pack(">HhHHHH", 2, 0, 0x4000, 2, 1, 2800)),
    "d": (type_("date"), b"1969-12-31", struct.pack(">i", -10958)),
    "tm": (type_("time"), b"00:00:01.5", struct.pack(">q", 1_500_000)),
    "ts": (type_("timestamp"), b"2000-01-01 00:00:00.000001", struct.pack(">q", 1)),
    "tz": (type_("timestamptz"), b"1999-12-31 23:59:59.999999+00", struct.pack(">q", -1)),
    "u": (type_("uuid"), b"00112233-4455-6677-8899-aabbccddeeff", bytes.fromhex("00112233445566778899aabbccddeeff")),
    "j": (type_("jsonb"), b'{"a": 1}', b'\1{"a": 1}'),
    "b": (type_("bytea"), b"\\x00ff", b"\0\xff"),
    "o": (type_("oid"), b"4294967295", b"\xff\xff\xff\xff"),
    "c": (type_("char"), b"\xc3", b"\xc3"),
    "t": (type_("text"), "ä".encode(), "ä".encode()),
    "a": (array("int4"), b'{1,NULL,"3"}', None),
}
SHAPE = TableShape(
    OID, "public", "t", tuple(ColumnShape(n, t, n == "id", n == "id") for n, (t, _, _) in VALUES.items())
)


def tuple_of(kind: bytes, values: list[bytes | None]) -> bytes:
    items = (b"n" if v is None else kind + struct.pack(">I", len(v)) + v for v in values)
    return struct.pack(">H", len(values)) + b"".join(items)


def message(kind: bytes, tuples: bytes) -> bytes:
    return kind + struct.pack(">I", OID) + tuples


AS_TEXT: list[bytes | None] = [text for _, text, _ in VALUES.values()]
AS_BINARY = [binary for _, _, binary in VALUES.values()]
INSERT = message(b"I", b"N" + tuple_of(b"t", AS_TEXT))
UPDATE = message(b"U", b"O" + tuple_of(b"t", AS_TEXT) + b"N" + tuple_of(b"t", AS_TEXT))
IN_BINARY = message(b"I", b"N" + tuple_of(b"b", AS_BINARY))


def outcome(module: Any, plan: Any, payload: bytes) -> Any:
    lists: list[list[Message]] = [[] for _ in range(PARTITIONS)]
    header = module.TransactionHeader(1, 2, "3")
    try:
        append(plan, payload, LSN, header, lists)
    except MalformedRow as error:
        assert not any(lists), "a malformed row was appended"
        return str(error)
    return lists


def test_text_and_binary_are_the_same_bytes() -> None:
    bench = Bench(SHAPE)
    [(_, from_text)] = bench.stream([message(b"I", b"N" + tuple_of(b"t", [*AS_TEXT[:-1], None]))])
    [(_, from_binary)] = bench.stream([IN_BINARY])
    assert from_text == from_binary
    after = bench.value(from_text)["after"]
    assert after["n"] == "-10000.50"
    assert after["c"] == "\\303"


def test_the_keys_of_a_row_are_those_of_its_records_and_never_read_past_its_end() -> None:
    other = [b"7", *AS_TEXT[1:]]
    rekey = message(b"U", b"O" + tuple_of(b"t", AS_TEXT) + b"N" + tuple_of(b"t", other))
    delete = message(b"D", b"K" + tuple_of(b"t", [AS_TEXT[0], *[None] * (len(AS_TEXT) - 1)]))
    for module, plan in Bench(SHAPE).plans():
        for payload in (INSERT, UPDATE, IN_BINARY, rekey, delete):
            lists = outcome(module, plan, payload)
            found = plan.keys_of(payload, 1)
            assert {*found} == {record["key"] for records in lists for record in records}
            for size in range(1, len(payload)):
                with suppress(ValueError):
                    assert {*plan.keys_of(payload[:size], 1)} <= {*found}
        (old, new) = plan.keys_of(rekey, 1)
        assert (old,) == plan.keys_of(INSERT, 1)
        assert (new,) == plan.keys_of(message(b"I", b"N" + tuple_of(b"t", other)), 1)
        with pytest.raises(ValueError, match="another relation"):
            plan.keys_of(INSERT, 2)


@pytest.mark.parametrize("payload", [INSERT, UPDATE, IN_BINARY], ids=["insert", "update", "binary"])
def test_a_message_cut_anywhere_is_malformed(payload: bytes) -> None:
    for module, plan in Bench(SHAPE).plans():
        assert not isinstance(outcome(module, plan, payload), str)
        for size in range(1, len(payload)):
            assert isinstance(outcome(module, plan, payload[:size]), str), size
        assert "bytes too many" in outcome(module, plan, payload + b"\0")


@settings(max_examples=400, deadline=None)
@given(st.sampled_from([INSERT, UPDATE, IN_BINARY]), st.integers(1, 2000), st.binary(min_size=1, max_size=4))
@example(INSERT, 6, b"\xff\xff")
@example(INSERT, 8, b"\xff\xff\xff\xff")
@example(INSERT, 51, b".")
@example(INSERT, 59, b".\0")
def test_bytes_overwritten_anywhere_are_a_row_or_malformed(payload: bytes, at: int, new: bytes) -> None:
    at = at % len(payload) or 1
    broken = payload[:at] + new + payload[at + len(new) :]
    outcomes = [outcome(module, plan, broken) for module, plan in Bench(SHAPE).plans()]
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize(
    ("column", "value", "what"),
    [
        ("tz", b"2024-01-01 00:00:00+02", "TimeZone"),
        ("tz", b"Mon Jan 01 00:00:00 2024 UTC", "DateStyle"),
        ("d", b"01/02/2024", "DateStyle"),
        ("b", b"\\000", "bytea_output"),
        ("n2", b"1.5", "1 decimals"),
        ("n2", b"", "decimals"),
        ("id", b"9223372036854775808", "64 bits"),
        ("id", b"-9223372036854775809", "64 bits"),
        ("i2", b"", "not a number"),
        ("f4", b"1e39", "float"),
        ("ok", b"yes", "boolean"),
        ("u", b"short", "uuid"),
        ("a", b'{"1', "brace"),
    ],
)
def test_a_value_that_is_not_what_the_relation_says_names_its_column(column: str, value: bytes, what: str) -> None:
    values = [value if name == column else text for name, (_, text, _) in VALUES.items()]
    payload = message(b"I", b"N" + tuple_of(b"t", list(values)))
    for module, plan in Bench(SHAPE).plans():
        found = outcome(module, plan, payload)
        assert f"column {column} of public.t" in found
        assert what in found


def test_a_binary_value_without_a_text_says_how_to_stream() -> None:
    payload = message(b"I", b"N" + tuple_of(b"b", [*AS_BINARY[:-1], b"\0\0\0\1"]))
    for module, plan in Bench(SHAPE).plans():
        assert "without the option binary" in outcome(module, plan, payload)


def test_a_plan_goes_on_after_a_malformed_row() -> None:
    special = message(
        b"I",
        b"N" + tuple_of(b"t", [b"infinity" if n == "d" else b"x" if n == "a" else v[1] for n, v in VALUES.items()]),
    )
    for (module, plan), (_, fresh) in zip(Bench(SHAPE).plans(), Bench(SHAPE).plans(), strict=True):
        assert "brace" in outcome(module, plan, special)
        assert outcome(module, plan, INSERT) == outcome(module, fresh, INSERT)


class Keepalive:
    """Anything that is no row."""


OTHER = INSERT[:1] + struct.pack(">I", OID + 1) + INSERT[5:]
COMMIT = b"C\0" + bytes(24)


@pytest.mark.parametrize(
    ("received", "behind"),
    [
        ([INSERT, UPDATE, INSERT], 3),
        ([INSERT], 1),
        ([INSERT, Keepalive(), INSERT], 1),
        ([INSERT, UPDATE, COMMIT, INSERT], 2),
        ([INSERT, OTHER], 1),
        ([INSERT, INSERT[:4]], 1),
        ([INSERT, b"B" + INSERT[1:]], 1),
    ],
)
def test_a_run_of_rows_is_what_one_after_the_other_is_and_ends_before_what_is_none(
    received: list[Any], behind: int
) -> None:
    """Those in a stream carry an xid before the oid, which must be the same as well."""
    in_stream = [b"" if isinstance(item, Keepalive) else item[:1] + b"\0\0\0\7" + item[1:] for item in received]
    for module, plan in Bench(SHAPE).plans():
        wanted: list[list[Message]] = [[] for _ in range(PARTITIONS)]
        header = module.TransactionHeader(1, 2, "3")
        for n, payload in enumerate(received[:behind]):
            append(plan, payload, LSN + n, header, wanted)
        for offset, payloads in ((1, received), (5, in_stream)):
            items = [item if isinstance(item, Keepalive) else (LSN + n, item) for n, item in enumerate(payloads)]
            lists: list[list[Message]] = [[] for _ in range(PARTITIONS)]
            place = plan.append_run(items, 0, offset, module.TransactionHeader(1, 2, "3"), TS_MS, lists, 1 << 30)
            assert place == (behind, sum(map(len, payloads[:behind])))
            assert lists == wanted
        another = [(LSN, in_stream[0]), (LSN, INSERT[:1] + b"\0\0\0\x08" + INSERT[1:])]
        assert plan.append_run(another, 0, 5, header, TS_MS, lists, 1 << 30)[0] == 1


def test_a_run_ends_when_it_is_large_and_at_a_malformed_row() -> None:
    rows = [(LSN, INSERT)] * 5
    for module, plan in Bench(SHAPE).plans():
        lists: list[list[Message]] = [[] for _ in range(PARTITIONS)]
        header = module.TransactionHeader(1, 2, "3")
        assert plan.append_run(rows, 1, 1, header, TS_MS, lists, len(INSERT)) == (3, 2 * len(INSERT))
        assert plan.append_run(rows, 4, 1, header, TS_MS, lists, -1) == (5, len(INSERT))
        with pytest.raises(MalformedRow):
            plan.append_run([(LSN, INSERT), (LSN, INSERT[:-1])], 0, 1, header, TS_MS, lists, 1 << 30)
        assert sum(map(len, lists)) == 4


def test_a_long_key_with_many_numbers_behind_a_text_has_room() -> None:
    """Uncompiled, what is written past the buffer is an error; compiled it is none, so that one
    comes second.
    """
    numbers, largest = 31, str(2**63 - 1).encode()
    columns = [("t", type_("text")), *((f"n{n}", type_("int8")) for n in range(numbers))]
    bench = Bench(TableShape(OID, "public", "t", tuple(ColumnShape(name, t, True, True) for name, t in columns)))
    # A new plan for each: the buffer begins with 4096 bytes, and stays as large as it once was.
    for size in range(3700, 4100, 50):
        row = message(b"I", b"N" + tuple_of(b"t", [b"a" * size, *[largest] * numbers]))
        uncompiled_first = sorted(bench.plans(), key=lambda found: found[0].is_compiled())
        lists = [outcome(module, plan, row) for module, plan in uncompiled_first]
        assert lists[0] == lists[1]
        [record] = [record for records in lists[0] for record in records]
        assert bench.key(record) == {"t": "a" * size, **{f"n{n}": 2**63 - 1 for n in range(numbers)}}


def test_another_relations_row_is_refused() -> None:
    payload = INSERT[:1] + struct.pack(">I", OID + 1) + INSERT[5:]
    for module, plan in Bench(SHAPE).plans():
        assert "another relation" in outcome(module, plan, payload)


@pytest.mark.parametrize("ids", [(KEY_ID, VALUE_ID), (0x7F00_0001, 0x7F00_0001)], ids=["registered", "provisional"])
def test_rows_of_a_transaction_in_progress_become_what_they_would_have_been(ids: tuple[int, int]) -> None:
    old = b"O" + tuple_of(b"t", AS_TEXT)
    payloads = [INSERT, message(b"D", old), UPDATE, IN_BINARY]
    for (module, plan), (_, plan_before) in zip(Bench(SHAPE).plans(), Bench(SHAPE).plans(*ids), strict=True):
        expected: list[list[Message]] = [[] for _ in range(PARTITIONS)]
        header = module.TransactionHeader(XID, TS_US, f"{XID}:0/1", "a gid", "a global id", "branch", LSN + 8)
        for payload in payloads:
            append(plan, payload, LSN, header, expected)
        plan.truncate(LSN, header, TS_MS, expected)
        later, records = module.TransactionHeader.later(), list[Message]()
        for payload in payloads:
            append(plan_before, payload, LSN, later, [records] * PARTITIONS)
        truncates: list[Message] = []
        plan_before.truncate(LSN, later, TS_MS, [truncates] * PARTITIONS)
        records.append(truncates[0])
        lists: list[list[Message]] = [[] for _ in range(PARTITIONS)]
        header = module.TransactionHeader(XID, TS_US, f"{XID}:0/1", "a gid", "a global id", "branch", LSN + 8)
        packer = module.Packer()
        header.finish(packer.pack(records, 0, 2), OID, (KEY_ID, VALUE_ID), lists)
        header.finish(packer.pack(records, 2, len(records)), OID, (KEY_ID, VALUE_ID), lists)
        assert lists == expected


def test_the_switchs_numbers_are_those_of_types() -> None:
    source = uncompiled("transcode")
    assert {how.name: getattr(source, how.name) for how in How} == {how.name: int(how) for how in How}


@pytest.mark.parametrize("placeholders", [False, True])
def test_what_was_not_sent_is_null_or_debeziums_placeholder(placeholders: bool) -> None:
    more = {"texts": array("text"), "bytes": array("bytea"), "times": array("timestamp"), "x": type_("xml")}
    columns = tuple(ColumnShape(n, t) for n, t in more.items())
    bench = Bench(TableShape(OID, "public", "t", SHAPE.columns + columns), placeholders=placeholders)
    sent = struct.pack(">H", len(SHAPE.columns) + len(more)) + b"t" + struct.pack(">I", 1) + b"7"
    names = [column.name for column in bench.shape.columns[1:]]
    [(_, update)] = bench.stream([message(b"U", b"N" + sent + b"u" * len(names))])
    value = bench.value(update)
    word = "__debezium_unavailable_value"
    known = {
        **dict.fromkeys("njtx", word),
        "b": word.encode(),
        "a": [*word.encode()],
        "texts": [word],
        "bytes": [word.encode()],
    }
    assert value["after"] == {**dict.fromkeys(names), **(known if placeholders else {}), "id": 7}
    assert value["unchanged"] == names


def copied_tuple(values: list[bytes | None]) -> bytes:
    items = (b"\xff\xff\xff\xff" if value is None else struct.pack(">I", len(value)) + value for value in values)
    return struct.pack(">H", len(values)) + b"".join(items)


COPIED = copied_tuple(AS_BINARY)


def test_a_copied_row_is_the_streamed_one_and_a_run_is_its_rows() -> None:
    bench = Bench(SHAPE)
    with_array = copied_tuple([*AS_BINARY[:-1], b"{}"])
    messages = bench.copy([COPIED, with_array, COPIED])
    [(_, streamed)] = bench.stream([IN_BINARY])
    wanted = str(bench.value(streamed)["after"])  # a NaN is not itself
    assert [str(bench.value(message)["after"]) for _, message in messages[::2]] == [wanted] * 2
    assert bench.value(messages[1][1])["after"]["a"] == []
    assert bench.copy([]) == []


def test_a_run_ends_at_a_malformed_tuple_and_says_where_in_it() -> None:
    for module, plan in Bench(SHAPE).plans():
        for size in range(1, len(COPIED)):
            packer = module.PartitionPacker(PARTITIONS)
            header = module.TransactionHeader(None, TS_US, None)
            with pytest.raises(MalformedRow) as found:
                plan.append_copy(COPIED + COPIED[:size], LSN, header, TS_MS, packer)
            assert found.value.offset <= size, "counted from the tuple's beginning"
            assert sum(map(len, packer.take_rows())) > 0, "the first one is packed"
        with pytest.raises(MalformedRow, match="not a COPY tuple of"):
            plan.append_copy(COPIED + b"\xff\xff", LSN, header, TS_MS, packer)


NUMERICS = st.builds(
    lambda digits, weight, sign, scale: struct.pack(f">HhHH{len(digits)}H", len(digits), weight, sign, scale, *digits),
    st.lists(st.integers(0, 9999), max_size=6),
    st.integers(-4, 6),
    st.sampled_from([0, 0x4000]),
    st.integers(0, 20),
)


@settings(max_examples=150, deadline=None)
@given(NUMERICS)
@example(struct.pack(">HhHH", 0, 0, 0, 0))
@example(struct.pack(">HhHHH", 1, -1, 0x4000, 1, 1000))
@example(struct.pack(">HhHHH", 1, 0, 0, 3, 9999))
@example(struct.pack(">HhHHHHHHH", 5, 3, 0x4000, 2, 9999, 9999, 9999, 9999, 9900))
@example(struct.pack(">HhHH", 0, 0, 0xC000, 0))
def test_a_binary_numeric_is_its_text(data: bytes) -> None:
    """Of every size and scale, as a string, as a key, and as a decimal where it is one."""
    text = numeric_text(data)
    scale = int.from_bytes(data[6:8], "big")
    decimal = type_("numeric", (38 << 16 | scale) + 4)
    for in_key in (True, False):
        columns = ColumnShape("d", decimal, in_key, in_key), ColumnShape("n", type_("numeric"))
        bench = Bench(TableShape(OID, "public", "t", columns))
        [(_, binary)] = bench.copy([copied_tuple([data, data])])
        row = message(b"I", b"N" + tuple_of(b"t", [text.encode()] * 2))
        [(_, streamed)] = bench.stream([row])
        after = bench.value(binary)["after"]
        assert after == bench.value(streamed)["after"]
        assert after["n"] == text
        assert binary["key"] == streamed["key"]


@settings(max_examples=100, deadline=None)
@given(st.binary(min_size=8, max_size=8))
@example(b"\x7f\xf0\0\0\0\0\0\1")
@example(b"\xff\xf0\0\0\0\0\0\0")
@example(b"\x7f\x80\0\1\x7f\x80\0\0")
def test_a_binary_float_keeps_its_bits_and_has_one_nan(data: bytes) -> None:
    columns = tuple(ColumnShape(name, type_(name)) for name in ("float8", "float4"))
    bench = Bench(TableShape(OID, "public", "t", columns))
    [(_, copied)] = bench.copy([copied_tuple([data, data[:4]])])
    value = copied["value"]
    assert value is not None
    wide, narrow = struct.unpack(">d", data)[0], struct.unpack(">f", data[:4])[0]
    nan = float("nan")
    wanted = b"\2" + struct.pack("<d", nan if wide != wide else wide)
    wanted += b"\2" + (struct.pack("<f", nan) if narrow != narrow else data[3::-1])
    assert wanted in value


def test_a_numeric_digit_that_is_none_is_malformed() -> None:
    for how in ("n", "n2"):
        for scale in (2, 20):
            broken = struct.pack(">HhHHH", 1, 0, 0, scale, 10_000)
            values = [broken if name == how else value for name, value in zip(VALUES, AS_BINARY, strict=True)]
            for module, plan in Bench(SHAPE).plans():
                found = outcome(module, plan, message(b"I", b"N" + tuple_of(b"b", values)))
                assert "below 10,000" in found
                assert f"column {how} of" in found


def test_a_malformed_number_is_told_without_its_value() -> None:
    """A server's answer in another form may be a row's value, which no error shows."""
    texts: list[bytes | None] = [b"4711canary" if name == "f8" else text for name, (_, text, _) in VALUES.items()]
    bench = Bench(SHAPE)
    with pytest.raises(MalformedRow, match=r"column f8 of .*: not a float") as told:
        bench.stream([message(b"I", b"N" + tuple_of(b"t", texts))])
    assert "canary" not in str(told.value)
