"""What PostgreSQL sends again after a restart, by where the confirmed position lies; and prepared
transactions older than the slot.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from integration.source.stream import PLAIN, Writer, kinds, make_slot, on_each_version, prepare, streaming, the
from twofold.source import provisioning
from twofold.source.identity import slot_state
from twofold.source.locks import Blocker
from twofold.source.messages import (
    Begin,
    BeginPrepare,
    Commit,
    CommitPrepared,
    Insert,
    Message,
    Prepare,
    RollbackPrepared,
    Text,
)
from twofold_common.positions import Lsn, PreparedIdentity

PREPARED = [BeginPrepare, Insert, Prepare]


def first_reading(database: str, prefix: str, writer: Writer, outcome: str) -> list[Message]:
    """Prepare, end it with `outcome`, and read it all without confirming anything."""
    prepare(writer, "g", "INSERT INTO t VALUES (1)")
    with streaming(database, prefix) as stream:
        got = stream.until_mark(writer)
        assert kinds(got) == PREPARED
        writer.execute(f"{outcome} PREPARED 'g'")
        return got + stream.until_mark(writer)


def again(database: str, prefix: str, writer: Writer, confirm: Lsn | None) -> list[Message]:
    """Confirm a position, as a client that then goes away, and read what the next one gets."""
    if confirm is not None:
        with streaming(database, prefix) as stream:
            stream.until_mark(writer)
            stream.confirm(confirm)
        state = slot_state(database, prefix)
        assert state is not None
        assert state.confirmed_flush == confirm
    with streaming(database, prefix) as stream:
        return stream.until_mark(writer)


def where_nothing_is_confirmed(_: list[Message]) -> Lsn | None:
    return None


def where_the_prepare_starts(got: list[Message]) -> Lsn:
    return the(Prepare, got).prepare_lsn


def where_the_prepare_ends(got: list[Message]) -> Lsn:
    return the(Prepare, got).end_lsn


def where_the_outcome_starts(got: list[Message]) -> Lsn:
    return the(CommitPrepared, got).commit_lsn


def where_the_outcome_ends(got: list[Message]) -> Lsn:
    return next(m for m in got if isinstance(m, CommitPrepared | RollbackPrepared)).end_lsn


@on_each_version
@pytest.mark.parametrize(
    ("outcome", "place", "comes"),
    [
        ("COMMIT", where_nothing_is_confirmed, [*PREPARED, CommitPrepared]),
        ("COMMIT", where_the_prepare_starts, [*PREPARED, CommitPrepared]),
        ("COMMIT", where_the_prepare_ends, [CommitPrepared]),
        ("COMMIT", where_the_outcome_starts, [CommitPrepared]),
        ("COMMIT", where_the_outcome_ends, []),
        ("ROLLBACK", where_the_prepare_ends, [RollbackPrepared]),
        ("ROLLBACK", where_the_outcome_ends, []),
    ],
)
def test_what_comes_again(
    database: str,
    prefix: str,
    writer: Writer,
    outcome: str,
    place: Callable[[list[Message]], Lsn | None],
    comes: list[type],
) -> None:
    got = first_reading(database, prefix, writer, outcome)
    assert kinds(again(database, prefix, writer, place(got))) == comes


@on_each_version
def test_a_rollback_known_before_decoding_leaves_the_rows_out(database: str, prefix: str, writer: Writer) -> None:
    """Rolled back before it was decoded: what arrives is still framed, and its end says that it
    never was.
    """
    prepare(writer, "g", "INSERT INTO t VALUES (1)")
    writer.execute("ROLLBACK PREPARED 'g'")
    with streaming(database, prefix) as stream:
        got = stream.until_mark(writer)
    assert [k for k in kinds(got) if k is not Insert] == [BeginPrepare, Prepare, RollbackPrepared]


@pytest.mark.core
def test_an_older_request_is_moved_forward_to_what_is_confirmed(database: str, prefix: str, writer: Writer) -> None:
    got = first_reading(database, prefix, writer, "COMMIT")
    again(database, prefix, writer, where_the_outcome_ends(got))
    with streaming(database, prefix, start=the(Prepare, got).prepare_lsn) as stream:
        assert kinds(stream.until_mark(writer)) == []


@pytest.mark.core
def test_a_later_request_leaves_out_what_lies_before_it(database: str, prefix: str, writer: Writer) -> None:
    """A start beyond the confirmed position is taken at its word: so recovery asks for 0/0, and
    skips by itself.
    """
    got = first_reading(database, prefix, writer, "COMMIT")
    with streaming(database, prefix, start=the(Prepare, got).end_lsn) as stream:
        assert kinds(stream.until_mark(writer)) == [CommitPrepared]


@pytest.mark.core
def test_restart_stays_before_an_open_prepare_whatever_is_confirmed(database: str, prefix: str, writer: Writer) -> None:
    prepare(writer, "g", "INSERT INTO t VALUES (1)")
    with streaming(database, prefix) as stream:
        prepared = the(Prepare, stream.until_mark(writer))
        writer.execute("CHECKPOINT")  # logs running transactions, from which alone restart_lsn moves
        writer.execute("INSERT INTO t VALUES (2)")
        stream.until_mark(writer)
        stream.confirm(stream.seen[-1][0])
        stream.until_mark(writer)
    state = slot_state(database, prefix)
    assert state is not None
    assert state.confirmed_flush > prepared.end_lsn
    assert state.restart < prepared.prepare_lsn


def make_slot_around_a_prepare(
    database: str, prefix: str, connections: Callable[[], Writer]
) -> tuple[Writer, PreparedIdentity]:
    """Make a slot while transactions come and go, such that one is prepared after the snapshot's
    start and before its end.

    The slot's maker waits first for all that run at its start (`first`), then for all that ran when
    those had ended (`second`). What begins after that is not waited for, and if it is prepared
    before `second` ends, the slot is made with it in doubt.
    """
    first, second, third = connections(), connections(), connections()
    third.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    provisioning.create_publication(database, prefix, provisioning.PublicationContent(all_tables=True), prefix)
    first.execute("BEGIN")
    first.execute("INSERT INTO t VALUES (1)")
    waited: set[int | None] = set()

    def on_wait(blockers: tuple[Blocker, ...]) -> None:
        new = {b.pid for b in blockers} - waited
        waited.update(new)
        if first.info.backend_pid in new:
            second.execute("BEGIN")
            second.execute("INSERT INTO t VALUES (2)")
            first.execute("COMMIT")
        if second.info.backend_pid in new:
            prepare(third, "during", "INSERT INTO t VALUES (3)")
            second.execute("COMMIT")

    provisioning.create_slot(database, prefix, two_phase=True, wait_limit_s=20, on_wait=on_wait)
    assert waited == {first.info.backend_pid, second.info.backend_pid}
    row = third.execute("SELECT transaction::text::bigint FROM pg_prepared_xacts WHERE gid = 'during'").fetchone()
    assert row is not None
    return third, PreparedIdentity(row[0], "during")


@on_each_version
def test_prepared_while_the_slot_was_made_arrives_whole_at_its_commit(
    database: str, prefix: str, connections: Callable[[], Writer]
) -> None:
    writer, identity = make_slot_around_a_prepare(database, prefix, connections)
    state = slot_state(database, prefix)
    assert state is not None
    with streaming(database, prefix) as stream:
        assert kinds(stream.until_mark(writer)) == []
        writer.execute("COMMIT PREPARED 'during'")
        got = stream.until_mark(writer)
    assert kinds(got) == [BeginPrepare, Insert, Prepare, CommitPrepared]
    assert the(Insert, got).new == (Text(b"3"), None)
    assert the(Prepare, got).identity == the(CommitPrepared, got).identity == identity
    assert the(Prepare, got).end_lsn <= state.confirmed_flush <= the(CommitPrepared, got).commit_lsn


@pytest.mark.core
def test_prepared_while_the_slot_was_made_and_rolled_back_is_only_its_end(
    database: str, prefix: str, connections: Callable[[], Writer]
) -> None:
    writer, identity = make_slot_around_a_prepare(database, prefix, connections)
    with streaming(database, prefix) as stream:
        writer.execute("ROLLBACK PREPARED 'during'")
        got = stream.until_mark(writer)
    assert kinds(got) == [RollbackPrepared]
    assert the(RollbackPrepared, got).identity == identity


@on_each_version
def test_without_two_phase_it_comes_whole_at_its_commit(
    database: str, prefix: str, connections: Callable[[], Writer]
) -> None:
    writer = connections()
    writer.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    make_slot(database, prefix, two_phase=False)
    off = replace(PLAIN, two_phase=False)
    with streaming(database, prefix, off) as stream:
        prepare(writer, "kept", "INSERT INTO t VALUES (1)")
        prepare(writer, "dropped", "INSERT INTO t VALUES (2)")
        assert kinds(stream.until_mark(writer)) == []
        writer.execute("COMMIT PREPARED 'kept'")
        writer.execute("ROLLBACK PREPARED 'dropped'")
        got = stream.until_mark(writer)
    assert kinds(got) == [Begin, Insert, Commit]
    assert the(Insert, got).new == (Text(b"1"), None)


@pytest.mark.core
def test_a_two_phase_slot_sends_prepares_to_a_client_that_did_not_ask(
    database: str, prefix: str, writer: Writer
) -> None:
    with streaming(database, prefix, replace(PLAIN, two_phase=False)) as stream:
        prepare(writer, "g", "INSERT INTO t VALUES (1)")
        assert kinds(stream.until_mark(writer)) == PREPARED
