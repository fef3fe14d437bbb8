"""Which position each message carries: the facts that recovery and the rows' `lsn` rest on."""

from __future__ import annotations

import pytest

from integration.source.stream import Stream, Writer, prepare, streaming
from twofold.source.messages import (
    Begin,
    BeginPrepare,
    Commit,
    CommitPrepared,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    Prepare,
    Relation,
    RollbackPrepared,
    Update,
)
from twofold_common.positions import Lsn, parse_lsn

pytestmark = pytest.mark.core


def insert_position(writer: Writer) -> Lsn:
    row = writer.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
    assert row is not None
    return parse_lsn(row[0])


def emit(writer: Writer, *, transactional: bool) -> Lsn:
    row = writer.execute("SELECT pg_logical_emit_message(%s, 'p', 'body')::text", [transactional]).fetchone()
    assert row is not None
    return parse_lsn(row[0])


def started(stream: Stream, kind: type[Message]) -> list[Lsn]:
    return [start for start, message in stream.seen if isinstance(message, kind)]


def test_a_message_outside_of_transactions_has_its_records_end(database: str, prefix: str, writer: Writer) -> None:
    """So "published" means lsn <= applied_lsn, where for a commit it means commit_lsn <
    applied_lsn.
    """
    before = insert_position(writer)
    returned = emit(writer, transactional=False)
    with streaming(database, prefix) as stream:
        (message,) = stream.until_mark(writer)
    assert isinstance(message, LogicalMessage)
    assert message.lsn == returned > before
    assert stream.seen[0][0] == message.lsn, "XLogData's start is the record's end, too"


def test_a_message_within_a_transaction_has_its_records_end(database: str, prefix: str, writer: Writer) -> None:
    returned = emit(writer, transactional=True)
    with streaming(database, prefix) as stream:
        begin, message, commit = stream.until_mark(writer)
    assert isinstance(message, LogicalMessage)
    assert isinstance(begin, Begin)
    assert isinstance(commit, Commit)
    assert message.lsn == returned <= commit.commit_lsn == begin.commit_lsn


def test_a_row_starts_where_its_record_does(database: str, prefix: str, writer: Writer) -> None:
    """Rows have positions of their own, rising within a transaction and below its end."""
    with writer.transaction():
        writer.execute("INSERT INTO t VALUES (1, 'a')")
        after_insert = insert_position(writer)
        writer.execute("UPDATE t SET v = 'b'")
        writer.execute("DELETE FROM t")
    with streaming(database, prefix) as stream:
        got = stream.until_mark(writer)
    (insert,), (update,), (delete,) = started(stream, Insert), started(stream, Update), started(stream, Delete)
    commit = got[-1]
    assert isinstance(commit, Commit)
    assert insert < after_insert <= update < delete < commit.commit_lsn
    assert started(stream, Begin) == [insert], "Begin's is that of the transaction's first change"
    assert started(stream, Commit) == [commit.end_lsn]
    assert started(stream, Relation) == [0], "a Relation's start says nothing"


def test_neighbouring_transactions_share_a_boundary(database: str, prefix: str, writer: Writer) -> None:
    """A commit's end can be the next record's start: so `commit_lsn < applied_lsn` is what was
    applied, never `<=`.
    """
    for gid in "ab":
        prepare(writer, gid, f"INSERT INTO t VALUES ({ord(gid)})")
    for gid in "ab":
        writer.execute(f"COMMIT PREPARED '{gid}'")
    with streaming(database, prefix) as stream:
        first, second = [m for m in stream.until_mark(writer) if isinstance(m, CommitPrepared)]
    assert first.end_lsn == second.commit_lsn


def test_prepare_and_outcome(database: str, prefix: str, writer: Writer) -> None:
    prepare(writer, "kept", "INSERT INTO t VALUES (1)")
    prepare(writer, "dropped", "INSERT INTO t VALUES (2)")
    writer.execute("COMMIT PREPARED 'kept'")
    writer.execute("ROLLBACK PREPARED 'dropped'")
    after = insert_position(writer)
    with streaming(database, prefix) as stream:
        got = stream.until_mark(writer)
    begins = {m.identity: m for m in got if isinstance(m, BeginPrepare)}
    prepares = {m.identity: m for m in got if isinstance(m, Prepare)}
    commit = next(m for m in got if isinstance(m, CommitPrepared))
    rollback = next(m for m in got if isinstance(m, RollbackPrepared))
    for identity, begin in begins.items():
        assert (begin.prepare_lsn, begin.end_lsn) == (prepares[identity].prepare_lsn, prepares[identity].end_lsn)
    assert prepares[commit.identity].end_lsn <= commit.commit_lsn < commit.end_lsn
    assert rollback.prepare_end_lsn == prepares[rollback.identity].end_lsn
    assert commit.end_lsn < rollback.end_lsn <= after
    assert started(stream, Prepare) == [p.end_lsn for p in prepares.values()]
    assert started(stream, CommitPrepared) == [commit.end_lsn]
    assert started(stream, RollbackPrepared) == [rollback.end_lsn]


def test_a_keepalive_never_passes_what_was_sent(database: str, prefix: str, writer: Writer) -> None:
    """walEnd is how far the server has decoded and sent, unpublished records included: what came is
    below, what comes is not.
    """
    with streaming(database, prefix) as stream:
        for number in range(20):
            writer.execute("INSERT INTO t VALUES (%s)", [number])
            known = max(stream.keepalives, default=Lsn(0))
            commits = [m for m in stream.until_mark(writer) if isinstance(m, Commit)]
            assert all(commit.end_lsn > known for commit in commits)
    assert stream.keepalives == sorted(stream.keepalives)
