"""The checker's other half: the mirror's tables, read through Spark with the settings that
docs/use/spark.md gives to everybody. It imports nothing of the product.

    python -m chaos.tables --warehouse FOLDER --journal FOLDER --jars CLASSPATH

The bank's total at every cut (of very many, a sample), and the last cut against the source. The
last line is JSON; exit status 1: there are violations.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from chaos import journal
from chaos.checks import BANKS, KEYLESS
from chaos.violation import Violation

CATALOG = "twofold"
CUTS_LOOKED_AT = 15


def session(warehouse: Path, jars: str, *, in_delta: bool = False) -> SparkSession:
    extensions = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
    delta = {}
    if in_delta:
        extensions += ",io.delta.sql.DeltaSparkSessionExtension"
        delta = {
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            # Of each version that is read: the default makes 50 tasks of the few files of its log.
            "spark.databricks.delta.snapshotPartitions": "2",
        }
    catalog = f"spark.sql.catalog.{CATALOG}"
    settings = {
        "spark.driver.extraClassPath": jars,
        "spark.driver.memory": "512m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.log.level": "ERROR",
        "spark.sql.extensions": extensions,
        **delta,
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.type": "jdbc",
        f"{catalog}.uri": f"jdbc:sqlite:{warehouse}/catalog.db?busy_timeout=30000",
        f"{catalog}.jdbc.schema-version": "V1",
        f"{catalog}.warehouse": str(warehouse),
    }
    builder = SparkSession.builder.master("local[2]").appName("chaos")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


class Cut:
    """One row of the cuts table, and the tables as it pins them."""

    def __init__(self, spark: SparkSession, row: Any) -> None:
        self._spark = spark
        self.sequence = int(row["sequence"])
        self.versions = {entry["name"]: int(entry["version"]) for entry in row["tables"]}
        self.loading = {topic.rpartition(".")[2] for topic in row["backfilling"]}

    def table(self, name: str) -> DataFrame:
        version = self.versions[f"public.{name}"]
        return self._spark.sql(f"SELECT * FROM {CATALOG}.public.{name} VERSION AS OF {version}")


def check(spark: SparkSession, source: Mapping[str, list[dict[str, Any]]], seed: list[Any]) -> Iterator[Violation]:
    total = sum(row["balance"] for table, _, row in seed if table in BANKS)
    rows = spark.table(f"{CATALOG}.twofold.cuts").where("whole").orderBy("sequence").collect()
    cuts = [Cut(spark, row) for row in rows]
    if not cuts:
        yield Violation("cut", "there is none")
        return
    *others, last = cuts
    for cut in [*random.Random(1).sample(others, min(CUTS_LOOKED_AT, len(others))), last]:
        if not cut.loading & set(BANKS):
            found = sum(sum(row["balance"] for row in cut.table(table).collect()) for table in BANKS)
            if found != total:
                yield Violation("bank", f"at cut {cut.sequence} the bank has {found}, not {total}")
    for table, wanted in source.items():
        yield from _same(table, wanted, [row.asDict() for row in last.table(table).collect()] if wanted else [])


def _same(table: str, wanted: list[dict[str, Any]], found: list[dict[str, Any]]) -> Iterator[Violation]:
    if table == KEYLESS:
        lines, copies = Counter(row["line"] for row in wanted), Counter({row["line"]: row["_copies"] for row in found})
        if lines != copies:
            yield Violation("final", f"mirror of {table}: lost {list((lines - copies).items())[:3]}, too many {list((copies - lines).items())[:3]}")  # fmt: skip
        return
    there, keys = {row["id"]: row for row in found}, {row["id"] for row in wanted}
    if len(there) < len(found):
        yield Violation("final", f"mirror of {table}: a key is there twice")
    if there.keys() != keys:
        yield Violation("final", f"mirror of {table}: lacks {sorted(keys - there.keys())[:3]}, has too many {sorted(there.keys() - keys)[:3]}")  # fmt: skip
    for row in wanted:
        other = there.get(row["id"], row)
        if any(other.get(column) != value for column, value in row.items()):
            yield Violation("final", f"mirror of {table}: {str(other)[:200]} and not {str(row)[:200]}")
            return


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m chaos.tables")
    parser.add_argument("--warehouse", type=Path, required=True)
    parser.add_argument("--journal", type=Path, required=True)
    parser.add_argument("--jars", required=True, help="what python -m twofold_spark jars prints")
    options = parser.parse_args()
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    source = json.loads((options.journal / "source.json").read_text())
    spark = session(options.warehouse, options.jars)
    violations = list(check(spark, source, journal.read(options.journal).seed))
    cuts = spark.table(f"{CATALOG}.twofold.cuts").count()
    for violation in violations:
        print(violation)  # the trial says it
    print(json.dumps({"cuts": cuts, "violations": len(violations), "kinds": sorted({v.kind for v in violations})}))
    spark.stop()
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
