"""What a tolerant client must live with: shown on the servers that do it, and that others do not do
it any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace

import psycopg
import pytest
from psycopg import sql

from integration.source.stream import PLAIN, Writer, kinds, make_slot, on_each_version, prepare, streaming, the
from twofold.errors import Refused
from twofold.source import provisioning
from twofold.source.messages import (
    BeginPrepare,
    CommitPrepared,
    Insert,
    LogicalMessage,
    Origin,
    Prepare,
    Relation,
    RollbackPrepared,
    StreamAbort,
    StreamCommit,
    Text,
)
from twofold.stack import PostgresServer
from twofold_common.positions import PreparedIdentity

pytestmark = pytest.mark.core

SINCE_16 = [*(pytest.param(version, marks=pytest.mark.slow) for version in ("16", "17")), "18"]


@pytest.fixture
def old_writer(old_postgres: PostgresServer, prefix: str) -> Iterator[Writer]:
    with closing(psycopg.connect(old_postgres.dsn(), autocommit=True)) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        connection.execute("INSERT INTO t VALUES (0)")
        make_slot(old_postgres.dsn(), prefix)
        yield connection
        provisioning.drop(old_postgres.dsn(), prefix, prefix)
        connection.execute("DROP TABLE t")


LOCK_ONLY = "SELECT FROM t WHERE id = 0 FOR UPDATE"
"""Locks a row: the transaction has an xid and is in the WAL, and changes nothing."""


@pytest.mark.parametrize(("outcome", "kind"), [("COMMIT", CommitPrepared), ("ROLLBACK", RollbackPrepared)])
def test_before_15_19_an_outcome_comes_without_its_prepare(
    old_postgres: PostgresServer, prefix: str, old_writer: Writer, outcome: str, kind: type
) -> None:
    with streaming(old_postgres.dsn(), prefix) as stream:
        prepare(old_writer, "g", LOCK_ONLY)
        assert kinds(stream.until_mark(old_writer)) == []
        old_writer.execute(f"{outcome} PREPARED 'g'")
        assert kinds(stream.until_mark(old_writer)) == [kind]


@on_each_version
@pytest.mark.parametrize(("outcome", "kind"), [("COMMIT", CommitPrepared), ("ROLLBACK", RollbackPrepared)])
def test_since_then_prepare_and_outcome_agree(
    database: str, prefix: str, writer: Writer, outcome: str, kind: type
) -> None:
    writer.execute("INSERT INTO t VALUES (0)")
    with streaming(database, prefix) as stream:
        stream.until_mark(writer)
        prepare(writer, "g", LOCK_ONLY)
        prepared = kinds(stream.until_mark(writer))
        writer.execute(f"{outcome} PREPARED 'g'")
        ended = kinds(stream.until_mark(writer))
    assert (prepared, ended) in [([], []), ([BeginPrepare, Prepare], [kind])]


@on_each_version
def test_a_prepare_without_published_changes_is_sent_empty(database: str, prefix: str, writer: Writer) -> None:
    with streaming(database, prefix) as stream:
        prepare(writer, "g", "CREATE TABLE made_here (id int)")
        assert kinds(stream.until_mark(writer)) == [BeginPrepare, Prepare]
        writer.execute("COMMIT PREPARED 'g'")
        assert kinds(stream.until_mark(writer)) == [CommitPrepared]


@pytest.mark.parametrize("gid", ["", "x" * 199, "ß€𝄞" * 22 + "a", "with 'quotes' \\ and\nlines", "\x01\x7f"])
def test_any_gid_comes_back(database: str, prefix: str, writer: Writer, gid: str) -> None:
    assert len(gid.encode()) <= 199
    prepare(writer, gid, "INSERT INTO t VALUES (1)")
    writer.execute(sql.SQL("COMMIT PREPARED {}").format(gid))
    with streaming(database, prefix) as stream:
        got = stream.until_mark(writer)
    assert the(Prepare, got).identity.gid == the(CommitPrepared, got).identity.gid == gid


def test_a_gid_is_used_again_at_once(database: str, prefix: str, writer: Writer) -> None:
    with streaming(database, prefix) as stream:
        for row in range(3):
            prepare(writer, "same", f"INSERT INTO t VALUES ({row})")
            writer.execute(f"{'ROLLBACK' if row == 1 else 'COMMIT'} PREPARED 'same'")
        got = stream.until_mark(writer)
    prepared = [m.identity for m in got if isinstance(m, Prepare)]
    ended = [m.identity for m in got if isinstance(m, CommitPrepared | RollbackPrepared)]
    assert prepared == ended
    assert len(set(prepared)) == 3
    assert {identity.gid for identity in prepared} == {"same"}


def test_other_databases_are_not_sent(postgres: PostgresServer, database: str, prefix: str, writer: Writer) -> None:
    with closing(psycopg.connect(postgres.dsn(), autocommit=True)) as elsewhere:
        elsewhere.execute("CREATE TABLE elsewhere (id int)")
        prepare(elsewhere, prefix, "INSERT INTO elsewhere VALUES (1)")
        prepare(writer, f"{prefix} here", "INSERT INTO t VALUES (1)")
        with streaming(database, prefix) as stream:
            elsewhere.execute(f"COMMIT PREPARED '{prefix}'")
            writer.execute(f"COMMIT PREPARED '{prefix} here'")
            got = stream.until_mark(writer)
        elsewhere.execute("DROP TABLE elsewhere")
    assert the(Prepare, got).identity.gid == f"{prefix} here"
    assert the(CommitPrepared, got).identity.gid == f"{prefix} here"


def test_rolled_back_ddl_is_followed_by_the_old_shape(database: str, prefix: str, writer: Writer) -> None:
    with streaming(database, prefix) as stream:
        writer.execute("BEGIN")
        writer.execute("ALTER TABLE t ADD COLUMN more int")
        writer.execute("INSERT INTO t VALUES (1, 'a', 2)")
        writer.execute("PREPARE TRANSACTION 'ddl'")
        inside = stream.until_mark(writer)
        writer.execute("ROLLBACK PREPARED 'ddl'")
        writer.execute("INSERT INTO t VALUES (1, 'a')")
        after = stream.until_mark(writer)
    assert [c.name for c in the(Relation, inside).columns] == ["id", "v", "more"]
    assert the(Insert, inside).new == (Text(b"1"), Text(b"a"), Text(b"2"))
    assert [c.name for c in the(Relation, after).columns] == ["id", "v"]


def test_an_origin_follows_the_begin(database: str, prefix: str, writer: Writer) -> None:
    writer.execute("SELECT pg_replication_origin_create(%s), pg_replication_origin_session_setup(%s)", [prefix] * 2)
    with streaming(database, prefix) as stream:
        writer.execute("BEGIN")
        writer.execute("SELECT pg_replication_origin_xact_setup('0/ABC', now())")
        writer.execute("INSERT INTO t VALUES (1)")
        writer.execute("COMMIT")
        got = stream.until_mark(writer)
    assert isinstance(got[1], Origin)
    assert got[1] == Origin(got[1].origin_lsn, prefix)
    writer.execute("SELECT pg_replication_origin_session_reset()")
    writer.execute("SELECT pg_replication_origin_drop(%s)", [prefix])


def test_identity_is_what_outcomes_are_matched_by(
    database: str, prefix: str, writer: Writer, connections: Callable[[], Writer]
) -> None:
    """Several open side by side, ended in another order."""
    gids = ["a", "b", "c"]
    xids: dict[str, int] = {}
    for number, gid in enumerate(gids):
        prepare(connections(), gid, f"INSERT INTO t VALUES ({number})")
        row = writer.execute("SELECT transaction::text::int FROM pg_prepared_xacts WHERE gid = %s", [gid]).fetchone()
        assert row is not None
        xids[gid] = row[0]
    with streaming(database, prefix) as stream:
        for gid in ("c", "a", "b"):
            writer.execute(f"COMMIT PREPARED '{gid}'")
        got = stream.until_mark(writer)
    assert [m.identity for m in got if isinstance(m, Prepare)] == [PreparedIdentity(xids[g], g) for g in gids]
    assert [m.identity for m in got if isinstance(m, CommitPrepared)] == [PreparedIdentity(xids[g], g) for g in "cab"]


@pytest.mark.parametrize("postgres", SINCE_16, indirect=True)
def test_a_streamed_message_does_not_say_which_savepoint_it_is_of(database: str, prefix: str, writer: Writer) -> None:
    """It carries the transaction's xid, where rows carry the subtransaction's: rolled back to a
    savepoint it stays.
    """
    forced = psycopg.conninfo.make_conninfo(database, options="-c debug_logical_replication_streaming=immediate")
    with streaming(forced, prefix, replace(PLAIN, streaming="on")) as stream:
        writer.execute("BEGIN")
        writer.execute("INSERT INTO t VALUES (1)")
        writer.execute("SAVEPOINT s")
        writer.execute("INSERT INTO t VALUES (2)")
        writer.execute("SELECT pg_logical_emit_message(true, 'p', 'rolled back')")
        writer.execute("ROLLBACK TO s")
        writer.execute("COMMIT")
        got = stream.until_mark(writer)
    top = the(StreamCommit, got).xid
    rolled_back = the(StreamAbort, got).subxid
    assert [m.xid for m in got if isinstance(m, Insert)] == [top, rolled_back]
    assert the(LogicalMessage, got).xid == top != rolled_back


def test_a_rolled_back_prepare_that_rewrote_a_table_can_stop_the_stream_for_good(
    database: str, prefix: str, writer: Writer
) -> None:
    """A bug of the server as of 15.19 to 18.6.

    Known for what it is, so that nobody retries it for ever.
    """

    def is_stopped() -> bool:
        with streaming(database, prefix) as stream:
            try:
                stream.until_mark(writer)
            except Refused as refused:
                return "rolled back before it was decoded" in refused.what
        return False

    for _ in range(20):
        writer.execute("BEGIN")
        writer.execute("SAVEPOINT s")
        writer.execute("TRUNCATE t")
        writer.execute("INSERT INTO t VALUES (1)")
        writer.execute("RELEASE s")
        writer.execute("INSERT INTO t VALUES (2)")
        writer.execute("PREPARE TRANSACTION 'g'")
        writer.execute("ROLLBACK PREPARED 'g'")
        writer.execute("VACUUM pg_class")  # leaves the rows while any session of the server has an older snapshot
        if is_stopped():
            break
    assert is_stopped()
