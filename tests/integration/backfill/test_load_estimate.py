"""`twofold backfill estimate`: before init, and then at the rate that a load has shown."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fixtures.backfill import ready
from fixtures.connector import Installation, Maker
from helpers.connector.ledger import SCHEMA

ROWS = 30_000


def estimated(here: Installation, *tables: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(here.twofold("backfill", "estimate", *tables, "--json", ok=True).stdout)
    return found


@pytest.mark.core
def test_a_load_is_estimated_before_init_and_at_the_rate_of_the_last(connector: Maker) -> None:
    here = connector(init=False, backfill={"chunk_rows": 2000})
    here.sql(
        SCHEMA,
        f"INSERT INTO account SELECT i, i, md5(i::text) FROM generate_series(1, {ROWS}) i",
        "ANALYZE account",
    )
    before = estimated(here)
    tables = {each["table"]: each for each in before["tables"]}
    assert tables["public.account"]["rows"] == ROWS
    size = here.ask("SELECT pg_table_size('account')")
    assert tables["public.account"]["bytes"] == size
    assert (before["per_second"], before["seconds"]) == (None, None)
    assert here.ask("SELECT count(*) FROM pg_publication") == 0
    said = here.twofold("backfill", "estimate", "public.account", ok=True).stdout
    assert f"public.account  about {ROWS:,} rows, " in said
    assert "the time is not known before 10,000 rows were loaded" in said
    assert "did you mean public.account?" in here.twofold("backfill", "estimate", "public.acount").stderr

    assert here.init().returncode == 0
    with here.carrying():
        ready(here)
    after = estimated(here, "public.account")
    assert [each["table"] for each in after["tables"]] == ["public.account"]
    assert after["seconds"] == pytest.approx(ROWS / after["per_second"])
    assert 0 < after["seconds"] < 60
    assert "as earlier loads have shown" in here.twofold("backfill", "estimate", ok=True).stdout

    here.configure({"backfill": {"rows_per_second": 100}})
    assert estimated(here, "public.account")["seconds"] == pytest.approx(ROWS / 100)


def test_a_load_of_few_rows_shows_no_rate(connector: Maker) -> None:
    """Each of its tables takes a tenth of a second, whatever is in it. For the planner a table that
    was never analysed has ten pages.
    """
    here = connector(init=False, source={"tables": ["public.*"]})
    here.sql(SCHEMA, "INSERT INTO account VALUES (1, 0, '')", "INSERT INTO transfer VALUES ('a', 1, 1)")
    here.sql(
        "CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY LIST (id)",
        "CREATE TABLE part PARTITION OF parts FOR VALUES IN (1)",
        "CREATE TABLE nothing (id int PRIMARY KEY)",
    )
    rows = {each["table"]: each["rows"] for each in estimated(here)["tables"]}
    assert 0 < rows["public.account"] < 200
    assert rows["public.nothing"] == rows["public.part"] == 0
    assert here.init().returncode == 0
    with here.carrying():
        ready(here)
    assert estimated(here)["seconds"] is None
