"""What the steps of a mirror's rounds take, and how many jobs of Spark they run."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable
from statistics import median
from typing import Any

from pyspark.sql import SparkSession

ROUND = "round"
"""The whole of one, of which the others are parts."""


class Steps:
    """Times methods of objects, one call after the other."""

    def __init__(self, spark: SparkSession) -> None:
        self._context: Any = spark.sparkContext._jsc.sc()
        self._took: dict[str, list[tuple[float, int]]] = defaultdict(list)
        self._ended: float | None = None

    def watch(self, owner: Any, names: Iterable[str]) -> None:
        """Time these methods from now on."""
        for name in names:
            self._watch(owner, name)

    def _watch(self, owner: Any, name: str) -> None:
        method, step = getattr(owner, name), ROUND if name == "_run_round" else f"{type(owner).__name__}.{name}"

        def timed(*given: Any, **named: Any) -> Any:
            began, jobs = time.monotonic(), self._count_jobs()
            if step == ROUND and self._ended is not None:
                self._took["between two rounds"].append((began - self._ended, 0))
            try:
                return method(*given, **named)
            finally:
                now = time.monotonic()
                self._took[step].append((now - began, self._count_jobs() - jobs))
                if step == ROUND:
                    self._ended = now

        setattr(owner, name, timed)

    def describe(self) -> dict[str, dict[str, float]]:
        """Return the median of each step, in ms, its jobs, and how often it was called."""
        return {
            step: {
                "p50": round(median(seconds for seconds, _ in took) * 1000),
                "jobs": round(sum(jobs for _, jobs in took) / len(took), 1),
                "calls": len(took),
            }
            for step, took in sorted(self._took.items())
        }

    def _count_jobs(self) -> int:
        return int(self._context.dagScheduler().numTotalJobs())
