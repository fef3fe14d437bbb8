"""Maintenance of Iceberg's tables: cuts and versions that are too old, small files.

It works on the branch that merges go to, between two batches, and publishes what compaction wrote.
Versions that a kept cut, a branch or a tag names stay.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from twofold_spark.sinks import cut_rows, iceberg_tables
from twofold_spark.sinks.cuts import CUTS
from twofold_spark.sinks.iceberg_branches import CutPublisher
from twofold_spark.sinks.iceberg_tables import MAIN, full_name, name_branch
from twofold_spark.sinks.merge_sql import escape_literal


def maintain(
    spark: SparkSession,
    catalog: str,
    branch: str,
    publisher: CutPublisher,
    tables: Collection[str],
    keep: dt.timedelta,
    since: int | None = None,
) -> None:
    """Compact the tables, and expire what no cut needs. With `CUTS` among them forget cuts older
    than `keep` and before `since`.
    """
    cuts = name_branch(full_name(catalog, CUTS), branch)
    last = iceberg_tables.IcebergReader(spark, catalog).read_last_cut(branch)
    assert last is not None, "maintenance comes after a cut"
    if CUTS in tables:
        spark.sql(f"DELETE FROM {cuts} WHERE {cut_rows.expired_condition(last, keep, since)}")
    named = spark.table(cuts).select(f.explode("tables").alias("t")).select("t.name", "t.version").distinct()
    wanted = {(row["name"], row["version"]) for row in named.collect()}
    heads: dict[str, int] = {}
    for table in tables:
        _compact(spark, catalog, table, branch)
        loaded = iceberg_tables.load_table(spark, full_name(catalog, table))
        if (head := iceberg_tables.current_snapshot(loaded, branch)) is not None:
            heads[table] = head
    if last.whole:
        publisher.publish(heads, {})
    for table in heads:
        _expire_snapshots(spark, catalog, table, {version for name, version in wanted if name == table}, keep)


def maintain_plain(spark: SparkSession, catalog: str, table: str, keep: dt.timedelta) -> None:
    """Compact a table that no cut names, and expire its snapshots older than `keep`."""
    _compact(spark, catalog, table, MAIN)
    _expire_snapshots(spark, catalog, table, set(), keep)


def _compact(spark: SparkSession, catalog: str, table: str, branch: str) -> None:
    name = escape_literal(full_name(catalog, table))
    spark.sql(f"CALL {catalog}.system.rewrite_data_files(table => '{name}', branch => '{branch}')")


def _expire_snapshots(spark: SparkSession, catalog: str, table: str, wanted: set[int], keep: dt.timedelta) -> None:
    """Expire snapshots by their ids.

    A recent cut may name an old snapshot, if the table did not change since.
    """
    name = full_name(catalog, table)
    newest_first = spark.sql(
        f"SELECT snapshot_id, committed_at < {cut_rows.time_ago(keep)} AS old FROM {name}.snapshots "
        "ORDER BY committed_at DESC"
    ).collect()
    named = {row[0] for row in spark.sql(f"SELECT snapshot_id FROM {name}.refs").collect()}
    # The last two stay: one of them has the sequence number, and the other may be compaction's.
    old = [str(row[0]) for row in newest_first[2:] if row["old"] and row[0] not in wanted | named]
    if old:
        spark.sql(
            f"CALL {catalog}.system.expire_snapshots(table => '{escape_literal(name)}', "
            f"older_than => TIMESTAMP '1970-01-01 00:00:00', snapshot_ids => array({', '.join(old)}))"
        )
