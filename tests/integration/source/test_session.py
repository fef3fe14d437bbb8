"""The session on real servers: who may hold a slot, what is answered in time, and what is said of
bad ground.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace

import psycopg
import pytest

from fixtures.connector import frozen
from integration.source.stream import PLAIN, Stream, Writer, make_slot, prepare, streaming
from twofold.errors import Refused, RunEnded, SetupError, Unreachable
from twofold.source import identity, provisioning, readiness
from twofold.source.connection import connect
from twofold.source.diagnosis import SlotBusy
from twofold.source.session import ReplicationSession
from twofold.stack import PostgresServer
from twofold_common.positions import Lsn

pytestmark = pytest.mark.core


def walsender(writer: Writer, name: str) -> tuple[object, ...] | None:
    return writer.execute(
        "SELECT write_lsn::text, flush_lsn::text FROM pg_stat_replication WHERE application_name = %s", [name]
    ).fetchone()


def read_on(stream: Stream) -> None:
    """Until it raises, for ten seconds at most."""
    for _ in range(50):
        stream.read(0.2)


def test_a_second_client_is_told_who_holds_the_slot(database: str, prefix: str, writer: Writer) -> None:
    with streaming(database, prefix) as first:
        with (
            pytest.raises(SlotBusy, match=rf"process {first.session.backend_pid} from 127\.0\.0\.1") as busy,
            streaming(database, prefix),
        ):
            pass
        assert busy.value.pid == first.session.backend_pid
        advice = readiness.examine(database, slot=prefix, publication=prefix)
        assert any(f"process {first.session.backend_pid}" in str(finding) for finding in advice)
    with streaming(database, prefix):
        pass  # free at once


def test_write_and_flush_are_reported_apart(database: str, prefix: str, writer: Writer) -> None:
    with streaming(database, prefix) as stream:
        stream.until_mark(writer)
        stream.session.report(write=Lsn(0x200), flush=Lsn(0x100))
        deadline = time.monotonic() + 10
        while walsender(writer, prefix) != ("0/200", "0/100") and time.monotonic() < deadline:
            stream.read(0.05)
        assert walsender(writer, prefix) == ("0/200", "0/100")


@pytest.mark.parametrize("postgres", ["15", "18"], indirect=True)
@pytest.mark.parametrize("tended", [True, False])
def test_a_long_turn_is_survived_by_tending_alone(database: str, prefix: str, writer: Writer, tended: bool) -> None:
    """Nothing is read for three times wal_sender_timeout."""
    impatient = psycopg.conninfo.make_conninfo(database, options="-c wal_sender_timeout=1s")
    with streaming(impatient, prefix) as stream:
        stream.until_mark(writer)
        end = time.monotonic() + 3
        while time.monotonic() < end:
            time.sleep(0.05)  # the turn's own work
            if tended:
                stream.session.tend()
        if tended:
            stream.until_mark(writer)
        else:
            with pytest.raises(RunEnded):
                stream.until_mark(writer)


@pytest.mark.parametrize("postgres", ["15", "18"], indirect=True)
def test_a_silent_server_ends_the_run(database: str, prefix: str, writer: Writer) -> None:
    """Until then it costs nothing to wait for it."""
    with streaming(database, prefix, replace(PLAIN, receive_timeout_s=2.0)) as stream:
        stream.until_mark(writer)
        took_s, cpu_s = silent(stream)
    assert 1.9 < took_s < 20
    assert cpu_s < 0.3


@pytest.mark.parametrize("postgres", ["15", "18"], indirect=True)
def test_a_server_may_be_silent_as_long_as_its_own_timeout(
    database: str, prefix: str, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may decode for half of it without a word."""
    monkeypatch.setattr("twofold.source.session.RECEIVE_TIMEOUT_S", 0.5)
    slow = psycopg.conninfo.make_conninfo(database, options="-c wal_sender_timeout=3s")
    with streaming(slow, prefix) as stream:
        stream.until_mark(writer)
        assert silent(stream)[0] > 2.9


def silent(stream: Stream) -> tuple[float, float]:
    """The server's process sleeps from now on: how long until the session ends, and how much of it
    was work.
    """
    with frozen(stream.session.backend_pid):
        began, work = time.monotonic(), time.thread_time()
        with pytest.raises(RunEnded, match="PostgreSQL has sent nothing for"):
            read_on(stream)
        return time.monotonic() - began, time.thread_time() - work


@pytest.mark.parametrize("postgres", ["18"], indirect=True)
@pytest.mark.parametrize(("own", "idle_s"), [("", 10), ("keepalives_idle=7", 7)])
def test_every_connection_notices_a_server_that_vanished(database: str, own: str, idle_s: int) -> None:
    with connect(f"{database} {own}") as connection, socket.socket(fileno=os.dup(connection.fileno())) as inside:
        asked = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
        assert [inside.getsockopt(socket.IPPROTO_TCP, option) for option in asked] == [idle_s, 5, 4, 30_000]
        assert inside.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


def test_a_terminated_stream_ends_the_run(database: str, prefix: str, writer: Writer) -> None:
    with streaming(database, prefix) as stream:
        writer.execute("SELECT pg_terminate_backend(%s)", [stream.session.backend_pid])
        with pytest.raises(RunEnded):
            read_on(stream)


def test_a_publication_that_is_gone_is_refused(
    postgres: PostgresServer, database: str, prefix: str, writer: Writer
) -> None:
    """15 to 17 end the stream with an error; 18 warns and goes on."""
    writer.execute(f"DROP PUBLICATION {prefix}")
    writer.execute("INSERT INTO t VALUES (1)")
    with (
        streaming(database, prefix) as stream,
        pytest.raises(Refused, match="publication of this slot no longer exists") as refused,
    ):
        stream.until_mark(writer)
    assert ("WARNING:" in str(refused.value)) == (postgres.version >= 18)
    assert any("does not exist" in f.what for f in readiness.examine(database, slot=prefix, publication=prefix))


def test_a_slot_that_is_not_there(database: str, prefix: str) -> None:
    with pytest.raises(SetupError, match="twofold init"), streaming(database, prefix):
        pass


def test_a_role_that_may_not_replicate(database: str, prefix: str, writer: Writer) -> None:
    writer.execute(f"CREATE ROLE {prefix} LOGIN")
    humble = psycopg.conninfo.make_conninfo(database, user=prefix)
    with pytest.raises(SetupError, match=f'ALTER ROLE "{prefix}" REPLICATION'), streaming(humble, prefix):
        pass
    with pytest.raises(SetupError, match="may not replicate"):
        readiness.require(humble, slot=prefix, publication=prefix, two_phase=True)
    writer.execute(f"DROP ROLE {prefix}")


def test_a_server_that_was_never_made_for_it(own_postgres: Callable[..., PostgresServer]) -> None:
    server = own_postgres(
        settings={"wal_level": "replica", "max_prepared_transactions": "0", "max_replication_slots": "0"}
    )
    with pytest.raises(SetupError) as error:
        readiness.require(server.dsn(), slot="s", publication="p", two_phase=True)
    for words in ("all 0 replication slots are in use", "publication 'p' does not exist"):
        assert words in str(error.value)
    # From 19 on the first slot turns decoding on.
    assert ("SET wal_level = logical" in str(error.value)) == (server.version < 19)
    findings = readiness.examine(server.dsn(), slot="s")
    assert any("max_prepared_transactions is 0" in f.what and not f.must for f in findings)
    with pytest.raises(SetupError, match="remedy"):
        provisioning.create_slot(server.dsn(), "s", two_phase=True, wait_limit_s=5, on_wait=lambda _: None)


def test_an_invalidated_slot_is_refused(own_postgres: Callable[..., PostgresServer]) -> None:
    server = own_postgres(version="17", settings={"max_slot_wal_keep_size": "1MB", "fsync": "off"})
    with closing(psycopg.connect(server.dsn(), autocommit=True)) as writer:
        writer.execute("CREATE TABLE t (id int, v text)")
        make_slot(server.dsn(), "s")
        for _ in range(4):
            writer.execute("SELECT pg_logical_emit_message(false, 'p', repeat('x', 100000)), pg_switch_wal()")
        writer.execute("CHECKPOINT")
    state = identity.slot_state(server.dsn(), "s")
    assert state is not None
    assert state.lost
    with pytest.raises(Refused, match=r"invalidated slot 's' \(wal_removed\)"), streaming(server.dsn(), "s"):
        pass
    assert any("was invalidated" in f.what for f in readiness.examine(server.dsn(), slot="s"))


def test_creation_names_whom_it_waits_for_and_gives_up(
    postgres: PostgresServer, database: str, prefix: str, connections: Callable[[], Writer]
) -> None:
    with closing(psycopg.connect(postgres.dsn(), autocommit=True)) as elsewhere, ExitStack() as ending:
        prepare(elsewhere, prefix, "CREATE TABLE in_the_way (id int)")
        ending.callback(elsewhere.execute, f"ROLLBACK PREPARED '{prefix}'")
        told: list[str] = []
        with pytest.raises(
            Unreachable, match=rf"waits for prepared transaction '{prefix}' \(database postgres, owner postgres"
        ):
            provisioning.create_slot(
                database, prefix, two_phase=True, wait_limit_s=1.2, on_wait=lambda b: told.extend(map(str, b))
            )
        assert identity.slot_state(database, prefix) is None, "nothing is left of it"
        assert all(prefix in line for line in told)
        assert prefix in [p.gid for p in identity.prepared_transactions(database)]


@pytest.mark.parametrize(
    ("dies", "limit_s"),
    [("its process", 30), ("the server", 30), ("the server", 0.1)],
    ids=["process", "server", "server when it is to give up"],
)
def test_a_server_that_goes_away_while_a_slot_is_made_is_said_as_such(
    own_postgres: Callable[..., PostgresServer], dies: str, limit_s: float
) -> None:
    server = own_postgres()
    with closing(psycopg.connect(server.dsn(), autocommit=True)) as elsewhere:
        prepare(elsewhere, "in the way", "CREATE TABLE in_the_way (id int)")

    def die(_blockers: object) -> None:
        if dies == "the server":
            server.kill()
            return
        with closing(psycopg.connect(server.dsn(), autocommit=True)) as other:
            other.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE query LIKE '%pg_create_logical%' AND pid <> pg_backend_pid()"
            )

    with pytest.raises(Unreachable, match="went away"):
        provisioning.create_slot(server.dsn(), "s", two_phase=True, wait_limit_s=limit_s, on_wait=die)


def test_reset_takes_away_what_init_made_and_nothing_else(database: str, prefix: str, writer: Writer) -> None:
    writer.execute(f"CREATE PUBLICATION {prefix}_own FOR ALL TABLES")
    prepare(writer, "open", "INSERT INTO t VALUES (1)")
    loss = provisioning.describe_loss(database, prefix)
    assert loss is not None
    assert loss.in_doubt == ("open",)
    assert loss.unconfirmed_bytes > 0
    writer.execute("ROLLBACK PREPARED 'open'")
    removal = provisioning.drop(database, prefix, prefix)
    assert removal == provisioning.Removal((f"slot {prefix}", f"publication {prefix}"))
    for publication in (prefix, f"{prefix}_own"):
        assert provisioning.drop(database, prefix, publication) == provisioning.Removal(())
    assert provisioning.describe_loss(database, prefix) is None


def test_identity_and_history(postgres: PostgresServer) -> None:
    who = identity.identify(postgres.dsn())
    with closing(psycopg.connect(postgres.dsn())) as connection:
        row = connection.execute("SELECT system_identifier::text FROM pg_control_system()").fetchone()
    assert row == (who.system_identifier,)
    assert (who.timeline, who.database) == (1, "postgres")
    with connect(postgres.dsn(), replication=True) as connection:
        assert identity.timeline_history(connection, 1) == ()
        with pytest.raises(SetupError, match="history of timeline 7"):
            identity.timeline_history(connection, 7)


def test_closing_twice_or_before_opening_is_harmless(database: str, prefix: str, writer: Writer) -> None:
    session = ReplicationSession(database, slot=prefix, publication=prefix, application_name=prefix)
    session.close()
    session.open()
    session.close()
    session.close()
    with pytest.raises(RunEnded, match="not open"):
        session.read(rows_max=1, bytes_max=1, wait_s=0)
