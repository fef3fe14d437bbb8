"""What `--partition-by` costs a merge, and what a reader of some partitions gains.

    make bench-partitioned [ARGS='ROWS ROUNDS']

Tables of ROWS rows (100 thousand), by different partitionings, get a thousand random keys in each
of ROUNDS merges (nine), by turns in one process. The sort before writing is Iceberg's default;
`fanout` is `write.spark.fanout.enabled`. Each table is then read by `region = 'r1'`, an eighth of
its rows.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from twofold_common import java
from twofold_spark import session
from twofold_spark.java_classes import java_class
from twofold_spark.row_columns import OP, UNCHANGED
from twofold_spark.sinks.iceberg_branches import MERGES
from twofold_spark.sinks.iceberg_place import IcebergPlace
from twofold_spark.sinks.iceberg_tables import full_name, load_table
from twofold_spark.sinks.interface import MirrorTable, TableBatch
from twofold_spark.sinks.partitioning import Partitioning, parse_partitioning

CASES = {"plain": "", "bucketed": "bucket(16, id)", "regional": "region", "daily": "days(created)"}
FANOUT = "_fanout"
KEYS, WARM_UP = 1000, 2


@dataclass
class Case:
    """A table, and what its merges took."""

    table: MirrorTable
    load_s: float = 0
    merge_s: list[float] = field(default_factory=list)
    read_s: list[float] = field(default_factory=list)


def make_rows(keys: DataFrame) -> DataFrame:
    return keys.selectExpr(
        "id",
        "timestamp'2026-01-01' + make_interval(0, 0, 0, cast(id % 30 AS int)) AS created",
        "concat('r', id % 8) AS region",
        "concat('note ', id, rand()) AS note",
        f"'u' AS {OP}",
        f"cast(array() AS array<string>) AS {UNCHANGED}",
    )


def files_of_region(spark: SparkSession, name: str) -> tuple[int, int]:
    """Return how many data files a scan of one region opens, and their bytes."""
    region = java_class(spark, "org.apache.iceberg.expressions.Expressions").equal("region", "r1")
    scan: Any = load_table(spark, name).newScan().useRef(MERGES).filter(region)
    tasks, sizes = scan.planFiles().iterator(), []
    while tasks.hasNext():
        sizes.append(int(tasks.next().file().fileSizeInBytes()))
    return len(sizes), sum(sizes)


def measure(spark: SparkSession, rows: int, rounds: int) -> None:
    given = [(name + mode, by) for name, by in CASES.items() for mode in ("", FANOUT)[: 2 if by else 1]]
    partitioning = Partitioning(tuple(parse_partitioning(f"public.{name}={by}") for name, by in given if by))
    place = IcebergPlace(partitioning=partitioning)
    place.open(spark, ("bench",))
    sink = place.make_sink(spark, "bench")
    cases = [Case(MirrorTable(f"bench.public.{name}", "public", name, ("id",))) for name, _ in given]
    for sequence in range(1, rounds + 2):
        random.shuffle(cases)
        keys = [(key,) for key in random.sample(range(rows), KEYS)]
        for case in cases:
            table, name = case.table, full_name("twofold", str(case.table))
            sink.read_applied(table)
            sink.plan_batch([table], KEYS)
            batch = make_rows(spark.range(rows) if sequence == 1 else spark.createDataFrame(keys, "id bigint"))
            sink.prepare(table, batch.drop(OP, UNCHANGED).schema)
            if sequence == 1 and table.name.endswith(FANOUT):
                spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('write.spark.fanout.enabled' = 'true')")
            began = time.monotonic()
            sink.merge(table, TableBatch(batch, None, False, ()), sequence=sequence)
            if sequence == 1:
                case.load_s = time.monotonic() - began
            else:
                case.merge_s.append(time.monotonic() - began)
    for _ in range(rounds):
        for case in cases:
            name, began = full_name("twofold", str(case.table)), time.monotonic()
            spark.sql(f"SELECT sum(length(note)) FROM {name} VERSION AS OF '{MERGES}' WHERE region = 'r1'").collect()
            case.read_s.append(time.monotonic() - began)
    for case in sorted(cases, key=lambda case: case.table.name):
        name = full_name("twofold", str(case.table))
        summary = load_table(spark, name).snapshot(MERGES).summary()
        files, size = files_of_region(spark, name)
        print(
            f"{case.table.name}: load {case.load_s:.2f} s, merge {median(case.merge_s[WARM_UP:]):.2f} s, "
            f"data files {summary.get('added-data-files')}, deletion vectors {summary.get('added-delete-files')}, "
            f"read of a region {median(case.read_s[WARM_UP:]):.3f} s, {files} of "
            f"{summary.get('total-data-files')} files, {size >> 10} of {int(summary.get('total-files-size')) >> 10} kB"
        )


def main() -> None:
    given = [int(word) for word in sys.argv[1:]]
    rows, rounds = (*given, *(100_000, 9)[len(given) :])
    with tempfile.TemporaryDirectory() as folder:
        spark = session.open_session(folder, memory="512m", java_home=str(java.spark_java_home()))
        try:
            measure(spark, rows, rounds)
        finally:
            spark.stop()


if __name__ == "__main__":
    main()
