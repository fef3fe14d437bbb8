"""Two databases that are shards of one table, two connectors, one changelog: each member's changes
are in one table, each once and in its order.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType

from fixtures.connector import Installation, Maker
from helpers.connector.moving_accounts import MARK
from helpers.spark import interpreted, process
from helpers.spark.group_lake import GroupLake, start_members
from helpers.spark.group_process import running
from helpers.topic_changes import delete_records
from helpers.worker import Worker
from twofold_spark.errors import TableRefused
from twofold_spark.session import member_catalog
from twofold_spark.sinks.sharding import NO_SHARDING, Sharding

pytestmark = pytest.mark.timeout(900)
SHARDING = Sharding.parse("public.account")
Change = tuple[str, int, str | None]
"""Its op, the version of the row, and the global transaction."""


@pytest.fixture
def lake(spark: SparkSession, connector: Maker, tmp_path: Path) -> GroupLake:
    members = start_members(connector, source={"backfill": False})
    return GroupLake(spark, tmp_path, members, sharding=SHARDING)


class Moves(Worker):
    """Inserts, updates, deletes and moves accounts between the shards until `stop`.

    `told` is what each shard was told, by member and account.
    """

    def __init__(self, members: Mapping[str, Installation]) -> None:
        super().__init__("moves")
        self.told: dict[tuple[str, int], list[Change]] = defaultdict(list)
        self.moves = 0
        self._members = dict(members)
        self._random = random.Random(5)
        self._numbers = itertools.count(1)
        self._places: dict[int, str] = {}

    def work(self) -> None:
        while not self._stopped.wait(0.05):
            account, number = self._random.randrange(12), next(self._numbers)
            place = self._places.get(account)
            if place is None:
                place = self._places[account] = self._random.choice(list(self._members))
                self._members[place].sql(f"INSERT INTO account VALUES ({account}, {number}, 'a note')")
                self.told[place, account].append(("c", number, None))
            elif (chance := self._random.random()) < 0.2:
                self._members[self._places.pop(account)].sql(f"DELETE FROM account WHERE id = {account}")
                self.told[place, account].append(("d", 0, None))
            elif chance < 0.6:
                self._members[place].sql(f"UPDATE account SET version = {number} WHERE id = {account}")
                self.told[place, account].append(("u", number, None))
            else:
                self._move(account, number, place)

    def _move(self, account: int, number: int, old: str) -> None:
        """Delete the row in one shard and insert it in the other, in one global transaction."""
        new = next(prefix for prefix in self._members if prefix != old)
        changes = {
            old: f"DELETE FROM account WHERE id = {account}",
            new: f"INSERT INTO account VALUES ({account}, {number}, 'a note')",
        }
        gids = {prefix: f"__pgdog_2pc_a1b2_{number}_{shard}" for shard, prefix in enumerate(self._members)}
        for prefix, statement in changes.items():
            self._members[prefix].prepare(gids[prefix], statement)
        for prefix in self._random.sample(list(changes), 2):
            self._members[prefix].sql(f"COMMIT PREPARED '{gids[prefix]}'")
        transaction = f"pgdog:a1b2_{number}"
        self.told[old, account].append(("d", 0, transaction))
        self.told[new, account].append(("c", number, transaction))
        self._places[account] = new
        self.moves += 1


def read_table(lake: GroupLake, catalog: str, name: str = "account") -> DataFrame:
    return lake.spark.table(f"{catalog}.public_changelog.{name}")


def read_changes(lake: GroupLake) -> dict[tuple[str, int], list[Change]]:
    found = defaultdict(list)
    for row in read_table(lake, lake.catalog).orderBy("_member", "partition", "offset").collect():
        image = row["after"] or row["before"]
        version = row["after"]["version"] if row["after"] else 0
        found[row["_member"], image["id"]].append((row["op"], version, row["global_id"]))
    return found


def catch_up(lake: GroupLake) -> None:
    for here in lake.members.values():
        here.caught_up(mark=MARK)


def expire_snapshots(lake: GroupLake) -> None:
    """Leave only the rows to say how far the table is."""
    call, table = f"CALL {lake.catalog}.system", "table => 'public_changelog.account'"
    in_an_hour = "timestamp_seconds(unix_seconds(now()) + 3600)"
    lake.spark.sql(f"{call}.rewrite_data_files({table}, options => map('rewrite-all', 'true'))")
    lake.spark.sql(f"{call}.expire_snapshots({table}, older_than => {in_an_hour}, retain_last => 1)")
    kept = lake.spark.sql(f"SELECT summary FROM {lake.catalog}.public_changelog.account.snapshots").collect()
    assert ["twofold.offsets" in row["summary"] for row in kept] == [False]


def test_each_members_changes_are_there_once_whatever_is_killed(lake: GroupLake) -> None:
    """Without a checkpoint too, and where no snapshot says how far the table is. A table that the
    members do not share is each member's own. The second job is given the group, not its members.
    """
    place = ("--warehouse", str(lake.folder / "group"), "--catalog", lake.catalog)
    moves, rng = Moves(lake.members), random.Random(3)
    moves.start()
    try:
        for kill in range(2):
            options = (*place, "--batch-rows", "10", "--trigger", "interval=100ms")
            with running(
                lake, *options, command="changelog", environment=interpreted.ENVIRONMENT, by_group=kill > 0
            ) as job:
                process.batches(job, "changelog", rng.randrange(2, 5))
                time.sleep(rng.random())  # any instant of a turn will do
                os.killpg(job.pid, signal.SIGKILL)
            shutil.rmtree(lake.folder / "group" / "checkpoints", ignore_errors=True)  # if it made one
            if kill:
                expire_snapshots(lake)
    finally:
        moves.stop()
    catch_up(lake)
    lake.changelog()
    assert read_changes(lake) == moves.told
    assert moves.moves > 5
    own = [read_table(lake, member_catalog(lake.catalog, prefix), "transfer").count() for prefix in lake.members]
    assert own == [1, 1]


def test_a_member_joins_with_the_records_that_kafka_has(lake: GroupLake) -> None:
    """Retention had some of them before. What it takes later, before it is appended, is refused.

    Each job is killed behind its turns, of which most have changes of one member alone.
    """
    east, west = lake.members.values()
    for number in range(1, 6):
        for here in (east, west):
            here.sql(f"INSERT INTO account VALUES ({number}, {number}, 'a note')")
            catch_up(lake)
            if number == 1 and here == west:
                delete_records(west.reader.bootstrap, west.table("account"))
            else:
                append_and_die(lake)
    wanted = {(east.prefix, number): [("c", number, None)] for number in range(1, 6)}
    assert read_changes(lake) == wanted | {(west.prefix, number): [("c", number, None)] for number in range(2, 6)}
    west.sql("INSERT INTO account VALUES (6, 6, 'a note')")
    catch_up(lake)
    delete_records(west.reader.bootstrap, west.table("account"))
    for _ in range(2):
        with pytest.raises(
            TableRefused, match=rf"Kafka has {west.prefix}\.public\.account-. from offset .*\n.*retention"
        ):
            lake.changelog()


def append_and_die(lake: GroupLake) -> None:
    """Append what is there, and record no position but that of the rows."""
    job = lake.changelog_job()
    while job.run_turn():
        pass
    job.close()


def test_shards_with_other_columns_unite_or_are_refused(lake: GroupLake) -> None:
    east, west = lake.members.values()
    for number, here in enumerate((east, west)):
        here.sql(f"INSERT INTO account VALUES ({number}, 1, 'a note')")
    catch_up(lake)
    lake.changelog()
    east.sql("ALTER TABLE account ADD COLUMN region text", "INSERT INTO account VALUES (2, 2, 'a note', 'east')")
    west.sql("ALTER TABLE account ALTER version TYPE bigint", f"INSERT INTO account VALUES (3, {1 << 40}, 'a note')")
    catch_up(lake)
    lake.changelog()
    east.sql("INSERT INTO account VALUES (4, 4, 'a note', 'east')")  # narrower than the table, and alone
    catch_up(lake)
    lake.changelog()
    west.sql("INSERT INTO account VALUES (5, 5, 'a note')")  # without a column that the table has
    catch_up(lake)
    lake.changelog()
    table = read_table(lake, lake.catalog)
    assert table.select("after.version").schema["version"].dataType == LongType()
    found = [tuple(row) for row in table.select("_member", "after.id", "after.version", "after.region").collect()]
    wanted = [(east.prefix, 0, 1, None), (west.prefix, 1, 1, None), (east.prefix, 2, 2, "east")]
    wanted += [(west.prefix, 3, 1 << 40, None), (east.prefix, 4, 4, "east"), (west.prefix, 5, 5, None)]
    assert sorted(found, key=lambda row: row[1]) == wanted

    west.sql("ALTER TABLE account ADD COLUMN region int", "INSERT INTO account VALUES (6, 6, 'a note', 6)")
    catch_up(lake)
    refusal = (
        r"account\.region has the type string .* and int .*\n.*\n.*one type in all shards, or leave public\.account out"
    )
    with pytest.raises(TableRefused, match=refusal):
        lake.changelog()
    east.sql("INSERT INTO account VALUES (7, 7, 'a note', 'east')")
    catch_up(lake)
    with pytest.raises(TableRefused, match=refusal):
        lake.changelog()
    assert read_table(lake, lake.catalog).count() == len(wanted)
    _try_the_repair(lake, len(wanted))


def _try_the_repair(lake: GroupLake, there: int) -> None:
    """Keep the table under another name, and leave it out of --sharded."""
    table = f"{lake.catalog}.public_changelog.account"
    alone = lake.with_members(dict([*lake.members.items()][:1]))
    lake.sharding = alone.sharding = NO_SHARDING
    for other in (lake, alone):
        with pytest.raises(TableRefused, match=r"account` has changes of public\.account, .* another --sharded"):
            other.changelog()
    lake.spark.sql(f"ALTER TABLE {table} RENAME TO account_before")
    lake.changelog()
    own = [read_table(lake, member_catalog(lake.catalog, prefix)).count() for prefix in lake.members]
    assert own == [4, 4]
    assert read_table(lake, lake.catalog, "account_before").count() == there
    lake.sharding = SHARDING
    with pytest.raises(TableRefused, match=r"public_changelog`\.`account` has changes of public\.account, "):
        lake.changelog()
