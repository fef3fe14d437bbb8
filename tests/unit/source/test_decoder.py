"""The decoder against messages written by an independent encoder, and against everything that is
almost a message.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twofold.errors import MalformedMessage
from twofold.source import messages as m
from twofold.source.decoder import decode, insert_texts, row_place, row_relation
from twofold_common.positions import Lsn, PreparedIdentity
from unit.source.pgoutput_bytes import EPOCH_US, encode

u32 = st.integers(0, 2**32 - 1)
lsns = st.integers(0, 2**64 - 1).map(Lsn)
times = st.integers(EPOCH_US - 2**63, EPOCH_US + 2**63 - 1)
names = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
schemas = names.filter(bool)
identities = st.builds(PreparedIdentity, u32, names)
values = st.one_of(
    st.none(),
    st.just(m.Unchanged.TOAST),
    st.builds(m.Text, st.binary(max_size=20)),
    st.builds(m.Binary, st.binary(max_size=20)),
)
rows = st.lists(values, max_size=6).map(tuple)

plain = st.one_of(
    st.builds(m.Begin, lsns, times, u32),
    st.builds(m.Commit, lsns, lsns, times),
    st.builds(m.BeginPrepare, lsns, lsns, times, identities),
    st.builds(m.Prepare, lsns, lsns, times, identities),
    st.builds(m.StreamPrepare, lsns, lsns, times, identities),
    st.builds(m.CommitPrepared, lsns, lsns, times, identities),
    st.builds(m.RollbackPrepared, lsns, lsns, times, times, identities),
    st.builds(m.StreamStart, u32, st.booleans()),
    st.builds(m.StreamStop),
    st.builds(m.StreamCommit, u32, lsns, lsns, times),
    st.builds(m.StreamAbort, u32, u32),
    st.builds(m.StreamAbort, u32, u32, lsns, times),
    st.builds(m.Origin, lsns, names),
)
column = st.builds(m.RelationColumn, names, u32, st.integers(-(2**31), 2**31 - 1), st.booleans())
replica_identities = st.sampled_from(["default", "index", "full", "nothing"])


def changes(xid: st.SearchStrategy[int | None]) -> st.SearchStrategy[m.Insert | m.Update | m.Delete]:
    return st.one_of(
        st.builds(m.Insert, u32, rows, xid),
        st.builds(m.Update, u32, st.none() | rows, st.none(), rows, xid),
        st.builds(m.Update, u32, st.none(), rows, rows, xid),
        st.builds(m.Delete, u32, rows, st.none(), xid),
        st.builds(m.Delete, u32, st.none(), rows, xid),
    )


def streamable(xid: st.SearchStrategy[int | None]) -> st.SearchStrategy[m.Message]:
    return st.one_of(
        st.builds(m.Relation, u32, schemas, names, replica_identities, st.lists(column, max_size=5).map(tuple), xid),
        st.builds(m.Type, u32, schemas, names, xid),
        changes(xid),
        st.builds(m.Truncate, st.lists(u32, max_size=5).map(tuple), st.booleans(), st.booleans(), xid),
        st.builds(m.LogicalMessage, st.booleans(), lsns, names, st.binary(max_size=30), xid),
    )


outside = st.tuples(st.just(False), st.one_of(plain, streamable(st.none())))
inside = st.tuples(st.just(True), st.one_of(plain, streamable(u32)))
any_message = st.one_of(outside, inside)


def decoded_or_refused(payload: bytes, in_stream: bool) -> m.Message | MalformedMessage:
    """Anything else that decode raises fails the test."""
    try:
        return decode(payload, in_stream=in_stream)
    except MalformedMessage as error:
        return error


@given(any_message)
def test_every_message_comes_back_as_it_was_written(case: tuple[bool, m.Message]) -> None:
    in_stream, message = case
    assert decode(encode(message), in_stream=in_stream) == message


@given(any_message, st.data())
def test_a_message_that_is_cut_short_is_malformed(case: tuple[bool, m.Message], data: st.DataObject) -> None:
    in_stream, message = case
    payload = encode(message)
    size = data.draw(st.integers(0, len(payload) - 1))
    if isinstance(message, m.StreamAbort) and size == 9:
        return  # cut exactly there it is the shorter form of the same message
    with pytest.raises(MalformedMessage) as error:
        decode(payload[:size], in_stream=in_stream)
    assert 0 <= error.value.offset <= size


@given(any_message, st.binary(min_size=1, max_size=3))
def test_a_message_with_bytes_left_over_is_malformed(case: tuple[bool, m.Message], more: bytes) -> None:
    in_stream, message = case
    with pytest.raises(MalformedMessage):
        decode(encode(message) + more, in_stream=in_stream)


@given(any_message, st.data())
def test_flipped_bits_give_a_message_or_the_typed_error(case: tuple[bool, m.Message], data: st.DataObject) -> None:
    in_stream, message = case
    payload = bytearray(encode(message))
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    again = decoded_or_refused(bytes(payload), in_stream)
    if isinstance(again, MalformedMessage):
        assert 0 <= again.offset <= len(payload)
    elif not (isinstance(again, m.Relation | m.Type) and again.schema == "pg_catalog"):
        # An empty schema is written as such and read as pg_catalog; all else that is accepted means
        # exactly its bytes.
        assert encode(again) == bytes(payload)


@given(st.binary(max_size=60), st.booleans())
def test_any_bytes_give_a_message_or_the_typed_error(payload: bytes, in_stream: bool) -> None:
    result = decoded_or_refused(payload, in_stream)
    if isinstance(result, MalformedMessage):
        assert 0 <= result.offset <= len(payload)


@given(st.booleans(), st.data())
def test_the_relation_of_a_row_is_read_without_decoding_it(in_stream: bool, data: st.DataObject) -> None:
    message = data.draw(changes(u32 if in_stream else st.none()))
    payload = encode(message)
    assert row_relation(payload, in_stream) == message.relation
    if in_stream:
        assert row_place(payload) == (message.xid, message.relation)


texts = st.lists(st.none() | st.builds(m.Text, st.binary(max_size=20)), max_size=6).map(tuple)
inserts = st.one_of(
    st.tuples(st.just(False), st.builds(m.Insert, u32, texts, st.none())),
    st.tuples(st.just(True), st.builds(m.Insert, u32, texts, u32)),
)


@given(inserts | any_message, st.integers(0, 3), st.binary(max_size=2))
def test_the_texts_of_an_insert_are_read_as_they_are_decoded(
    case: tuple[bool, m.Message], cut: int, more: bytes
) -> None:
    in_stream, message = case
    payload = encode(message)[: -cut or None] + more
    decoded = decoded_or_refused(payload, in_stream)
    wanted = None
    if isinstance(decoded, m.Insert) and all(value is None or isinstance(value, m.Text) for value in decoded.new):
        wanted = [value.data if isinstance(value, m.Text) else None for value in decoded.new]
    assert insert_texts(payload, in_stream=in_stream) == wanted


@pytest.mark.parametrize("payload", [b"I", b"I\0\0\0", b"U\0\0\0\1\0\0\0"])
def test_a_row_that_ends_before_its_relation_is_malformed(payload: bytes) -> None:
    with pytest.raises(MalformedMessage, match=f"ends before its relation at byte {len(payload)}"):
        row_place(payload)
    if len(payload) < 5:
        with pytest.raises(MalformedMessage, match="ends before its relation"):
            row_relation(payload, in_stream=False)


def test_the_empty_schema_is_pg_catalog() -> None:
    relation = m.Relation(1, "", "pg_class", "nothing", ())
    decoded = decode(encode(relation), in_stream=False)
    assert isinstance(decoded, m.Relation)
    assert decoded.schema == "pg_catalog"


@pytest.mark.parametrize(
    ("payload", "offset", "words"),
    [
        (b"", 0, "ends before the message's tag"),
        (b"z", 0, "no message of pgoutput starts with b'z'"),
        (b"C\x01" + bytes(24), 1, "unknown bits"),
        (b"I" + bytes(4) + b"K\0\0", 5, "a new row starts with N"),
        (b"D" + bytes(4) + b"N\0\0", 5, "an old row starts with K or O"),
        (b"I" + bytes(4) + b"N\0\x01x", 8, "b'x' is not a kind of value"),
        (b"I" + bytes(4) + b"N\0\x01t\xff\xff\xff\xff", 13, "4294967295 bytes"),
        (b"T\xff\xff\xff\xff\0", 6, "4294967295 relations"),
        (b"T\0\0\0\0\x04", 5, "unknown bits"),
        (b"O" + bytes(8) + b"\xc3\x28\0", 9, "not UTF-8"),
        (b"O" + bytes(8) + b"name", 9, "has no end"),
        (b"R" + bytes(4) + b"s\0t\0x\0\0", 9, "b'x' is not a replica identity"),
    ],
)
def test_the_error_says_what_and_where(payload: bytes, offset: int, words: str) -> None:
    with pytest.raises(MalformedMessage, match=words) as error:
        decode(payload, in_stream=False)
    assert error.value.offset == offset


def test_a_time_is_counted_from_1970() -> None:
    decoded = decode(b"B" + bytes(8) + bytes(8) + bytes(4), in_stream=False)
    assert decoded == m.Begin(Lsn(0), 946_684_800_000_000, 0)
