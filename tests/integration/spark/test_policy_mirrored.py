"""The data policy behind Kafka: canaries in every column under it are in no table of the mirror or
of the changelog, and `verify` says what it does not compare.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures.connector import Maker, wait_until
from fixtures.spark import Lake
from helpers.connector.canary import sings
from helpers.connector.canary_work import CHANGES, RULES, TABLES, CanaryWork, rules
from twofold.config import load
from twofold.runner.initialisation import initialise
from twofold.runner.status_report import read_status
from twofold_spark.sources.postgres_connection import build_jdbc_url
from twofold_spark.sources.registry import Registry
from twofold_spark.sources.source_database import SourceDatabase
from twofold_spark.verify.verification import Verification

pytestmark = pytest.mark.timeout(900)


def test_policy_leaves_no_canary_in_a_mirror(lake: Lake, connector: Maker, tmp_path: Path) -> None:
    (tmp_path / "policy.key").write_bytes(b"k" * 40)
    policy = {"key_file": str(tmp_path / "policy.key"), "columns": rules(RULES)}
    here = connector(init=False, policy=policy, source={"tables": ["public.person", "public.letter"]})
    here.sql(*filter(str.strip, TABLES.split(";")))
    lake.prefix = here.prefix
    work = CanaryWork(here, seed=3)
    work.some(20)
    initialise(load(here.file), print)
    with here.carrying():
        wait_until(lambda: here.records("commits") and not read_status(load(here.file)).backfilling, 120)
        for change in CHANGES:
            work.some(15)
            here.sql(change)
        work.some(15)
        work.end(work.prepare("person"), "COMMIT")
        before = here.ask("SELECT pg_current_wal_insert_lsn() - '0/0'")
        here.sql("INSERT INTO letter (id) VALUES (0)")
        wait_until(lambda: any(r["applied_lsn"] > before for r in here.records("commits")), 120)
    lake.mirror()
    lake.changelog()
    tables = [
        f"{lake.catalog}.{space.namespace}.{table.tableName}"
        for space in lake.spark.sql(f"SHOW NAMESPACES IN {lake.catalog}").collect()
        for table in lake.spark.sql(f"SHOW TABLES IN {lake.catalog}.{space.namespace}").collect()
    ]
    cells = {name: [str(cell) for row in lake.spark.table(name).collect() for cell in row] for name in tables}
    assert len(cells[f"{lake.catalog}.public.person"]) > 20
    assert len(cells) >= 4
    assert not [name for name, found in cells.items() if any(map(sings, found))]
    said: list[str] = []
    source = SourceDatabase(lake.spark, build_jdbc_url(here.conninfo))
    read_policy = Registry(lake.writer.registry).read_policy
    try:
        verify = Verification(
            lake.spark, source, reader=lake.reader, prefix=lake.prefix, read_policy=read_policy, report=said.append
        )
        assert [(each.table, each.buckets) for each in verify.run()] == [("public.letter", 0), ("public.person", 0)]
    finally:
        source.close()
    assert any("public.person: under a data policy, NOT compared: doc (drop), email (hash)" in line for line in said)
