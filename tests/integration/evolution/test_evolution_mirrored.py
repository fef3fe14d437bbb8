"""The mirror's column of docs/use/evolution.md: tables change in PostgreSQL, the connector carries
them, and Spark's mirror has what the page says.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from fixtures.backfill import ready
from fixtures.connector import Installation, Maker
from fixtures.spark import Lake
from helpers.connector.evolving import Evolving
from helpers.spark.writer import Writer
from twofold_spark.catalog_choice import WAREHOUSE_CATALOG
from twofold_spark.errors import TwofoldError

COLUMNS = {"id": "int", "v": "int", "big": "bigint", "small": "float", "note": "string", "price": "decimal(10,2)"}
ONE = {"id": 1, "v": 10, "big": 100, "small": 1.5, "note": "one", "price": Decimal("1.25")}
TWO = {"id": 2, "v": 20, "big": 200, "small": 2.5, "note": "two", "price": Decimal("2.25")}
VALUES = "2, 20, 200, 2.5, 'two', 2.25"


@dataclass(frozen=True)
class Change:
    """What happens to a table with one row, the row that is written then, and what the mirror has:
    columns other than COLUMNS, rows other than ONE and TWO.
    """

    ddl: str
    values: str = VALUES
    columns: dict[str, str] = field(default_factory=dict)
    one: dict[str, Any] = field(default_factory=dict)
    two: dict[str, Any] = field(default_factory=dict)
    mode: str = "BACKWARD"


CHANGES = {
    "added": Change("ADD more text", VALUES + ", 'more'", {"more": "string"}, one={"more": None}, two={"more": "more"}),
    "with_default": Change("ADD more int DEFAULT 7", columns={"more": "int"}, one={"more": None}, two={"more": 7}),
    "dropped": Change("DROP v", "2, 200, 2.5, 'two', 2.25", two={"v": None}),
    "renamed": Change(
        "RENAME note TO remark", columns={"remark": "string"}, one={"remark": None}, two={"note": None, "remark": "two"}
    ),
    "to_bigint": Change(
        "ALTER v TYPE bigint", "2, 20000000000, 200, 2.5, 'two', 2.25", {"v": "bigint"}, two={"v": 20_000_000_000}
    ),
    "to_double": Change("ALTER small TYPE double precision", columns={"small": "double"}),
    "to_int": Change("ALTER big TYPE int", mode="FORWARD"),
    "to_text": Change(
        "ALTER note TYPE text", "2, 20, 200, 2.5, 'longer than ten', 2.25", two={"note": "longer than ten"}
    ),
    "precision": Change(
        "ALTER price TYPE numeric(12,2)",
        "2, 20, 200, 2.5, 'two', 1234567890.12",
        {"price": "decimal(12,2)"},
        two={"price": Decimal("1234567890.12")},
    ),
    "whole": Change("REPLICA IDENTITY FULL"),
}
BILLION = Decimal("1234567890.12")
TOGETHER = {
    "columns": Change(
        "ADD more text, DROP v, ALTER small TYPE double precision, ALTER price TYPE numeric(12,2), REPLICA IDENTITY FULL",
        f"2, 200, 2.5, 'two', {BILLION}, 'more'",
        {"more": "string", "small": "double", "price": "decimal(12,2)"},
        one={"more": None},
        two={"v": None, "price": BILLION, "more": "more"},
    ),
    "renamed": Change(
        "RENAME note TO remark; ALTER TABLE e.renamed ADD more int DEFAULT 7, ALTER v TYPE bigint",
        "2, 20000000000, 200, 2.5, 'two', 2.25",
        {"remark": "string", "more": "int", "v": "bigint"},
        one={"remark": None, "more": None},
        two={"v": 20_000_000_000, "note": None, "remark": "two", "more": 7},
    ),
    "narrower": Change(
        "ALTER big TYPE int, ALTER note TYPE text",
        "2, 20, 200, 2.5, 'longer than ten', 2.25",
        two={"note": "longer than ten"},
        mode="FORWARD",
    ),
}
"""The same changes in three tables: a merge of each table takes long."""


@pytest.fixture
def here(connector: Maker) -> Installation:
    made = connector(init=False, source={"tables": ["public.account", "e.*"], "backfill": False})
    made.sql("CREATE TABLE account (id int PRIMARY KEY, version int NOT NULL, note text)", "CREATE SCHEMA e")
    made.initialise()
    return made


@pytest.fixture
def lake(here: Installation, spark: SparkSession, tmp_path: Path) -> Lake:
    """Over the connector's topics; what it has of the writer is where they are."""
    catalog = f"evolved_{here.prefix}"
    for name, value in WAREHOUSE_CATALOG.settings(str(tmp_path), catalog).items():
        spark.conf.set(name, value)
    where = SimpleNamespace(
        bootstrap=here.reader.bootstrap,
        registry=here.reader.registry_url,
        prefix=here.prefix,
        visible=lambda: None,  # `caught_up` has seen to it
    )
    return Lake(spark, catalog, tmp_path, cast("Writer", where))


def mirrored(lake: Lake, table: str) -> tuple[dict[str, str], dict[int, dict[str, Any]]]:
    """Columns and rows."""
    found = lake.spark.table(f"{lake.catalog}.e.{table}")
    return {f.name: f.dataType.simpleString() for f in found.schema}, {r["id"]: r.asDict() for r in found.collect()}


@pytest.mark.parametrize(
    ("changes", "late"),
    [
        pytest.param(TOGETHER, False, id="together"),
        pytest.param(CHANGES, False, id="each", marks=pytest.mark.slow),
        pytest.param(CHANGES, True, id="late", marks=pytest.mark.slow),
    ],
)
def test_the_mirror_follows(here: Installation, lake: Lake, changes: dict[str, Change], late: bool) -> None:
    """`late`: it meets the rows of all versions at once, as a mirror that is recreated does."""
    tables = {name: Evolving(here, name) for name in (*changes, "moved", "remade", "misfit")}
    with here.carrying():
        for table in tables.values():
            table.made()
        if not late:
            here.caught_up()
            lake.mirror()
        for name, change in changes.items():
            tables[name].subject.allow(change.mode)
            here.sql(
                *f"ALTER TABLE e.{name} {change.ddl}".split("; "), f"INSERT INTO e.{name} VALUES ({change.values})"
            )
        here.sql("ALTER TABLE e.moved RENAME TO moved_2", f"INSERT INTO e.moved_2 VALUES ({VALUES})")
        here.sql("DROP TABLE e.remade", "CREATE TABLE e.remade (id int PRIMARY KEY, other text)")
        here.sql("INSERT INTO e.remade VALUES (2, 'new')")
        here.caught_up()
        lake.mirror()

        for name, change in changes.items():
            columns, rows = mirrored(lake, name)
            assert columns == {**COLUMNS, **change.columns}, name
            assert rows == {1: {**ONE, **change.one}, 2: {**TWO, **change.two}}, name
        assert mirrored(lake, "moved") == (COLUMNS, {1: ONE})
        assert mirrored(lake, "moved_2") == (COLUMNS, {2: TWO})
        assert mirrored(lake, "remade") == (
            {**COLUMNS, "other": "string"},
            {1: {**ONE, "other": None}, 2: {**dict.fromkeys(ONE), "id": 2, "other": "new"}},
        )

        tables["misfit"].subject.allow("NONE")
        here.sql("ALTER TABLE e.misfit ALTER v TYPE text", f"INSERT INTO e.misfit VALUES ({VALUES})")
        here.caught_up()
    with pytest.raises(TwofoldError, match=r"e\.misfit\.v has the type int in the table and string in the topic"):
        lake.mirror()
    assert mirrored(lake, "misfit") == (COLUMNS, {1: ONE})


FILLED = "CREATE TABLE e.stage AS SELECT n AS id, n * 10 AS v FROM generate_series(1, 3) n"
NIGHTS = (
    (FILLED,),
    ("ALTER TABLE e.stage ADD PRIMARY KEY (id)", "UPDATE e.stage SET v = 11 WHERE id = 1"),
    ("DROP TABLE e.stage", FILLED),
)


def test_the_mirror_of_a_staging_table(here: Installation, lake: Lake) -> None:
    """Without a key, with one, and made again without one: the mirror's table is the source's each
    time.
    """
    with here.carrying():
        for statements in NIGHTS:
            here.sql(*statements)
            here.caught_up()
            ready(here)
            lake.mirror()
            rows = {str(i): row["v"] for i, row in mirrored(lake, "stage")[1].items()}
            assert rows == here.ask("SELECT jsonb_object_agg(id, v) FROM e.stage")
