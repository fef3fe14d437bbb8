"""A batch of few rows is planned as one task for each of its tables; the next one as usual."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from twofold_spark.sinks.interface import BatchPlan

USUAL = ("7", "true")


@pytest.mark.parametrize(
    ("rows", "table_rows", "is_small"),
    [
        pytest.param(10_000, [0, 199_999], True, id="few rows, small tables"),
        pytest.param(10_001, [0], False, id="many rows"),
        pytest.param(10, [5, 200_000], False, id="a large table among them"),
        pytest.param(10, [None], False, id="a table of unknown size"),
    ],
)
def test_one_task(spark: SparkSession, rows: int, table_rows: list[int | None], is_small: bool) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", USUAL[0])
    session.conf.set("spark.sql.adaptive.enabled", USUAL[1])
    plan = BatchPlan(session)

    plan.choose(10, [0])
    plan.choose(rows, table_rows)
    assert _settings(session) == (("1", "false") if is_small else USUAL)

    counted = session.range(100).groupBy(f.col("id") % 7).count()._jdf.queryExecution().executedPlan().toString()
    assert ("AdaptiveSparkPlan" in counted) != is_small


def _settings(session: SparkSession) -> tuple[str | None, str | None]:
    return session.conf.get("spark.sql.shuffle.partitions"), session.conf.get("spark.sql.adaptive.enabled")
