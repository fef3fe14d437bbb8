"""What an answer 404 of a REST catalog means: a proxy before it gives the same while it is away."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from py4j.protocol import Py4JJavaError

from twofold_spark.errors import ServerAway
from twofold_spark.sinks import iceberg_branches
from twofold_spark.sinks.iceberg_branches import CutPublisher, _Move
from twofold_spark.sinks.iceberg_place import IcebergPlace
from twofold_spark.sinks.iceberg_tables import IcebergTables


class NotFound(Py4JJavaError):  # type: ignore[misc]
    """Iceberg's client makes it of any answer 404."""

    def __init__(self) -> None:
        Exception.__init__(self, "org.apache.iceberg.exceptions.NoSuchTableException: 404")

    def __str__(self) -> str:
        return str(self.args[0])


class Catalog:
    """A REST catalog with all tables, which may answer 404 to a commit of several."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_found, self.is_away = True, False
        self.written: list[str] = []
        monkeypatch.setattr(iceberg_branches, "find_catalog", lambda *_: self)
        tables = cast("Any", SimpleNamespace(spark=None, catalog="lake", has=self._has_table))
        self.publisher = CutPublisher(tables)
        monkeypatch.setattr(self.publisher, "_commit_at_once", self._commit_at_once)

    def getClass(self) -> Catalog:
        return self

    def getName(self) -> str:
        return "org.apache.iceberg.rest.RESTCatalog"

    def _has_table(self, name: str) -> bool:
        if self.is_away:
            raise ServerAway(name)
        return True

    def commit(self, before: str, _after: str) -> None:
        self.written.append(before)

    def _commit_at_once(self, _moves: list[_Move]) -> None:
        if not self.is_found:
            raise NotFound
        self.written.append("all")

    def move(self) -> None:
        self.publisher._commit([_Move(f"s.{name}", self, name, "") for name in ("t", "cuts")])


@pytest.fixture
def catalog(monkeypatch: pytest.MonkeyPatch) -> Catalog:
    return Catalog(monkeypatch)


def test_a_catalog_without_that_commit_is_asked_once(catalog: Catalog) -> None:
    catalog.is_found = False
    catalog.move()
    catalog.is_found = True
    catalog.move()
    assert catalog.written == ["t", "cuts"] * 2


def test_a_404_after_such_a_commit_does_not_part_the_tables(catalog: Catalog) -> None:
    catalog.move()
    catalog.is_found = False
    with pytest.raises(NotFound):
        catalog.move()
    catalog.is_found = True
    catalog.move()
    assert catalog.written == ["all", "all"]


def test_a_catalog_of_which_nothing_is_found_is_away(catalog: Catalog) -> None:
    catalog.is_found, catalog.is_away = False, True
    with pytest.raises(ServerAway):
        catalog.move()
    catalog.is_found, catalog.is_away = True, False
    catalog.move()
    assert catalog.written == ["all"]


@pytest.mark.parametrize(
    ("answers", "found"),
    [("yes", True), ("no yes no", False), ("no yes yes", True), ("no no", ServerAway)],
    ids=["there", "gone", "there again", "away"],
)
def test_a_table_is_gone_only_if_the_catalog_knows_the_cuts(answers: str, found: bool | type[Exception]) -> None:
    given, asked = answers.split(), list[str]()

    def exists(name: str) -> bool:
        asked.append(name)
        return given.pop(0) == "yes"

    spark = cast("Any", SimpleNamespace(catalog=SimpleNamespace(tableExists=exists)))
    place = IcebergPlace("lake")
    place._own = IcebergTables(spark, "lake")
    tables = place._tables_of(spark, "lake_east")
    if isinstance(found, bool):
        assert tables.has("s.t") == found
    else:
        with pytest.raises(found, match=r"neither lake_east\.`s`\.`t` nor lake\."):
            tables.has("s.t")
    own = "lake_east.`s`.`t`"
    assert asked == [own, "lake.`twofold`.`cuts`", own][: len(answers.split())]
