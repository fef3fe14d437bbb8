"""The branches of one global transaction, found in the commit records of two sources."""

from __future__ import annotations

import pytest

from fixtures.spark import Lake
from fixtures.stack import fresh_prefix
from helpers.spark.writer import Writer, table
from twofold_avro.records import PreparedOutcome
from twofold_spark import branches
from twofold_spark.errors import SPARK_ERRORS
from twofold_spark.sources.registry import Registry


def test_the_branches_of_a_global_transaction_are_found_in_all_sources(lake: Lake) -> None:
    orders = lake.writer
    stock = Writer(orders.bootstrap, orders.registry, fresh_prefix())
    for writer, branch in ((orders, "orders"), (stock, "stock")):
        name = writer.table(table("t", {"id": "int8"}))
        with writer.commit() as tx:
            tx.upsert(name, {"id": 1})
        with writer.prepare("prepared.00", f"global:{branch}") as tx:
            tx.upsert(name, {"id": 2})
        outcome = PreparedOutcome(tx.tx, 1, f"global:{branch}", 10, 20, 1_700_000_000_000_000, "global", branch)
        writer.finish(tx, kind="prepared", prepared=(outcome,))
        with writer.abort() as tx:
            tx.upsert(name, {"id": 3})
    registry = Registry(orders.registry)
    found = branches(lake.spark, [(lake.kafka, registry, writer.prefix) for writer in (orders, stock)])
    rows = found.where("global_id = 'global'").orderBy("branch").collect()
    assert [(row["prefix"], row["branch"], row["gid"], row["sequence"]) for row in rows] == [
        (orders.prefix, "orders", "global:orders", 2),
        (stock.prefix, "stock", "global:stock", 2),
    ]
    orders.main.begin_transaction()
    orders.main.produce(f"{orders.prefix}.commits", value=b"no commit record")
    orders.main.commit_transaction(30)
    with pytest.raises(SPARK_ERRORS, match=r"the commit record in .*\.commits \[0\] at offset \d+ cannot be read"):
        found.count()
