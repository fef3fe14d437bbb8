"""The mirror of a source group in PostgreSQL and Delta: whoever reads meanwhile sees global cuts,
wherever the mirror's process ends.
"""

from __future__ import annotations

import datetime as dt
import os
import random
import shutil
import signal
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import psycopg
import pytest
from pyspark.sql import SparkSession

from fixtures.connector import Installation, Maker, wait_until
from fixtures.stack import fresh_prefix
from helpers.spark.cutting_front import CuttingFront, Lost
from helpers.spark.group_lake import (
    Coordinator,
    GroupLake,
    assert_consecutive,
    find_whole,
    read_snapshot,
    start_members,
    transfer,
    write_lines,
)
from helpers.spark.group_process import publishes, running, runs_to_the_end
from helpers.spark.verified import verify_members
from helpers.worker import Worker
from twofold_spark.errors import Refused, ServerAway
from twofold_spark.readers.cut_tables import read_cut
from twofold_spark.sinks.cuts import GlobalCut
from twofold_spark.sinks.delta_sink import DeltaPlace
from twofold_spark.sinks.delta_tables import DeltaTables
from twofold_spark.sinks.jdbc_sink import JdbcSink
from twofold_spark.sinks.sink_choice import SinkChoice

pytestmark = pytest.mark.timeout(1800)


@pytest.fixture
def banks(connector: Maker) -> dict[str, Installation]:
    return start_members(connector)


@pytest.fixture(params=["jdbc"])
def group(
    spark: SparkSession, banks: dict[str, Installation], tmp_path: Path, request: pytest.FixtureRequest
) -> GroupLake:
    """In PostgreSQL, if a test names no other sinks."""
    where = str(tmp_path / "delta") if request.param == "delta" else request.getfixturevalue("database")
    return GroupLake(spark, tmp_path, banks, choice=SinkChoice(request.param, where))


class Auditor(Worker):
    """Reads snapshot after snapshot of a PostgreSQL, by plain SQL, as long as the body runs."""

    def __init__(self, conninfo: str) -> None:
        super().__init__("auditor")
        self._conninfo = conninfo
        self.cuts: list[GlobalCut] = []

    def work(self) -> None:
        while not self._stopped.wait(0.02):
            self._look()

    def _look(self) -> None:
        try:
            cut, transfers = read_snapshot(self._conninfo)
        except psycopg.errors.UndefinedTable:  # the job has not made it yet
            return
        if not cut.number:  # none is published
            return
        find_whole(transfers, cut)
        last = self.cuts[-1] if self.cuts else None
        if last is None or last.number != cut.number:
            self.cuts.append(cut)
        if last is not None:
            assert cut.number >= last.number
            assert all(part.sequence >= last.members[prefix].sequence for prefix, part in cut.members.items())


@pytest.mark.slow
def test_whoever_reads_postgresql_sees_whole_transfers_though_the_driver_dies(
    group: GroupLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It dies when all members have published their parts, before the global cut. Then the
    checkpoint is lost. Batches are small, so that a backlog is approached in several global cuts.
    """
    group.kept = {"batch_rows": 100}
    coordinator = Coordinator(group.members, pause_s=0.1)
    coordinator.start()
    with Auditor(group.choice.address) as auditor:
        try:
            wait_until(lambda: _publishes(group, "checkpoint"), 200, "a global cut")
            with monkeypatch.context() as dying:
                dying.setattr(JdbcSink, "merge_staged", _die)
                wait_until(lambda: _dies(group), 200, "it dies")
        finally:
            coordinator.stop()
        for here in group.members.values():
            here.caught_up()
        wait_until(lambda: _publishes(group, "lost"), 200, "the next global cut")
        group.runs_until_it_shows(*coordinator.committed)
    assert_consecutive(group)
    assert auditor.cuts
    assert max(batch.stages["publish"] for batch in group.applied) > 0


@pytest.mark.slow
@pytest.mark.parametrize("group", ["delta"], indirect=True)
def test_in_delta_members_may_be_ahead_of_the_global_cut_that_is_read(
    group: GroupLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It dies when all members have published their parts, before the row. Then the checkpoint is
    lost. Maintenance comes with each cut, and nothing is kept for longer than it must.
    """
    transfer(group.members, "one", 10)
    group.runs_until_it_shows("one")
    last = group.last_cut()
    transfer(group.members, "two", 20)
    for here in group.members.values():
        here.caught_up()
    with monkeypatch.context() as dying:
        dying.setattr(DeltaPlace, "publish", _die)
        wait_until(lambda: _dies(group), 200, "it dies")
    tables = {prefix: DeltaTables(group.spark, group.choice.address).of_member(prefix) for prefix in group.members}
    applied = {prefix: each.read_state("public.transfer")[1] for prefix, each in tables.items()}
    assert any(applied[prefix] > last.members[prefix].sequence for prefix in applied), "merged, and no row names it"
    assert (group.last_cut(), group.assert_whole()) == (last, {"one"})

    group.kept = {"maintain_every": 1, "keep_cuts": dt.timedelta(0)}
    transfer(group.members, "three", 30)
    group.run("lost")
    group.runs_until_it_shows("one", "two", "three")
    assert_consecutive(group)


@pytest.mark.slow
@pytest.mark.parametrize("group", ["delta"], indirect=True)
def test_every_global_cut_in_delta_is_whole_while_transfers_go_on(group: GroupLake) -> None:
    coordinator = Coordinator(group.members, pause_s=0.2)
    coordinator.start()
    try:
        wait_until(lambda: _publishes(group, "checkpoint") and len(group.published) > 3, 400, "four global cuts")
    finally:
        coordinator.stop()
    for here in group.members.values():
        here.caught_up()
    group.runs_until_it_shows(*coordinator.committed)
    assert group.assert_all_whole(coordinator.places) > 20


@pytest.mark.slow
def test_whoever_reads_postgresql_sees_whole_transfers_though_the_process_is_killed(group: GroupLake) -> None:
    """Before its one transaction, while rows are staged. Before its COMMIT, when all tables have
    changed in it. Behind the COMMIT, before the stream's checkpoint. And at any instant, after
    which the checkpoint is lost.
    """
    write_lines(group)
    transfer(group.members, "one", 10)
    group.runs_until_it_shows("one")
    coordinator, rng = Coordinator(group.members, pause_s=0.2), random.Random(3)
    coordinator.committed.add("one")
    coordinator.start()
    with Auditor(group.choice.address) as auditor:
        try:
            journal = f'"{max(group.members)}_public".journal'
            assert _killed_while_it_waits(group, f"LOCK TABLE {journal} IN ACCESS EXCLUSIVE MODE") == 0
            assert _killed_while_it_waits(group, "LOCK TABLE twofold.cuts IN SHARE MODE") == 0
            oldest = "SELECT FROM twofold.cuts ORDER BY number LIMIT 1 FOR UPDATE"
            assert _killed_while_it_waits(group, oldest, "--maintain-every", "1", "--keep-cuts", "0") == 1
            assert _last_file(group, "offsets") > _last_file(group, "commits"), "Spark will give it the batch again"
            before = group.last_cut()
            with running(group, "--trigger", "interval=100ms", "--batch-rows", "100") as process:
                publishes(process, 2)
                assert group.last_cut().number >= before.number + 2
                time.sleep(rng.random())  # any instant of a round will do
                os.killpg(process.pid, signal.SIGKILL)
            shutil.rmtree(group.folder / "warehouse" / "checkpoints")
        finally:
            coordinator.stop()
        runs_to_the_end(group, within_s=200)
        group.runs_until_it_shows(*coordinator.committed)
    assert len(auditor.cuts) > 3
    assert _numbers(group) == [*range(1, group.last_cut().number + 1)]
    for prefix in group.members:
        lines = {(name, 1) for name in coordinator.committed}
        assert {*_read(group, f'SELECT line, _copies FROM "{prefix}_public".journal')} == lines


@pytest.mark.slow
def test_a_connection_that_ends_at_the_commit_doubles_and_loses_nothing(group: GroupLake) -> None:
    """Before the commit and behind it. The job cannot know what became of its transaction. The next
    start reads it from the row. A keyless table would count twice. In the end `verify` finds each
    member, by its schemas, equal to its source.
    """
    transfer(group.members, "first", 10)
    group.runs_until_it_shows("first")
    shown = ["first"]
    for lost in get_args(Lost):
        before = group.last_cut().number
        for here in group.members.values():
            here.sql(f"INSERT INTO journal VALUES ('{lost}')")
        transfer(group.members, f"lost: {lost}", 20)
        for here in group.members.values():
            here.caught_up()
        with CuttingFront(group.choice.address, b"INSERT INTO twofold.cuts", lost) as front:
            behind_it = replace(group, choice=SinkChoice("jdbc", front.conninfo))
            wait_until(partial(_loses_its_connection, behind_it), 200, "its connection is cut off")
            assert front.has_cut
        assert group.last_cut().number == before + (lost == "its answer")
        seen = group.assert_whole()
        assert {*shown} <= seen
        assert lost == "its answer" or seen == {*shown}
        transfer(group.members, f"after: {lost}", 30)
        shown += [f"lost: {lost}", f"after: {lost}"]
        group.runs_until_it_shows(*shown)
    assert _numbers(group) == [*range(1, group.last_cut().number + 1)]
    with psycopg.connect(group.choice.address) as connection:
        for prefix in group.members:
            lines = connection.execute(f'SELECT line, _copies FROM "{prefix}_public".journal ORDER BY line').fetchall()
            assert lines == [(lost, 1) for lost in sorted(get_args(Lost))]
    _assert_verified(group, rows=len(shown))


@pytest.mark.parametrize("group", ["jdbc", pytest.param("delta", marks=pytest.mark.slow)], indirect=True)
def test_members_come_and_go_and_strangers_are_refused(group: GroupLake, connector: Maker) -> None:
    """The connectors' group stays: a mirror of some of the members is one of these."""
    east, west = group.members.values()
    transfer(group.members, "one", 10)
    group.runs_until_it_shows("one")
    if group.choice.name == "jdbc":
        with read_cut(group.spark, reader=group.reader) as cut:
            assert [cut[f"{each.prefix}.public.transfer"].count() for each in (east, west)] == [1, 1]
    alone = group.with_members({east.prefix: east})
    east.sql("INSERT INTO transfer VALUES ('plain', 1, 0)")
    east.caught_up()

    def left() -> bool:
        alone.run()
        return bool(alone.published) and alone.transfers() == {east.prefix: {"one": 10, "plain": 0}}

    wait_until(left, 120, "the cut names the east alone")
    transfer(group.members, "two", 20)
    again = group.with_members(group.members)

    def is_back() -> bool:
        again.run()
        return bool(again.published) and again.transfers()[east.prefix].keys() >= {"two"}

    wait_until(is_back, 180, "both are in the global cut again")
    shown = again.transfers()
    assert shown == {east.prefix: {"one": 10, "plain": 0, "two": 20}, west.prefix: {"one": -10, "two": -20}}

    stranger = connector(name=fresh_prefix())
    stranger.start()
    stranger.caught_up()
    strangers = group.with_members({stranger.prefix: stranger})
    with pytest.raises(Refused, match=r"holds the mirror of a source group \(.*\), not of a source group \("):
        strangers.run()


def _assert_verified(group: GroupLake, *, rows: int) -> None:
    """`verify` compares each member with its source."""
    for _, compared in verify_members(group):
        transfer = compared["public.transfer"]
        assert (transfer.rows, transfer.buckets) == (rows, 0)


def _killed_while_it_waits(group: GroupLake, lock: str, *arguments: str) -> int:
    """Kill the process when it waits for what the statement locks. Return how many global cuts it
    has published.
    """
    before = group.last_cut().number
    with psycopg.connect(group.choice.address) as held:
        held.execute(lock.encode())
        waiting = f"SELECT FROM pg_stat_activity WHERE {held.info.backend_pid} = ANY(pg_blocking_pids(pid))"
        with running(group, "--trigger", "interval=100ms", *arguments) as process:
            wait_until(lambda: _read(group, waiting), 200, f"the process waits: {lock}")
            os.killpg(process.pid, signal.SIGKILL)
            return group.last_cut().number - before


def _last_file(group: GroupLake, kind: str) -> int:
    """The number of the last micro-batch of which Spark's checkpoint has this."""
    found = (group.folder / "warehouse" / "checkpoints").glob(f"**/{kind}/*")
    return max((int(file.name) for file in found if file.name.isdigit()), default=-1)


def _numbers(group: GroupLake) -> list[int]:
    return [row[0] for row in _read(group, "SELECT DISTINCT number FROM twofold.cuts ORDER BY number")]


def _read(group: GroupLake, question: str) -> list[Any]:
    with psycopg.connect(group.choice.address) as connection:
        return connection.execute(question.encode()).fetchall()


def _loses_its_connection(group: GroupLake) -> bool:
    try:
        group.run()
    except ServerAway:
        return True
    return False


def _publishes(group: GroupLake, checkpoint: str) -> bool:
    before = len(group.published)
    group.run(checkpoint)
    return len(group.published) > before


def _dies(group: GroupLake) -> bool:
    try:
        group.run()
    except ZeroDivisionError:
        return True
    return False


def _die(*_: object) -> None:
    raise ZeroDivisionError("it dies")
