"""A catalog did what was asked, and the job does not learn it.

The answer is lost, or the catalog is asked twice and the second answer arrives: that another commit
was first. Iceberg then deletes files of the version that the catalog has.
"""

from __future__ import annotations

import datetime as dt
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict
from pyspark.sql import SparkSession

from fixtures.catalogs import Trouble, connections_break, find_in_postgres
from fixtures.spark import Killed, Lake, new_lake
from helpers.spark.writer import Writer, table
from twofold_spark.catalog_choice import CatalogChoice
from twofold_spark.errors import SPARK_ERRORS
from twofold_spark.sinks import iceberg_sink, merge_plan

_SHAPE = {"id": "int8", "v": "int8"}


@dataclass
class _Troubled:
    """A lake whose catalog has its trouble at chosen commits."""

    lake: Lake
    written: list[str]
    trouble: dict[int, Trouble]
    names: list[str] = field(default_factory=list)

    def change(self, v: int) -> None:
        """Commit a change of both tables, and the first rows of a new one."""
        for name in ("t", "u") if not self.names else (f"new{v}",):
            self.names.append(self.lake.writer.table(table(name, _SHAPE), partitions=1))
        with self.lake.writer.commit() as tx:
            for name in dict.fromkeys(("t", "u", self.names[-1])):
                for key in (0, 1):
                    tx.upsert(name, {"id": key, "v": v})

    def usual_commits(self, **settings: Any) -> list[str]:
        """Mirror what is there, and return the requests that committed."""
        before = len(self.written)
        self.lake.mirror(**settings)
        return self.written[before:]

    def mirror_until_done(self, **settings: Any) -> list[Exception]:
        """Start the job as a supervisor does; return how it ended before it was done."""
        ends: list[Exception] = []
        while len(ends) < 2:
            try:
                self.lake.mirror(**settings)
            except SPARK_ERRORS as error:
                ends.append(error)
            else:
                return ends
        raise AssertionError(ends)

    def assert_equal(self) -> None:
        """By plain names and in the last cut: the tables that each change has, and the newest."""
        cut, model = self.lake.cut(), self.lake.writer.model
        for name in dict.fromkeys((*self.names[:2], self.names[-1])):
            assert self.lake.rows(name) == self.lake.rows(name, cut[f"public.{name}"]) == model[name], name


def _choose(commits: list[str], every: bool) -> Iterable[int]:
    """Number the commits that differ in kind, or every one: of the two tables that a batch treats
    alike, those of the first.
    """
    kinds, seen = dict[str, int](), Counter[str]()
    for number, request in enumerate(commits):
        seen[request] += 1
        kind = re.sub(r"/u$", "/t", re.sub(r"/new\d+$", "/new", request))
        kinds.setdefault(f"{kind} {seen[request]}", number)
    return range(len(commits)) if every else kinds.values()


pytestmark = pytest.mark.slow
ONE_BY_ONE = {"tables_at_once": 1}
"""So that the commits of each batch have one order."""
WALKS = [
    pytest.param(kind, every, id=f"{kind}{', every commit' * every}")
    for every in (False, True)
    for kind in ("lost", "repeated")
]
"""What happens to a commit, and whether to each of a batch's: a whole job for each of them."""


@pytest.fixture
def troubled(rest_lake: tuple[Lake, list[str]], trouble: dict[int, Trouble]) -> _Troubled:
    return _Troubled(*rest_lake, trouble)


@pytest.fixture
def troubled_jdbc(
    spark: SparkSession,
    lake_writer: Writer,
    tmp_path: Path,
    database: str,
    trouble: dict[int, Trouble],
) -> Iterator[_Troubled]:
    port = conninfo_to_dict(database)["port"]
    url, properties = find_in_postgres(database)
    with connections_break(int(str(port)), b"UPDATE iceberg_tables", trouble) as (front, written):
        # Each statement has its text, by which it is found.
        properties["jdbc.prepareThreshold"] = "0"
        choice = CatalogChoice.choose(None, url.replace(f":{port}/", f":{front}/"), properties)
        lake = new_lake(spark, lake_writer, tmp_path, choice)
        yield _Troubled(lake, written, trouble)


@pytest.mark.parametrize(("kind", "every"), WALKS)
def test_at_each_commit_of_a_batch(troubled: _Troubled, kind: Trouble, every: bool) -> None:
    _at_each_commit(troubled, kind, lambda commits: _choose(commits, every))


@pytest.mark.parametrize("every", [False, True])
def test_at_each_commit_of_a_batch_in_postgresql(troubled_jdbc: _Troubled, every: bool) -> None:
    """Iceberg's client connects again, and repeats the statement that PostgreSQL has done."""
    # The statements have one text. The first is of a merge, the last of the cut.
    _at_each_commit(troubled_jdbc, "lost", lambda all_: range(len(all_))[:: 1 if every else (len(all_) - 1) // 2])


def _at_each_commit(troubled: _Troubled, kind: Trouble, choose: Callable[[list[str]], Iterable[int]]) -> None:
    troubled.change(0)
    troubled.lake.mirror()
    troubled.change(1)
    for v, n in enumerate(choose(troubled.usual_commits(**ONE_BY_ONE)), 2):
        troubled.change(v)
        troubled.trouble[len(troubled.written) + n] = kind
        troubled.mirror_until_done(**ONE_BY_ONE)
        troubled.assert_equal()
    # What was given up is in nobody's way later.
    troubled.change(100)
    troubled.lake.mirror(maintain_every=1, keep_cuts=dt.timedelta(0))
    troubled.lake.assert_equal()


@pytest.mark.parametrize(("kind", "every"), [*WALKS[2:], WALKS[1]])
def test_at_each_commit_of_maintenance(troubled: _Troubled, kind: Trouble, every: bool) -> None:
    """Six small files are compacted, so each turn has a compaction."""
    settings = {"maintain_every": 1, "keep_cuts": dt.timedelta(0), **ONE_BY_ONE}

    def make_small_files(v: int) -> None:
        for n in range(6):
            with troubled.lake.writer.commit() as tx:
                tx.upsert("t", {"id": n, "v": 10 * v + n})
        troubled.lake.mirror(batch_rows=1)
        with troubled.lake.writer.commit() as tx:
            tx.upsert("t", {"id": 7, "v": v})

    troubled.change(0)
    troubled.lake.mirror()
    make_small_files(1)
    for v, n in enumerate(_choose(troubled.usual_commits(**settings), every), 2):
        make_small_files(v)
        troubled.trouble[len(troubled.written) + n] = kind
        troubled.mirror_until_done(**settings)
        troubled.assert_equal()


@pytest.mark.parametrize(("kind", "every"), WALKS)
def test_at_each_commit_of_a_batch_that_changes_the_write_mode(
    troubled: _Troubled, kind: Trouble, every: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables that are not small: most rows of them, then few, and so on."""
    monkeypatch.setattr(merge_plan, "_SMALL_ROWS", 0)

    def change_rows(many: int, v: int) -> None:
        with troubled.lake.writer.commit() as tx:
            for name in troubled.names:
                for key in range(many):
                    tx.upsert(name, {"id": key, "v": v})

    troubled.change(0)
    change_rows(6, 1)
    troubled.lake.mirror()
    change_rows(1, 2)
    for v, n in enumerate(_choose(troubled.usual_commits(**ONE_BY_ONE), every)):
        many, mode = (6, "copy-on-write") if v % 2 == 0 else (1, "merge-on-read")
        change_rows(many, 3 + v)
        troubled.trouble[len(troubled.written) + n] = kind
        troubled.mirror_until_done(**ONE_BY_ONE)
        troubled.assert_equal()
        assert {troubled.lake.merge_mode(name) for name in troubled.names} == {mode}


def test_a_job_that_is_killed_before_it_gives_its_merge_up(
    troubled: _Troubled, monkeypatch: pytest.MonkeyPatch
) -> None:
    troubled.change(0)
    troubled.lake.mirror()
    with troubled.lake.writer.commit() as tx:
        tx.upsert("t", {"id": 0, "v": 1})

    def killed(*_: object) -> None:
        raise Killed

    monkeypatch.setattr(iceberg_sink, "give_up", killed)
    troubled.trouble[len(troubled.written)] = "repeated"
    with pytest.raises(Killed):
        troubled.lake.mirror()
    monkeypatch.undo()
    troubled.lake.mirror()
    troubled.assert_equal()


@pytest.mark.parametrize(("kind", "every"), WALKS)
def test_at_each_commit_of_the_changelog(troubled: _Troubled, kind: Trouble, every: bool) -> None:
    troubled.change(0)
    troubled.lake.changelog()
    before = len(troubled.written)
    troubled.change(1)
    troubled.lake.changelog()
    commits = troubled.written[before:]
    assert commits
    for v, n in enumerate(_choose(commits, every), 2):
        troubled.change(v)
        troubled.trouble[len(troubled.written) + n] = kind
        for _ in range(2):
            try:
                troubled.lake.changelog()
            except SPARK_ERRORS:
                continue
            break
        for name in ("t", "u"):
            rows = (
                troubled.lake.spark.table(f"{troubled.lake.catalog}.public_changelog.{name}")
                .select("after.*")
                .collect()
            )
            assert sorted(map(tuple, rows)) == [(key, each) for key in (0, 1) for each in range(v + 1)]
