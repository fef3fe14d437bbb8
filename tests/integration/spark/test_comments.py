"""PostgreSQL's comments, through a real connector, in the mirror's tables."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from fixtures.backfill import ready
from fixtures.connector import Installation, Maker
from fixtures.spark import Lake
from helpers.connector.comments import HARD, comment_on
from twofold_spark.sinks.sink_choice import SinkChoice

pytestmark = pytest.mark.timeout(600)

SCHEMA = (
    "CREATE TABLE account (id int PRIMARY KEY, version int NOT NULL, note text, secret text)",
    "COMMENT ON COLUMN account.id IS 'its number'",
    "COMMENT ON COLUMN account.secret IS 'the password in plain text'",
    "INSERT INTO account VALUES (1, 1, 'one')",
)


@pytest.fixture
def here(lake: Lake, connector: Maker) -> Installation:
    policy = {"columns": [{"column": "public.*.secret", "action": "drop"}]}
    made = connector(init=False, source={"tables": ["public.account"]}, policy=policy)
    made.sql(*SCHEMA, comment_on("TABLE account", HARD), comment_on("COLUMN account.note", HARD))
    assert made.init().returncode == 0
    lake.prefix = made.prefix
    return made


def described(lake: Lake, name: str) -> dict[str, str | None]:
    return {row["col_name"]: row["comment"] for row in lake.spark.sql(f"DESCRIBE TABLE {name}").collect()}


def mirrored(lake: Lake) -> dict[str, str | None]:
    """What Spark says of the columns, and of the table."""
    name = f"{lake.catalog}.public.account"
    detailed = lake.spark.sql(f"DESCRIBE TABLE EXTENDED {name}").collect()
    of_table = next((row["data_type"] for row in detailed if row["col_name"] == "Comment"), None)
    return {**described(lake, name), "": of_table}


def in_delta(lake: Lake) -> dict[str, str | None]:
    """Mirror into Delta too, and return what its columns say."""
    delta = replace(lake, choice=SinkChoice("delta", str(lake.warehouse / "delta")), checkpoint="delta")
    delta.mirror()
    return described(lake, f"delta.`{lake.warehouse}/delta/public/account`")


@pytest.mark.slow
def test_the_mirrors_table_has_the_comments_and_follows_them(lake: Lake, here: Installation) -> None:
    """In Delta those of the columns."""
    with here.carrying():
        ready(here)
        here.caught_up()
        lake.mirror()
        first = {"": HARD, "id": "its number", "version": None, "note": HARD}
        assert mirrored(lake) == first
        del first[""]
        assert in_delta(lake) == first
        lake.spark.sql(f"ALTER TABLE {lake.catalog}.public.account ALTER COLUMN version COMMENT 'by hand'")
        here.sql(comment_on("COLUMN account.id", "while it runs $1"), "ALTER TABLE account ADD more int")
        here.sql("COMMENT ON COLUMN account.more IS 'added'", "COMMENT ON TABLE account IS NULL")
        here.caught_up()
        lake.mirror()
        columns = {"version": "by hand", "note": HARD, "more": "added"}
        assert mirrored(lake) == {"": HARD, "id": "while it runs $1", **columns}, (
            "the table's stays: the source has none"
        )
        assert in_delta(lake) == {**columns, "id": "while it runs $1", "version": None}
    here.sql(comment_on("COLUMN account.note", "while it is down"), comment_on("TABLE account", "new \\"))
    with here.carrying():
        here.caught_up()
        lake.mirror()
        now = {**columns, "": "new \\", "id": "while it runs $1", "note": "while it is down"}
        assert mirrored(lake) == now
    catalog = SqlCatalog(lake.catalog, uri=f"sqlite:///{lake.warehouse}/catalog.db", warehouse=str(lake.warehouse))
    table = catalog.load_table("public.account")
    assert {**{f.name: f.doc for f in table.schema().fields}, "": table.properties["comment"]} == now
    assert len(table.scan().to_arrow()) == 2
