"""How Spark plans a batch: one of few rows into small tables as one task for each table.

Adaptive execution runs each stage as a job of its own, and plans the rest again after it. It and
several partitions are worth their cost where there are many rows.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import SparkSession

_FEW_ROWS = 10_000
SMALL_TABLE_ROWS = 200_000
"""A table with fewer rows is small; a MERGE reads all of it."""
_FOR_FEW_ROWS = {"spark.sql.shuffle.partitions": "1", "spark.sql.adaptive.enabled": "false"}


class BatchPlan:
    """Sets how the batches of one session are planned. Not used while one runs."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._usual = {key: spark.conf.get(key) or "" for key in _FOR_FEW_ROWS}
        self._is_small = False

    def choose(self, rows: int, table_rows: Iterable[int | None]) -> None:
        """Choose by the rows of the batch and of its tables; None is a table of unknown size."""
        is_small = rows <= _FEW_ROWS and all(n is not None and n < SMALL_TABLE_ROWS for n in table_rows)
        if is_small != self._is_small:
            for key, value in (_FOR_FEW_ROWS if is_small else self._usual).items():
                self._spark.conf.set(key, value)
            self._is_small = is_small
