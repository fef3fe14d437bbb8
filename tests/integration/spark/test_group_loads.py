"""Loads in a source group: what a member's snapshot shows of a global transaction no cut shows in
part, though no commit record names it. pyiceberg alone reads the same.

The south has a server of its own, whose slot does not wait for what is prepared elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession

from fixtures.connector import Installation, Maker, wait_until
from fixtures.stack import fresh_prefix
from helpers.connector import ledger
from helpers.spark.group_lake import GroupLake, find_whole, prepare, regroup, transfer
from twofold.stack import PostgresServer
from twofold_spark.errors import Refused
from twofold_spark.session import member_catalog

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
LATE = "CREATE TABLE late (id text PRIMARY KEY, account int, amount bigint)"


def shown(lake: GroupLake) -> set[str]:
    """Return the transfers of the last global cut: each has both its branches.

    The south's tables are in no cut before its first load is.
    """
    if not lake.published or not all(each.sequence for each in lake.published[-1].members.values()):
        return set()
    amounts = lake.transfers()
    tables = lake.read()
    for prefix in tables.members:
        if (late := f"{prefix}.public.late") in set(tables):
            amounts[prefix] |= {row["id"]: row["amount"] for row in tables[late].collect()}
    assert read_plainly(lake) == amounts
    return find_whole(amounts, tables.members)


def read_plainly(lake: GroupLake) -> dict[str, dict[str, int]]:
    """Return the amounts by member and transfer in the last global cut, as pyiceberg reads them.

    The rows of the cut name each member's snapshots.
    """
    group = SqlCatalog(lake.catalog, uri=f"sqlite:///{lake.folder}/group/catalog.db")
    rows = [row for row in group.load_table("twofold.cuts").scan().to_arrow().to_pylist() if row["joined"]]
    last = max(row["number"] for row in rows)
    found: dict[str, dict[str, int]] = {}
    for cut in (row for row in rows if row["number"] == last):
        prefix = cut["prefix"]
        catalog = SqlCatalog(member_catalog(lake.catalog, prefix), uri=f"sqlite:///{lake.folder}/{prefix}/catalog.db")
        assert cut["whole"]
        loading = {topic.removeprefix(f"{prefix}.") for topic in cut["backfilling"]}
        versions = {each["name"]: int(each["version"]) for each in cut["tables"] if each["name"] not in loading}
        found[prefix] = {}
        for name in versions.keys() & {"public.transfer", "public.late"}:
            snapshot = catalog.load_table(name).scan(snapshot_id=versions[name]).to_arrow().to_pylist()
            found[prefix] |= {row["id"]: row["amount"] for row in snapshot}
    return found


def backfilled(here: Installation, topic: str) -> bool:
    """Whether the table's load has ended, by the commit records."""
    commits = here.records("commits")
    name = f"{here.prefix}.public.{topic}"
    return any(each["topic"] == name for commit in commits for each in commit["ranges"]) and (
        name not in commits[-1]["backfilling"]
    )


def waits_for_the_hole(lake: GroupLake) -> None:
    """Run the mirror until it says that the south's load waits for the branch in the east."""
    east, south = lake.members.values()
    for here in (east, south):
        here.sql("INSERT INTO account VALUES (901, 1, 'plain') ON CONFLICT DO NOTHING")
        here.caught_up()

    def says_so() -> bool:
        lake.run()
        assert not shown(lake)
        return any(
            f"of {south.prefix} waits for what is in doubt in {east.prefix}: 1:hole" in each for each in lake.said
        )

    wait_until(says_so, 120, "the mirror says what the load waits for")


def shows(lake: GroupLake, *wanted: str) -> bool:
    lake.run()
    return shown(lake) == {*wanted}


def test_no_cut_shows_half_of_a_transfer_that_a_load_brought(
    spark: SparkSession, connector: Maker, own_postgres: Callable[..., PostgresServer], tmp_path: Path
) -> None:
    """The south's branch is committed before the south's first load; later one of the east, in a
    table that joins the publication. Each has its sibling in doubt.
    """
    names = sorted(fresh_prefix() for _ in range(2))
    east, south = connector(name=names[0]), connector(name=names[1], conninfo=own_postgres().dsn(), init=False)
    south.sql(ledger.SCHEMA)
    members = {each.prefix: each for each in (east, south)}
    lake = GroupLake(spark, tmp_path, members)
    of_east, of_south = prepare(members, "hole", 7)
    of_south.tpc_commit()
    south.initialise()
    regroup(east, south)
    wait_until(lambda: backfilled(south, "transfer"), 90, "the south's first load")
    waits_for_the_hole(lake)
    of_east.tpc_commit()
    transfer(members, "one", 10)
    wait_until(lambda: shows(lake, "hole", "one"), 120, "both are whole")

    east.sql(LATE)
    branches = []
    for (prefix, here), table, amount in zip(members.items(), ("late", "transfer"), (5, -5), strict=True):
        branches.append(branch := psycopg.connect(here.conninfo))
        branch.tpc_begin(branch.xid(1, "joined", prefix))
        branch.execute(f"INSERT INTO {table} VALUES ('joined', 1, %s)", (amount,))
        branch.tpc_prepare()
        here.at_end(branch.close)
    branches[0].tpc_commit()
    east.sql(
        f"ALTER PUBLICATION {east.config.publication} ADD TABLE late",
        "INSERT INTO late VALUES ('-', 1, 0)",
        "DELETE FROM late WHERE id = '-'",
    )
    wait_until(lambda: backfilled(east, "late"), 90, "the load of the table that joined")
    east.caught_up()
    lake.run()
    assert shown(lake) == {"hole", "one"}
    branches[1].tpc_commit()
    wait_until(lambda: shows(lake, "hole", "one", "joined"), 120, "the load and its sibling appear at once")


def test_no_cut_shows_half_of_a_transfer_that_a_load_after_a_lost_slot_brought(
    spark: SparkSession, connector: Maker, own_postgres: Callable[..., PostgresServer], tmp_path: Path
) -> None:
    """The south's slot is dropped while a branch of its is in doubt, which is committed before the
    south starts over.
    """
    names = sorted(fresh_prefix() for _ in range(2))
    east, south = connector(name=names[0]), connector(name=names[1], conninfo=own_postgres().dsn())
    members = {each.prefix: each for each in (east, south)}
    regroup(east, south)
    former = GroupLake(spark, tmp_path / "former", members)
    transfer(members, "one", 10)
    former.runs_until_it_shows("one")

    of_east, of_south = prepare(members, "hole", 7)
    south.caught_up()
    south.runs[-1].stop()
    south.ask(f"SELECT pg_drop_replication_slot('{south.prefix}')")
    of_south.tpc_commit()
    assert "no longer exists" in str(south.refusal())
    south.twofold("reset", "--yes", ok=True)
    south.delete_topics()
    south.twofold("init", ok=True)
    regroup(east, south)
    wait_until(lambda: backfilled(south, "transfer"), 90, "the south's tables are loaded again")
    with pytest.raises(Refused, match="the topics of this prefix were recreated"):
        former.run()
    assert shown(former) == {"one"}

    lake = GroupLake(spark, tmp_path / "new", members)
    waits_for_the_hole(lake)
    of_east.tpc_commit()
    transfer(members, "two", 20)
    wait_until(lambda: shows(lake, "one", "hole", "two"), 120, "all are whole")
