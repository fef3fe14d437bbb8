"""Tables that are not this mirror's under the names that it would give its own: another program's,
or those of another member whose catalog is the same one. They are refused, and stay as they are.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from fixtures.spark import Lake
from fixtures.stack import fresh_prefix, topics_deleted
from helpers.spark.writer import Writer, table
from twofold_spark.errors import Refused
from twofold_spark.mirror.batching import MirrorSettings
from twofold_spark.mirror.mirror_job import Mirror
from twofold_spark.readers.cut_tables import read_cut
from twofold_spark.session import member_catalog
from twofold_spark.sinks.sink_choice import SinkChoice
from twofold_spark.sources.kafka_client import Kafka
from twofold_spark.sources.registry import Registry
from twofold_spark.streaming import StreamingJob, Trigger

ACCOUNTS = table("accounts", {"id": "int8", "v": "text"})
CATALOG = "one_for_all"


def run_group(spark: SparkSession, folder: Path, *writers: Writer) -> None:
    """Mirror to the end of what is there."""
    for each in writers:
        each.visible()
    for each in writers:
        each.write_frontier([other for other in writers if other is not each])
    place = SinkChoice("iceberg").make_place(of_group=True, catalog=CATALOG)
    kafka, registry = Kafka(writers[0].bootstrap), Registry(writers[0].registry)
    mirror = Mirror(spark, kafka, registry, [each.prefix for each in writers], place, MirrorSettings())
    job = StreamingJob("mirror", mirror, meanwhile=mirror.look_if_due)
    try:
        job.start(mirror.open_stream(), folder / "checkpoint", Trigger.parse("available-now"))
        job.run()
    finally:
        mirror.close()


def test_members_whose_catalogs_are_one_are_refused(
    spark: SparkSession, kafka: Any, registry: Any, tmp_path: Path
) -> None:
    """As in a Hive metastore or in Glue, whose tables all catalogs of a session share."""
    names = sorted(fresh_prefix() for _ in range(2))
    with topics_deleted(kafka, names[0]), topics_deleted(kafka, names[1]):
        east, west = (Writer(kafka.bootstrap, registry.url, name) for name in names)
        for name in (CATALOG, *(member_catalog(CATALOG, each) for each in names)):
            settings = {"type": "hadoop", "warehouse": str(tmp_path / "warehouse"), "cache-enabled": "false"}
            spark.conf.set(f"spark.sql.catalog.{name}", "org.apache.iceberg.spark.SparkCatalog")
            for key, value in settings.items():
                spark.conf.set(f"spark.sql.catalog.{name}.{key}", value)
        for each in (east, west):
            each.join_group()
            each.table(ACCOUNTS)
        for number in range(3):
            with east.commit() as tx:
                tx.upsert("accounts", {"id": number, "v": "east"})
        run_group(spark, tmp_path, east, west)

        with west.commit() as tx:  # number 1, and the table is at 3
            tx.upsert("accounts", {"id": 100, "v": "west"})
        with pytest.raises(Refused, match=f"rows of the topic {east.prefix}.public.accounts, and not"):
            run_group(spark, tmp_path, east, west)
        rows = read_cut(spark, catalog=CATALOG)[f"{east.prefix}.public.accounts"].collect()
        assert {row["id"]: row.asDict() for row in rows} == east.model["accounts"]


@pytest.mark.parametrize("kept", ["iceberg", pytest.param("delta", marks=pytest.mark.slow)], indirect=True)
def test_another_programs_table_is_refused(kept: Lake) -> None:
    """A reload would replace its rows, and a row of a table without a key would join them."""
    w, name = kept.writer, "accounts"
    w.table(ACCOUNTS)
    if kept.choice.name == "iceberg":
        kept.spark.sql(f"CREATE NAMESPACE {kept.catalog}.public")
        full = f"{kept.catalog}.public.{name}"
    else:
        full = f"delta.`{kept.choice.address}/public/{name}`"
    kept.spark.sql(f"CREATE TABLE {full} (id bigint, v string) USING {kept.choice.name}")
    kept.spark.sql(f"INSERT INTO {full} VALUES (7, 'mine')")
    w.reload(name, [{"id": 1, "v": "theirs"}])
    with pytest.raises(Refused, match="that the mirror did not make") as refused:
        kept.mirror()
    assert refused.value.at_stake == "that table's rows"
    assert [tuple(row) for row in kept.spark.table(full).collect()] == [(7, "mine")]
