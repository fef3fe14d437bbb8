"""A prepared transaction that holds a catalog table exclusively: who must read it waits, can be
told for whom, and goes on when it is released.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import psycopg
import pytest

from fixtures.connector import wait_until
from integration.source.stream import Writer, kinds, streaming
from twofold.errors import Unreachable
from twofold.source import locks
from twofold.source.messages import Begin, BeginPrepare, Commit, Insert, Prepare, RollbackPrepared

pytestmark = pytest.mark.core


@contextmanager
def locked(writer: Writer, catalog: str) -> Iterator[None]:
    writer.execute("BEGIN")
    writer.execute(f"LOCK TABLE pg_catalog.{catalog} IN ACCESS EXCLUSIVE MODE")
    writer.execute("SAVEPOINT s")  # its lock is the prepared transaction's as well
    writer.execute("INSERT INTO t VALUES (1)")
    writer.execute("PREPARE TRANSACTION 'shuts'")
    try:
        yield
    finally:
        writer.execute("ROLLBACK PREPARED 'shuts'")


def test_the_streams_start_waits_and_says_for_whom(database: str, prefix: str, writer: Writer) -> None:
    writer.execute("INSERT INTO t VALUES (0)")
    with ExitStack() as ending:
        with locked(writer, "pg_publication_rel"):
            stream = ending.enter_context(streaming(database, prefix))
            assert stream.read(1.0) == [], "the walsender reads what is published at the first row"
            (holder,) = locks.connector_blockers(database, slot=prefix, application_name="another name")
            assert holder.gid == "shuts"
            assert "AccessExclusiveLock on table pg_publication_rel" in str(holder)
        got = stream.until_mark(writer)
    assert kinds(got)[:3] == [Begin, Insert, Commit]
    assert [k for k in kinds(got)[3:] if k is not Insert] == [BeginPrepare, Prepare, RollbackPrepared]
    assert locks.connector_blockers(database, slot=prefix, application_name=prefix) == ()


def test_who_blocks_two_sessions_is_named_once(database: str, prefix: str, writer: Writer) -> None:
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'pg_publication_rel'::regclass"

    def look() -> None:
        with psycopg.connect(database, application_name="twofold looks") as connection:
            connection.execute("SELECT FROM pg_publication_rel")

    with ThreadPoolExecutor(2) as pool, locked(writer, "pg_publication_rel"):
        looks = [pool.submit(look) for _ in range(2)]
        wait_until(lambda: writer.execute(waiting).fetchone() == (2,))
        (holder,) = locks.connector_blockers(database, slot=prefix, application_name=prefix)
        assert holder.gid == "shuts"
    for done in looks:
        done.result(10)


def test_a_stream_that_has_begun_goes_on(database: str, prefix: str, writer: Writer) -> None:
    with streaming(database, prefix) as stream:
        writer.execute("INSERT INTO t VALUES (0)")
        stream.until_mark(writer)
        with locked(writer, "pg_publication_rel"):
            writer.execute("INSERT INTO t VALUES (2)")
            assert kinds(stream.until_mark(writer)) == [BeginPrepare, Insert, Prepare, Begin, Insert, Commit]


def test_no_session_can_begin_and_another_database_tells_why(database: str, prefix: str, writer: Writer) -> None:
    impatient = psycopg.conninfo.make_conninfo(database, connect_timeout=2)
    with locked(writer, "pg_class"):
        with (
            pytest.raises(Unreachable, match="`twofold status` shows the transaction that blocks new sessions"),
            streaming(impatient, prefix),
        ):
            pass
        (holder,) = locks.new_session_blockers(impatient)
        assert holder.gid == "shuts"
        assert "AccessExclusiveLock on table pg_class" in str(holder)
    with streaming(database, prefix) as stream:
        assert [k for k in kinds(stream.until_mark(writer)) if k is not Insert] == [
            BeginPrepare,
            Prepare,
            RollbackPrepared,
        ]
    assert locks.new_session_blockers(database) == ()
