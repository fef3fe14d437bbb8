"""A prefix that `reset` and `init` use again, with new topics: the mirror refuses them,
whatever their numbers are. pyiceberg and SQL alone read the tables.
"""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession

from fixtures.connector import Installation, Maker, wait_until
from fixtures.spark import Lake, new_lake
from helpers.connector.ledger import SCHEMA
from twofold_spark.errors import Refused

_COLUMNS = ("id", "version", "note")
Rows = list[tuple[int, int, str]]


def test_the_mirror_of_the_former_stream_shows_its_last_cut_and_a_new_place_the_source(
    spark: SparkSession, lake: Lake, connector: Maker, tmp_path: Path
) -> None:
    here = connector(init=False)
    here.sql(SCHEMA)
    former = _begin_stream(here, lake, "former", (1, 2, 3))
    assert _read_mirror(lake) == former == [(1, 0, "former"), (2, 0, "former"), (3, 0, "former")]

    done = here.twofold("reset", "--yes", ok=True)
    assert f"the topics {here.prefix}.* stay: delete them" in done.stdout + done.stderr
    here.delete_topics()
    here.sql("DELETE FROM account WHERE id < 3", "UPDATE account SET note = 'changed'")
    new = new_lake(spark, lake.writer, tmp_path / "new")
    new.prefix = here.prefix
    source = _begin_stream(here, new, "later", (4,), (5,), (6,), (7,))
    with pytest.raises(Refused, match=r"the topics of this prefix were recreated\n.*\n.*use a new warehouse"):
        lake.mirror()
    assert _read_mirror(lake) == former, "a whole cut of the former stream"
    assert _read_mirror(new) == source
    assert [row[0] for row in source] == [3, 4, 5, 6, 7]


def _begin_stream(here: Installation, lake: Lake, note: str, *transactions: tuple[int, ...]) -> Rows:
    """Begin a stream, insert rows, and bring them into the lake; return what the source has."""
    lake.prefix = here.prefix
    here.twofold("init", ok=True)
    with here.carrying():
        for ids in transactions:
            here.sql(f"INSERT INTO account SELECT id, 0, '{note}' FROM unnest(ARRAY{list(ids)}) id")
        here.caught_up()
        wait_until(lambda: not here.status().backfilling, 120, "the rows that were there are loaded")
        here.caught_up()
        lake.mirror()
    with psycopg.connect(here.conninfo) as connection:
        return sorted(connection.execute("SELECT id, version, note FROM account WHERE id > 0").fetchall())


def _read_mirror(lake: Lake) -> Rows:
    catalog = SqlCatalog(lake.catalog, uri=f"sqlite:///{lake.warehouse}/catalog.db")
    found = catalog.load_table(("public", "account")).scan(row_filter="id > 0", selected_fields=_COLUMNS)
    return sorted(tuple(row[name] for name in _COLUMNS) for row in found.to_arrow().to_pylist())
