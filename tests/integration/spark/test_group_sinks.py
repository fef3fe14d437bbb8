"""The mirror of a source group in PostgreSQL: whoever reads meanwhile sees global cuts."""

from __future__ import annotations

import threading
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import SparkSession

from fixtures.connector import Installation, Maker, wait_until
from fixtures.stack import fresh_prefix
from helpers.spark.group_lake import Coordinator, GroupLake, find_whole, read_snapshot
from twofold_spark.sinks.global_cuts import GlobalCut
from twofold_spark.sinks.jdbc_group import JdbcGlobalCuts
from twofold_spark.sinks.sink_choice import SinkChoice

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def banks(connector: Maker) -> dict[str, Installation]:
    names = sorted(fresh_prefix() for _ in range(2))
    members = {name: connector(name=name, group={"name": names[0], "members": names}) for name in names}
    for here in members.values():
        here.start()
    return members


@pytest.fixture
def group(spark: SparkSession, banks: dict[str, Installation], database: str, tmp_path: Path) -> GroupLake:
    """In PostgreSQL."""
    return GroupLake(spark, tmp_path, banks, min(banks), choice=SinkChoice("jdbc", database))


class Auditor(threading.Thread):
    """Reads snapshot after snapshot of a PostgreSQL, by plain SQL, as long as the body runs."""

    def __init__(self, conninfo: str) -> None:
        super().__init__(name="auditor")
        self._conninfo = conninfo
        self._stopped = threading.Event()
        self.cuts: list[GlobalCut] = []
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._stopped.wait(0.02):
                self._look()
        except BaseException as error:  # the test raises it: a thread's exception is seen by nobody else
            self.failure = error

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

    def __enter__(self) -> Auditor:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self.join(60)
        if self.failure is not None:
            raise self.failure


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
                dying.setattr(JdbcGlobalCuts, "publish", _die)
                wait_until(lambda: _dies(group), 200, "it dies")
        finally:
            coordinator.stop()
        for here in group.members.values():
            here.caught_up()
        wait_until(lambda: _publishes(group, "lost"), 200, "the next global cut")
        group.runs_until_it_shows(*coordinator.committed)
    assert [each.number for each in group.published] == [*range(1, len(group.published) + 1)]
    assert auditor.cuts


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
