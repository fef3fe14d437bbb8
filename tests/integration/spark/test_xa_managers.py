"""Real XA managers over two databases, killed between the branches and recovered by themselves: the
group's mirror shows each of their transactions whole or not at all.
"""

from __future__ import annotations

import datetime as dt
import itertools
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import SparkSession

from fixtures.connector import Installation, Maker, wait_until
from helpers.spark import process as spark_process
from helpers.spark.group_lake import start_members
from helpers.xa.manager import MANAGERS, XaManager
from twofold_common import java
from twofold_spark import Tables, read_cut, session
from twofold_spark.catalog_choice import WAREHOUSE_CATALOG

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
_number = itertools.count(1)
TABLE = "public.transfer"


@dataclass
class Banks:
    """Two databases with their connectors, and one mirror of both, run to the end when asked."""

    spark: SparkSession
    folder: Path
    members: Mapping[str, Installation]
    catalog: str = field(default_factory=lambda: f"xa{next(_number)}")

    def __post_init__(self) -> None:
        for name, value in WAREHOUSE_CATALOG.settings(str(self.warehouse), self.catalog).items():
            self.spark.conf.set(name, value)
        self.warehouse.mkdir()
        session.open_member_catalogs(self.spark, self.warehouse, self.catalog, self.members)

    @property
    def warehouse(self) -> Path:
        return self.folder / "warehouse"

    @property
    def conninfos(self) -> list[str]:
        return [here.conninfo for here in self.members.values()]

    def mirror(self) -> None:
        """Bring the mirror to the end of what is there, by the command."""
        here = next(iter(self.members.values()))
        prefixes = [word for prefix in self.members for word in ("--prefix", prefix)]
        line = [
            sys.executable, "-m", "twofold_spark", "mirror", *prefixes, "--bootstrap", here.reader.bootstrap,
            "--registry", here.reader.registry_url, "--warehouse", str(self.warehouse), "--catalog", self.catalog,
            "--java-home", str(java.spark_java_home()), "--trigger", "available-now",
        ]  # fmt: skip
        ended = subprocess.run(
            line, env=spark_process.job_environment(), capture_output=True, text=True, timeout=300, check=False
        )
        assert ended.returncode == 0, ended.stderr

    def shown(self) -> set[str]:
        """The transfers of the last global cut, each of them whole."""
        return self._whole(read_cut(self.spark, catalog=self.catalog))

    def assert_every_cut_is_whole(self) -> None:
        rows = self.spark.table(f"{self.catalog}.twofold.cuts").where("joined").collect()
        assert rows
        for number in {row["number"] for row in rows}:
            at = max(row["committed_at"] for row in rows if row["number"] == number)
            self._whole(read_cut(self.spark, at=at.astimezone(dt.UTC), catalog=self.catalog))

    def _whole(self, tables: Tables) -> set[str]:
        east, west = (dict(self._transfers(tables, prefix)) for prefix in tables.members)
        assert {name: -amount for name, amount in east.items()} == west
        return {*east}

    @staticmethod
    def _transfers(tables: Tables, prefix: str) -> Iterator[tuple[str, int]]:
        if (table := f"{prefix}.{TABLE}") in tables:
            yield from ((row["id"], row["amount"]) for row in tables[table].collect())

    def shows(self, *transfers: str) -> None:
        def shown() -> bool:
            self.mirror()
            return self.shown() == {*transfers}

        wait_until(shown, 240, f"the mirror shows {transfers}")

    def prepared(self) -> list[int]:
        count = "SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()"
        return [int(here.ask(count)) for here in self.members.values()]

    def committed(self, name: str) -> list[bool]:
        return [bool(here.ask(f"SELECT count(*) FROM transfer WHERE id = '{name}'")) for here in self.members.values()]


@pytest.fixture
def banks(spark: SparkSession, connector: Maker, tmp_path: Path) -> Banks:
    return Banks(spark, tmp_path, start_members(connector))


@pytest.mark.parametrize("manager", MANAGERS)
def test_a_manager_that_is_killed_between_two_commits(banks: Banks, manager: str, tmp_path: Path) -> None:
    with XaManager(manager, tmp_path, banks.conninfos) as first:
        first.transfer("one", 10)
        banks.shows("one")
        first.transfer_until_held("two", 20, "commit")
    assert sorted(banks.committed("two")) == [False, True]
    assert sorted(banks.prepared()) == [0, 1]
    with psycopg.connect(banks.conninfos[0], autocommit=True) as plain:
        plain.execute("INSERT INTO account VALUES (99, 1, 'plain')")
    for here in banks.members.values():
        here.caught_up()
    banks.mirror()
    assert banks.shown() == {"one"}, "the second is half there, in no global cut"

    with XaManager(manager, tmp_path, banks.conninfos) as second:
        recovered(banks, second)
        assert banks.committed("two") == [True, True]
        second.transfer("three", 30)
    banks.shows("one", "two", "three")
    banks.assert_every_cut_is_whole()


@pytest.mark.parametrize("manager", MANAGERS)
def test_a_manager_that_is_killed_before_it_decides(banks: Banks, manager: str, tmp_path: Path) -> None:
    with XaManager(manager, tmp_path, banks.conninfos) as first:
        first.transfer("one", 10)
        first.transfer_until_held("two", 20, "prepare")
    assert sorted(banks.prepared()) == [0, 1]
    with XaManager(manager, tmp_path, banks.conninfos) as second:
        recovered(banks, second)
        assert banks.committed("two") == [False, False]
        second.transfer("three", 30)
    banks.shows("one", "three")
    banks.assert_every_cut_is_whole()


def recovered(banks: Banks, manager: XaManager) -> None:
    def nothing_is_prepared() -> bool:
        manager.recover()
        return banks.prepared() == [0, 0]

    wait_until(nothing_is_prepared, 120, "the manager has ended what it had in doubt")
