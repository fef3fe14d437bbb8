"""The source is a physical standby: streaming, kills, promotion, conflict, loads; compared with the
primary's ledger. Nothing of ours replicates from the primary.
"""

from __future__ import annotations

import random
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from fixtures.connector import Installation, Maker, wait_until
from helpers.connector import ledger as connector_ledger
from helpers.connector.topics import gid_of
from helpers.connector.workload import Workload
from helpers.source.standby import ServerPair, ask, standby_of
from integration.connector.test_ddl_messages import DROP, MAKE, Pairs
from integration.connector.test_frontiers import Group, in_doubt
from twofold.errors import Refused, SetupError
from twofold.stack import PostgresServer

pytestmark = pytest.mark.timeout(600)
VERSIONS = (*(pytest.param(version, marks=pytest.mark.slow) for version in ("16", "17")), "18")
ON_18 = pytest.mark.parametrize("version", ["18"])


class Pair(ServerPair):
    """The source of the connector is the standby. The tests write into the primary."""

    def replicating(self) -> list[str]:
        """Who replicates from the primary."""
        with psycopg.connect(self.primary.dsn()) as session:
            return [name for (name,) in session.execute("SELECT application_name FROM pg_stat_replication")]


MakePair = Callable[..., Pair]


@pytest.fixture
def make_pair(connector: Maker, own_postgres: Callable[..., PostgresServer], open_folder: Path) -> Iterator[MakePair]:
    with ExitStack() as ending:

        def make(version: str, *, init: bool = True, primary_dsn: bool = True, **options: Any) -> Pair:
            primary = own_postgres(version=version)
            standby = standby_of(primary, open_folder / "standby")
            ending.callback(standby.stop)
            here = connector(conninfo=primary.dsn(), init=False, **options)
            here.sql(connector_ledger.SCHEMA)
            here.configure({"source": {"dsn": standby.dsn()}})
            if primary_dsn:
                here.configure({"source": {"primary_dsn": primary.dsn()}})
            pair = Pair(primary, standby, here)
            if init:
                pair.wait_for_replay()
                here.initialise()
            return pair

        yield make


@pytest.mark.slow
@pytest.mark.parametrize("version", ["16", "17", "18"])
def test_from_standby_with_kills_while_sessions_write(version: str, make_pair: MakePair) -> None:
    """Prepared transactions of all outcomes, and kill -9 of the connector at any moment."""
    pair = make_pair(version)
    here = pair.here
    works = [Workload(here, seed=n, keys=range(100 * n, 100 * n + 20)) for n in (1, 2)]
    enough = threading.Event()
    seen: set[str] = set()

    def write(work: Workload) -> None:
        while not enough.is_set():
            work.run()
        work.settle()

    moments = random.Random(1)
    with ThreadPoolExecutor(len(works)) as sessions:
        try:
            writing = [sessions.submit(write, work) for work in works]
            for _ in range(4):
                run = here.start()
                enough.wait(moments.uniform(0.2, 2.0))
                seen.update(pair.replicating())
                run.kill9()
        finally:
            enough.set()
        for written in writing:
            written.result()
    here.start()
    topics = here.check()
    assert any(c.value["prepared"] for c in topics.commits)
    seen.update(pair.replicating())
    assert seen == {"walreceiver"}, "nothing of the connector replicates from the primary"


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_from_standby_prepared_rows_are_in_kafka_before_their_outcome(version: str, make_pair: MakePair) -> None:
    pair = make_pair(version)
    here = pair.here
    work = Workload(here, seed=2)
    work.running = run = here.start()
    gid = work.prepare(open_it=True)
    parked = work.prepare(keyless=True)
    rolled_back = work.prepare(open_it=True)
    pair.standby.restart()
    run.kill9()
    work.running = here.start()
    work.plain()
    for each in (gid, parked):
        work.commit(each)
    work.rollback(rolled_back)
    topics = here.check()
    assert {gid_of(s) for s in topics.rows} & {gid, parked, rolled_back} == {gid, parked}


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_from_standby_a_member_of_a_group(version: str, connector: Maker, make_pair: MakePair) -> None:
    """The other member's source is a primary. The coordinator is away while the standby does not
    replay, while the connector is killed, and while the standby is promoted.
    """
    pairs: list[Pair] = []

    def west(**options: Any) -> Installation:
        pairs.append(make_pair(version, **options))
        return pairs[0].here

    group = Group(connector, west=west)
    (pair,) = pairs
    for here in group.members.values():
        here.start()
    group.commit("first", 1)
    wait_until(lambda: group.shown() == group.both("1:first"), what="the first transfer is in the cut")

    ask(pair.standby, "SELECT pg_wal_replay_pause()::text")
    group.commit("second", 2)
    until = time.monotonic() + 3
    while time.monotonic() < until:  # frontiers are asked for five times a second
        group.east.caught_up()
        assert group.shown() == group.both("1:first"), "the standby has nothing of the second"
    ask(pair.standby, "SELECT pg_wal_replay_resume()::text")
    wait_until(lambda: group.shown() == group.both("1:first", "1:second"), what="it has replayed")

    east, _ = group.prepare("third", 3)
    gid = group.west.ask("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()")
    east.tpc_commit()
    wait_until(lambda: "1:third" in in_doubt(group.frontier(group.west)), what="the standby's member has it in doubt")
    group.west.runs[-1].kill9()
    pair.wait_for_replay()
    pair.fail_over()
    group.west.start()
    group.east.sql("INSERT INTO account VALUES (4, 1, 'plain')")
    group.east.caught_up()
    assert group.shown() == group.both("1:first", "1:second")
    group.west.sql(f"COMMIT PREPARED '{gid}'")
    wait_until(lambda: group.shown() == group.both("1:first", "1:second", "1:third"), what="all is whole")
    for here in group.members.values():
        here.check()


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_from_standby_that_is_promoted_under_load(version: str, make_pair: MakePair) -> None:
    """The connector goes on with the same configuration and the same process; what is published is
    what the promoted server has.
    """
    pair = make_pair(version)
    here = pair.here
    work = Workload(here, seed=3)
    work.running = run = here.start()
    work.run()
    work.settle()
    gids = work.four_in_doubt()
    pair.wait_for_replay()
    other = Workload(here, seed=4, keys=range(500, 520))
    enough = threading.Event()

    def write() -> None:
        with suppress(psycopg.Error):  # the primary dies under it
            while not enough.is_set():
                other.plain()

    with ThreadPoolExecutor(1) as sessions:
        writing = sessions.submit(write)
        try:
            here.tail("account").wait_for(lambda s: s.value is not None and s.key["id"] >= 500)
            pair.fail_over()
        finally:
            enough.set()
        writing.result()
    work.connect()
    work.plain()
    work.check_promoted(gids)
    assert not run.dead, "the same process has gone on"
    assert "the standby went from timeline 1 to 2" in run.said()
    run.kill9()
    work.running = here.start()
    work.check()


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_from_standby_rows_are_read_by_the_key_of_their_position(version: str, make_pair: MakePair) -> None:
    """Event triggers are made on the primary, and are there behind the promotion."""
    made: list[Pair] = []

    def make(**options: Any) -> Installation:
        made.append(make_pair(version, **{**options, "init": False}))
        return made[0].here

    pairs = Pairs(make, before_init=lambda: made[0].wait_for_replay())  # noqa: PLW0108  (it is made later)
    (pair,), here = made, pairs.here
    with here.carrying():
        here.sql(DROP)
        here.caught_up()
    here.sql(*pairs.two_of_one_key(), MAKE)
    pairs.settle()
    assert "triggers    each change of a table is told" in here.twofold("status").stdout
    here.sql(DROP)
    pair.wait_for_replay()
    pair.fail_over()
    here.sql(*pairs.two_of_one_key(), MAKE)
    pairs.settle()
    assert "triggers    each change of a table is told" in here.twofold("status").stdout


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_from_standby_whose_slot_is_lost_in_a_conflict(
    version: str, make_pair: MakePair, own_postgres: Callable[..., PostgresServer]
) -> None:
    """The refusal names the conflict, and its repair works."""
    pair = make_pair(version)
    here = pair.here
    run = here.start()
    here.sql("INSERT INTO account VALUES (1, 1, 'streamed')")
    here.caught_up()
    run.kill9()
    pair.standby.stop()
    pair.standby = _again(pair.standby, hot_standby_feedback="off")
    try:
        catalog_xmin = "SELECT catalog_xmin::text FROM pg_replication_slots WHERE slot_name = 'standby'"
        wait_until(lambda: ask(pair.primary, catalog_xmin) is None, 90, "the primary knows no xmin of the standby")
        for n in range(3):
            here.sql(f"CREATE TABLE gone{n} (id int)", f"DROP TABLE gone{n}")
        here.sql("VACUUM pg_class", "VACUUM pg_attribute", "VACUUM pg_type")
        lost = f"SELECT wal_status FROM pg_replication_slots WHERE slot_name = '{here.prefix}'"
        wait_until(lambda: ask(pair.standby, lost) == "lost", 90, "the slot is lost")
        examined = here.twofold("doctor")
        assert "ALTER SYSTEM SET hot_standby_feedback = on;" in examined.stdout
        error = here.refusal()
        assert type(error) is Refused
        assert "the primary has removed rows of the catalog that decoding needs" in str(error)
        assert "ALTER SYSTEM SET hot_standby_feedback = on" in error.repair
        pair.standby.stop()
        pair.standby = _again(pair.standby, hot_standby_feedback="on")
        _start_over(here)
    finally:
        pair.standby.stop()


@pytest.mark.slow
@ON_18
def test_from_standby_that_is_gone_another_one_starts_over(
    version: str, make_pair: MakePair, open_folder: Path
) -> None:
    """Its slot is gone with it: `run` asks for `init`, and `init` refuses with the repair."""
    pair = make_pair(version)
    here = pair.here
    run = here.start()
    here.sql("INSERT INTO account VALUES (1, 1, 'streamed')")
    here.caught_up()
    run.kill9()
    pair.standby.kill()
    other = standby_of(pair.primary, open_folder / "other", slot="other")
    here.at_end(other.stop)
    here.configure({"source": {"dsn": other.dsn()}})
    lost = here.start(ready=False)
    assert lost.ended() == 5
    assert f"slot {here.prefix} no longer exists" in lost.said()
    done = here.init()
    assert done.returncode == 5
    assert f"slot {here.prefix} no longer exists" in done.stderr
    assert "`twofold reset`, then `twofold init` with another kafka.prefix" in done.stderr
    _start_over(here)


def _start_over(here: Installation) -> None:
    """The last repair: reset, then init under another prefix; the rows are loaded again."""
    ended = here.twofold("reset", "--yes")
    assert f"removed: publication {here.prefix}" in ended.stdout, ended.stderr
    here.configure({"kafka": {"prefix": f"{here.prefix}_2"}})
    here.twofold("init", ok=True)
    here.start()
    tail = here.reader.tail([f"{here.prefix}_2.public.account"])
    here.at_end(tail.close)
    assert tail.wait_for(lambda s: s.value["after"]["id"] == 1 and s.value["op"] == "r")


def _again(standby: PostgresServer, **settings: str) -> PostgresServer:
    """The same server, started with other settings."""
    made = PostgresServer(
        standby.folder, version=str(standby.version), port=standby.port, settings={**standby._settings, **settings}
    )
    made.start()
    return made


@pytest.mark.parametrize("version", VERSIONS)
def test_from_standby_a_load_is_merged_with_the_stream(version: str, make_pair: MakePair) -> None:
    """Loads read the primary; the stream beside them is the standby's."""
    pair = make_pair(version, init=False, backfill={"chunk_rows": 50})
    here = pair.here
    here.sql("INSERT INTO account SELECT n, 1, 'before' FROM generate_series(1000, 1999) n", "TRUNCATE ledger")
    pair.wait_for_replay()
    here.twofold("init", ok=True)
    here.prepare("across", "UPDATE account SET version = 2 WHERE id = 1000")
    run = here.start()
    run.wait_for("backfill of public.account waits for prepared transaction 'across'")
    here.sql("COMMIT PREPARED 'across'")
    enough = threading.Event()

    def write() -> None:
        while not enough.is_set():
            account = random.randint(1001, 1999)
            update = f"UPDATE account SET version = version + 1 WHERE id = {account}"
            here.sql(update)
            here.prepare("beside", update)
            here.sql("COMMIT PREPARED 'beside'")

    with ThreadPoolExecutor(1) as sessions:
        writing = sessions.submit(write)
        try:
            wait_until(lambda: _is_loaded(here), 120, "the table is loaded")
        finally:
            enough.set()
        writing.result()
    here.caught_up()
    with psycopg.connect(here.conninfo) as session:
        wanted: dict[int, int] = dict(session.execute("SELECT id, version FROM account").fetchall())
    found: dict[int, int] = {}
    for seen in here.read("account"):
        if seen.value is not None and seen.value["after"] is not None:
            found[seen.key["id"]] = seen.value["after"]["version"]
    assert found == wanted
    assert set(pair.replicating()) == {"walreceiver"}


def _is_loaded(here: Installation) -> bool:
    pins = {s.key: s.value for s in here.reader.read([f"{here.prefix}.progress"]) if "/table/" in s.key}
    return bool(pins) and all(pin["backfill"] == "ready" for pin in pins.values())


@pytest.mark.parametrize("version", VERSIONS)
def test_from_standby_doctor_and_init_name_what_is_missing(version: str, make_pair: MakePair) -> None:
    """And with each remedy applied, `init` succeeds."""
    pair = make_pair(version, init=False, source={"failover": True})
    here = pair.here
    with ExitStack() as ending:
        pair.standby.stop()
        poor = _again(pair.standby, hot_standby_feedback="off", primary_slot_name="")
        ending.callback(poor.stop)
        pair.primary.stop()
        low = _again(pair.primary, wal_level="replica")
        ending.callback(low.stop)
        said = here.twofold("doctor").stdout
        for words in (
            "ALTER SYSTEM SET hot_standby_feedback = on;",
            "SELECT pg_create_physical_replication_slot('twofold_standby', true); -- on the primary",
            "ALTER SYSTEM SET primary_slot_name = 'twofold_standby'; -- on the standby",
            "wal_level of the primary is not logical",
            "source.failover = false",
        ):
            assert words in said, said
        done = here.init()
        assert done.returncode == 3
        for words in (
            "hot_standby_feedback is off on the standby",
            "wal_level of the primary is not logical",
            "source.failover is on, and the server is a standby",
        ):
            assert words in done.stderr
        assert here.prefix not in "".join(here.reader.topics(here.prefix)), "nothing was made"
        low.stop()
        rich = _again(pair.primary)
        ending.callback(rich.stop)
        poor.stop()
        ending.callback(_again(pair.standby).stop)
        here.configure({"source": {"failover": False}})
        here.twofold("init", ok=True)


@pytest.mark.slow
@ON_18
def test_from_standby_a_load_without_the_primary_is_refused(version: str, make_pair: MakePair) -> None:
    """And `cancel` goes on without the rows, as the repair says."""
    pair = make_pair(version, init=False, primary_dsn=False)
    here = pair.here
    here.sql("INSERT INTO account VALUES (1, 1, 'before')", "TRUNCATE ledger")
    pair.wait_for_replay()
    done = here.init()
    assert done.returncode == 3
    assert "set source.primary_dsn to the connection string of the primary, or source.backfill = false" in done.stderr
    here.configure({"source": {"backfill": False}})
    done = here.init()
    assert done.returncode == 3
    assert f'on the primary, CREATE PUBLICATION "{here.prefix}" FOR TABLE' in done.stderr, done.stderr
    tables = ", ".join(connector_ledger.TABLES)
    here.sql(f'CREATE PUBLICATION "{here.prefix}" FOR TABLE {tables}')
    pair.wait_for_replay()
    with ThreadPoolExecutor(1) as sessions:
        making = sessions.submit(in_a_process, here.command("init"))
        while not making.done():
            here.sql("SELECT pg_log_standby_snapshot()")
        done = making.result()
    assert done.returncode == 0, done.stderr
    assert "SELECT pg_log_standby_snapshot();" in done.stdout
    run = here.start()
    here.sql("INSERT INTO account VALUES (2, 1, 'streamed')")
    here.caught_up()
    here.check()
    here.twofold("backfill", "start", "public.account", ok=True)
    assert run.ended() == 5
    assert "table public.account is to be loaded" in run.said()
    assert "twofold backfill cancel public.account" in run.said()
    here.twofold("backfill", "cancel", "public.account", ok=True)
    here.start()
    here.sql("INSERT INTO account VALUES (3, 1, 'streamed again')")
    here.caught_up()


def in_a_process(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@ON_18
def test_from_standby_what_it_can_never_do_is_refused(version: str, make_pair: MakePair) -> None:
    pair = make_pair(version)
    here = pair.here
    here.configure({"prepared": {"synchronous": True}})
    error = here.refusal()
    assert type(error) is SetupError
    assert "prepared.synchronous is on, and the server is a standby" in str(error)
    here.configure({"prepared": {"synchronous": False}, "source": {"primary_dsn": pair.standby.dsn()}})
    listed = here.twofold("prepared", "list")
    assert listed.returncode == 3
    assert "which is a standby too" in listed.stderr
    status = here.twofold("status")
    assert "in doubt    not known: source.primary_dsn leads to" in status.stdout, status.stderr
