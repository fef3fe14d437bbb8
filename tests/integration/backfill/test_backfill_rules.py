"""The rules of the backfill against real servers, each in the one situation that needs it; in the
slow forms the rule is left out, and the topics end wrong.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import pytest

from fixtures.backfill import Between, chunks, ready, until_chunks
from fixtures.connector import Installation, Maker, wait_until
from fixtures.stack import fresh_database, fresh_prefix
from helpers.connector.backfill_traffic import fold, newest_by_offset
from twofold.inspect.status_report import BackfillStatus, backfills, read_progress
from twofold.lives.chunk_rule import ChangeMemory, DroppedRows, Snapshot
from twofold.loads.loader import BARRIER_PAUSE_S, Loader
from twofold.stack import PostgresServer
from twofold.tables.table_version import TableVersion

TABLES = (
    "CREATE TABLE account (id int PRIMARY KEY, version int NOT NULL, note text)",
    "CREATE TABLE item (id int PRIMARY KEY, version int NOT NULL, big text)",
    "ALTER TABLE item ALTER big SET STORAGE EXTERNAL",
    "INSERT INTO item SELECT n * 10, 0, repeat('old ', 1000) FROM generate_series(1, 200) n",
)
ROWS = "SELECT id, version, big FROM item"


def waiting_loads(here: Installation) -> tuple[BackfillStatus, ...]:
    config = here.config
    return backfills(config, read_progress(config))


@pytest.fixture
def make(connector: Maker) -> Callable[..., Installation]:
    """Two hundred rows with TOASTed values, in chunks of a hundred."""

    def made(conninfo: str = "") -> Installation:
        here = connector(
            conninfo=conninfo,
            init=False,
            source={"tables": ["public.account", "public.item"]},
            backfill={"chunk_rows": 100, "notice": 0.3},
            prepared={"open_within": 0},
        )
        here.sql(*TABLES)
        return here

    return made


def wrong(here: Installation) -> set[int]:
    """The keys of which a consumer that folds by key, or one that keeps the newest offset, has not
    the source's row.
    """
    topics = here.everything()
    with psycopg.connect(here.conninfo) as connection:
        wanted = {row[0]: row for row in connection.execute(ROWS)}
    topic = here.table("item")
    newest, folded = newest_by_offset(topics.rows, topic), fold(topics.rows, topics.commits, topic)
    assert len(wanted) > 150
    return {
        key
        for key in newest.keys() | folded.keys() | wanted.keys()
        if key not in wanted or newest.get(key) != wanted[key][1] or folded.get(key) != wanted[key]
    }


as_it_is = ChangeMemory.judge


def no_drop(_memory: ChangeMemory, _snapshot: object) -> DroppedRows:
    return DroppedRows(everything=False, keys=frozenset(), again=frozenset())


def not_again(memory: ChangeMemory, snapshot: Snapshot) -> DroppedRows:
    drop = as_it_is(memory, snapshot)
    return DroppedRows(drop.everything, drop.keys, frozenset())


@contextmanager
def committed_and_not_visible(here: Installation, *statements: str) -> Iterator[None]:
    """A transaction whose commit is in the write-ahead log, and in the stream, and that no snapshot
    sees until this ends: it waits for a standby that does not exist.
    """
    with psycopg.connect(here.conninfo, autocommit=True) as connection:

        def commit() -> None:
            connection.execute("SET synchronous_commit = on; " + "; ".join(statements))

        waiting = threading.Thread(target=commit)
        waiting.start()
        try:
            yield
        finally:
            here.sql(f"SELECT pg_cancel_backend({connection.info.backend_pid})")
            waiting.join()


@pytest.mark.parametrize(
    "judge", [as_it_is, *(pytest.param(mutant, marks=pytest.mark.slow) for mutant in (no_drop, not_again))]
)
def test_what_a_snapshot_does_not_see_is_newer(
    judge: Callable[..., DroppedRows],
    make: Callable[..., Installation],
    own_postgres: Callable[..., PostgresServer],
    between: Between,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Published before the chunk is read, and not visible to it: positions would not tell, xids do.
    Where the change left a TOASTed value out, only the table has it, and it is read again.
    """
    monkeypatch.setattr(ChangeMemory, "judge", judge)
    server = own_postgres(settings={"synchronous_standby_names": "nobody", "synchronous_commit": "local"})
    with fresh_database(server, f"db_{fresh_prefix()}") as conninfo:
        here = make(conninfo)
        here.initialise()
        with here.carrying():
            until_chunks(here, 1)
            tail = here.tail("item")
            whole = "UPDATE item SET version = 1, big = repeat('new ', 1000) WHERE id = 1500"
            part = "UPDATE item SET version = 1 WHERE id = 1600"
            with committed_and_not_visible(here, f"BEGIN; {whole}; {part}; COMMIT"):
                tail.wait_for(lambda s: s.key["id"] == 1600)
                assert here.ask("SELECT version FROM item WHERE id = 1600") == 0
                went_on = time.monotonic()
                between.further(10_000)
                until_chunks(here, 4 if judge is as_it_is else 2)
                assert here.ask("SELECT version FROM item WHERE id = 1600") == 0
            assert chunks(here) < 4 + (time.monotonic() - went_on) / BARRIER_PAUSE_S, "read again at leisure"
            ready(here)
            here.caught_up()
        assert wrong(here) == ({1500, 1600} if judge is no_drop else {1600} if judge is not_again else set())
        here.close()


def never_in_backfill(table: TableVersion) -> None:
    assert table.committed


@pytest.mark.core
@pytest.mark.parametrize("parked", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_prepared_transaction_comes_behind_the_chunks(
    parked: bool,
    make: Callable[..., Installation],
    between: Between,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its rows would lie before those of a chunk that was read while it was in doubt."""
    if not parked:
        monkeypatch.setattr(TableVersion, "park_reason", property(never_in_backfill))
    here = make()
    here.initialise()
    with here.carrying():
        until_chunks(here, 1)
        here.prepare("p", "UPDATE item SET version = 1 WHERE id IN (20, 1500)", "DELETE FROM item WHERE id = 1600")
        between.further(10_000)
        ready(here)
        wait_until(lambda: here.status().in_doubt[0].in_kafka == ("parked" if parked else "open"))
        here.sql("COMMIT PREPARED 'p'")
        here.caught_up()
    assert wrong(here) == (set() if parked else {1500, 1600})


@pytest.mark.parametrize("barrier", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_table_that_joins_with_a_transaction_in_doubt(
    barrier: bool,
    make: Callable[..., Installation],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Prepared before it joined, committed after: in neither the stream nor a naive copy. It is
    waited for, and named; one on another table, and a report, are not. Nothing else changes in the
    table.
    """
    if not barrier:
        monkeypatch.setattr(Loader, "_pass_barrier", lambda *_: True)
    here = make()
    here.sql("CREATE TABLE late (id int PRIMARY KEY)", "CREATE TABLE other (id int PRIMARY KEY)", "TRUNCATE item")
    here.sql("INSERT INTO late VALUES (1)")
    here.initialise()
    here.prepare("forgotten", "INSERT INTO other VALUES (1)")
    here.prepare("on late", "INSERT INTO late VALUES (2)")
    with here.carrying(), psycopg.connect(here.conninfo) as report:
        report.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        report.execute("SELECT FROM late")
        here.sql(f"ALTER PUBLICATION {here.prefix} ADD TABLE late")
        if barrier:
            (waiting,) = wait_until(lambda: waiting_loads(here), what="it is noticed")
            assert ["'on late'" in holder for holder in waiting.waits_for] == [True]
        else:
            wait_until(lambda: here.table("late") in here.reader.topics(here.prefix) and chunks(here))
        here.sql("COMMIT PREPARED 'on late'")
        ready(here)
        here.caught_up()
    assert {s.key["id"] for s in here.read("late")} == ({1, 2} if barrier else {1})


def test_a_transaction_that_is_prepared_while_it_is_waited_for(
    make: Callable[..., Installation], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no process any more, and is the same one: what it wrote before the table joined is in
    neither the stream nor a copy that does not wait for its outcome.
    """
    looks: list[bool] = []
    look_once = Loader._pass_barrier

    def looked(loader: Loader) -> bool:
        through = look_once(loader)
        if loader._load.table == "late":
            looks.append(through)
        return through

    monkeypatch.setattr(Loader, "_pass_barrier", looked)
    here = make()
    here.sql("CREATE TABLE late (id int PRIMARY KEY)", "INSERT INTO late VALUES (1)")
    here.initialise()
    with here.carrying(), psycopg.connect(here.conninfo, autocommit=True) as writer:
        writer.execute("BEGIN")
        writer.execute("INSERT INTO late VALUES (2)")
        here.sql(f"ALTER PUBLICATION {here.prefix} ADD TABLE late")
        wait_until(lambda: looks, what="the barrier has begun")
        writer.execute("PREPARE TRANSACTION 'late'")
        before = len(looks)
        wait_until(lambda: len(looks) > before + 1 or looks[-1], what="a status that began behind the PREPARE")
        (waiting,) = (each for each in waiting_loads(here) if each.table == "public.late")
        assert ["'late'" in holder for holder in waiting.waits_for] == [True]
        writer.execute("COMMIT PREPARED 'late'")
        ready(here)
        here.caught_up()
        assert looks == [False] * (len(looks) - 1) + [True]
    assert {s.key["id"] for s in here.read("late")} == {1, 2}


def test_keys_that_change_across_the_cursor(make: Callable[..., Installation], between: Between) -> None:
    """From ahead of it to behind, so that its TOASTed value would be read by nobody; from behind to
    ahead; and rows that come and go on both sides.
    """
    here = make()
    here.initialise()
    with here.carrying():
        until_chunks(here, 1)
        here.sql(
            "UPDATE item SET id = 555 WHERE id = 1500",
            "UPDATE item SET id = 1555 WHERE id = 500",
            "UPDATE item SET id = 1556 WHERE id = 1510",
            "UPDATE item SET id = 556 WHERE id = 510",
            "UPDATE item SET version = 5 WHERE id IN (520, 1520, 555, 1555)",
            "DELETE FROM item WHERE id IN (530, 1530)",
            "INSERT INTO item VALUES (535, 1, repeat('x', 4000)), (1535, 1, repeat('x', 4000))",
        )
        between.further(10_000)
        ready(here)
        here.caught_up()
    assert wrong(here) == set()
