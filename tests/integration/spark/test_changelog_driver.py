"""The changelog as people start it: a process, kill -9 at any instant, and SIGTERM. Every committed
change is there once, in the order of its key, and nothing else."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import time
from collections import defaultdict

import pytest

from fixtures.spark import Lake
from helpers.spark.process import batches, finish, running
from helpers.spark.writer import Open, Writer, table
from helpers.worker import Worker

TABLES = ("accounts", "vault")
Change = tuple[str, int]
"""Its op, and a number that no other change has."""


class _Traffic(Worker):
    """Inserts, updates and deletes in transactions that commit or abort, some of them prepared,
    without a pause until `stop`; and what was committed, by key."""

    def __init__(self, writer: Writer) -> None:
        super().__init__("traffic")
        for name in TABLES:
            writer.table(table(name, {"id": "int8", "n": "int8"}))
        self.committed: dict[tuple[str, int], list[Change]] = defaultdict(list)
        self._writer = writer
        self._number = itertools.count(1)
        self._rng = random.Random(1)

    def work(self) -> None:
        while not self._stopped.wait(0.05):
            self._transaction()

    def _transaction(self) -> None:
        w, chance = self._writer, self._rng.random()
        if chance < 0.2:
            with w.abort() as tx:
                self._changes(tx)
        elif chance < 0.4:
            with w.prepare("prepared.00", "1_YQ==_Yg==") as tx:
                changes = self._changes(tx)
            if chance < 0.3:
                w.finish(tx, kind="prepared")
                self._note(changes)
            else:
                tx.producer.abort_transaction(10)
                tx.roll_back_model()
        else:
            with w.commit() as tx:
                changes = self._changes(tx)
            self._note(changes)

    def _changes(self, tx: Open) -> list[tuple[str, int, Change]]:
        found = []
        for _ in range(self._rng.randrange(1, 6)):
            name, key, number = self._rng.choice(TABLES), self._rng.randrange(20), next(self._number)
            there = key in self._writer.model[name]
            if there and self._rng.random() < 0.3:
                tx.delete(name, key, tombstone=True)
                found.append((name, key, ("d", 0)))
            else:
                tx.upsert(name, {"id": key, "n": number})
                found.append((name, key, ("u" if there else "c", number)))
        return found

    def _note(self, changes: list[tuple[str, int, Change]]) -> None:
        for name, key, change in changes:
            self.committed[name, key].append(change)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kills",
    [1, pytest.param(50, marks=pytest.mark.timeout(3600))],
)
def test_kill_9_loses_and_repeats_nothing_and_sigterm_ends_it_well(lake: Lake, kills: int) -> None:
    """After some of the kills the checkpoint is lost, after others no snapshot is left that says
    how far a table was."""
    traffic, rng = _Traffic(lake.writer), random.Random(3)
    with traffic:
        for number in range(1, kills + 1):
            with running(lake, "--batch-rows", "40", command="changelog") as process:
                batches(process, "changelog", rng.randrange(1, 4))
                time.sleep(rng.random())  # any instant of a turn will do
                os.killpg(process.pid, signal.SIGKILL)
            if number % 2:
                shutil.rmtree(lake.warehouse / "checkpoints", ignore_errors=True)
            if number % 5 == 0:
                _forget(lake)
        with running(lake, "--trigger", "interval=100ms", command="changelog") as process:
            batches(process, "changelog", 1)
            os.killpg(process.pid, signal.SIGTERM)  # Java too, as systemd does
            said = finish(process, within_s=60)
    assert "Traceback" not in said
    lake.changelog()
    assert _appended(lake) == traffic.committed
    print(f"{kills} kills, {sum(map(len, traffic.committed.values()))} changes")


def _forget(lake: Lake) -> None:
    in_an_hour = "timestamp_seconds(unix_seconds(now()) + 3600)"
    for name in TABLES:
        there = f"table => 'public_changelog.{name}'"
        call = f"CALL {lake.catalog}.system"
        lake.spark.sql(f"{call}.rewrite_data_files({there}, options => map('rewrite-all', 'true'))")
        lake.spark.sql(f"{call}.expire_snapshots({there}, older_than => {in_an_hour}, retain_last => 1)")


def _appended(lake: Lake) -> dict[tuple[str, int], list[Change]]:
    found = defaultdict(list)
    for name in TABLES:
        rows = lake.spark.table(f"{lake.catalog}.public_changelog.{name}").orderBy("partition", "offset").collect()
        for row in rows:
            image = row["after"] or row["before"]
            found[name, image["id"]].append((row["op"], image["n"] or 0))
    return found
