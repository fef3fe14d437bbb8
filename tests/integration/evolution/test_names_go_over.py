"""A topic whose schemas were registered before they had Connect's names goes on with them: no
reload, no refusal, and each reader reads all of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

import twofold_avro.schemas
from fixtures.connector import Installation, Maker
from fixtures.spark import Lake
from helpers.connector.evolving import Evolving
from helpers.connector.topics import Reader
from helpers.spark.writer import Writer
from twofold_avro.types import Avro
from twofold_spark.catalog_choice import WAREHOUSE_CATALOG

ID = "01234567-89ab-cdef-0123-45678900000{}"
COLUMNS = "id uuid, mood mood, PRIMARY KEY (id, mood), small smallint, at timestamptz, clock time, j jsonb, v int"
VALUES = "('" + ID + "', 'ok', 7, '2024-02-29 12:00:00Z', '12:00', '{{}}', {})"


class Raw(Reader):
    """Keeps the ids of the schemas of keys and values, in place of what they frame."""

    def decode(self, data: bytes | None) -> Any:
        return data and (data[1:5] if data.startswith(b"\0") else data)


@contextmanager
def without_names(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As a connector of the version before makes schemas."""
    with monkeypatch.context() as patch:
        for name in ("with_names", "with_names_in_key"):
            patch.setattr(twofold_avro.schemas, name, _as_it_is)
        yield


def _as_it_is(_: object, schema: Avro) -> Avro:
    return schema


@pytest.fixture
def here(connector: Maker) -> Installation:
    made = connector(init=False, source={"tables": ["public.account", "e.*"]})
    made.sql(
        "CREATE TABLE account (id int PRIMARY KEY, version int NOT NULL, note text)",
        "CREATE SCHEMA e",
        "CREATE TYPE mood AS ENUM ('sad', 'ok')",
    )
    assert made.init().returncode == 0
    return made


def write(table: Evolving, number: int) -> None:
    table.sql(f"INSERT INTO {table.name} VALUES {VALUES.format(number, number)}")


def values(rows: dict[Any, Any]) -> list[int]:
    return sorted(row["v"] for row in rows.values())


def test_a_topic_goes_over(here: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Evolving(here, "t")
    table.sql(f"CREATE TABLE e.t ({COLUMNS})")
    with without_names(monkeypatch), here.carrying():
        write(table, 1)
        here.caught_up()
    table.subject.allow("FULL_TRANSITIVE")
    table.subject.allow("FULL_TRANSITIVE", "key")
    assert "MicroTimestamp" not in table.subject.schema(1)
    here.prepare("g", f"INSERT INTO e.t VALUES {VALUES.format(2, 2)}")
    with here.carrying():
        here.sql("COMMIT PREPARED 'g'")
        write(table, 3)
        table.sql(f"UPDATE e.t SET v = 10 WHERE id = '{ID.format(1)}'")
        here.caught_up()
        write(table, 4)
        here.caught_up()
    assert table.subject.versions() == [1, 2]
    assert "MicroTimestamp" in table.subject.schema(2)
    keys = {s.key for s in Raw(here.reader.bootstrap, here.reader.registry_url).read([table.topic])}
    assert len(keys) == 1, "the id of the key's schema is in its bytes: another one would be another key"
    assert values(table.rows()) == values(table.rows(1)) == values(table.rows(2)) == [2, 3, 4, 10]
    loads = [commit for commit in here.records("commits") if commit["kind"] == "reload"]
    assert not loads
    with without_names(monkeypatch), here.carrying():
        write(table, 5)
        here.caught_up()
    assert (table.subject.versions(), values(table.rows())) == ([1, 2], [2, 3, 4, 5, 10]), "and back"


def test_a_new_topics_key_has_names_and_a_label_more_changes_no_key(
    here: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Evolving(here, "t")
    table.sql(f"CREATE TABLE e.t ({COLUMNS})")
    with here.carrying():
        write(table, 1)
        here.caught_up()
        table.sql("ALTER TYPE mood ADD VALUE 'glad'")
    with here.carrying():
        table.sql(f"INSERT INTO e.t VALUES {VALUES.format(2, 2).replace('ok', 'glad')}")
        here.caught_up()
    assert [("sad,ok,glad" in table.subject.schema(n)) for n in table.subject.versions()] == [False, True]
    assert values(table.rows()) == values(table.rows(1)) == [1, 2]
    assert {s.key["mood"] for s in here.reader.read([table.topic])} == {"ok", "glad"}
    write(table, 3)
    with without_names(monkeypatch):
        assert "the message key of table e.t is not what it was" in str(here.refusal()), "the version before refuses"


def test_the_mirror_reads_both(
    here: Installation, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Evolving(here, "t")
    table.sql(f"CREATE TABLE e.t ({COLUMNS})")
    with without_names(monkeypatch), here.carrying():
        write(table, 1)
        write(table, 2)
        here.caught_up()
    catalog = f"named_{here.prefix}"
    for name, value in WAREHOUSE_CATALOG.settings(str(tmp_path), catalog).items():
        spark.conf.set(name, value)
    where = SimpleNamespace(
        bootstrap=here.reader.bootstrap,
        registry=here.reader.registry_url,
        prefix=here.prefix,
        visible=lambda: None,  # `caught_up` has seen to it
    )
    lake = Lake(spark, catalog, tmp_path, cast("Writer", where))
    lake.mirror()
    with here.carrying():
        write(table, 3)
        table.sql(f"UPDATE e.t SET v = 20 WHERE id = '{ID.format(2)}'", "ALTER TABLE e.t ALTER small TYPE int")
        table.sql(f"UPDATE e.t SET small = 40000 WHERE id = '{ID.format(1)}'")
        here.caught_up()
    lake.mirror()
    rows = {r["v"]: r.asDict() for r in spark.table(f"{catalog}.e.t").collect()}
    assert sorted(rows) == [1, 3, 20]
    assert {v: row["small"] for v, row in rows.items()} == {1: 40000, 3: 7, 20: 7}
    assert {str(row["at"]) for row in rows.values()} == {str(rows[1]["at"])}
