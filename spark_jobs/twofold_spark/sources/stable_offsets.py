"""Asks Kafka how far read_committed readers can read: the last stable offsets.

The last stable offset of a partition is where its oldest open transaction begins. A range that ends
below it is decided: read_committed returns its committed records and no others. So a commit record
that names rows of an aborted transaction shows in the count. A range above it only lies behind an
open transaction. That is mostly a prepared one in doubt, may stay for long, and says nothing of the
range.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from twofold_spark.sources.commit_records import OffsetRange
from twofold_spark.sources.kafka_client import Kafka, list_stable_offsets, open_admin

MARKERS_WITHIN_S = 5.0
"""How long to wait for a transaction's markers.

The broker writes them some milliseconds after it answers the commit.
"""
_POLL_S = 0.01
_ANSWER_WITHIN_MS = 5000


class StableOffsets:
    """Answers whether ranges are decided. Several threads may ask; the owner closes it."""

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka
        self._admin: Any = None
        self._admin_lock = threading.Lock()

    def have_passed(self, spark: SparkSession, ranges: Iterable[OffsetRange]) -> bool:
        """Whether all ranges are decided: no other transaction is open below one of them."""
        lasts: dict[tuple[str, int], int] = {}
        firsts = set()
        for r in ranges:
            firsts.add((r.topic, r.partition, r.first))
            lasts[r.topic, r.partition] = max(r.last, lasts.get((r.topic, r.partition), -1))
        deadline = time.monotonic() + MARKERS_WITHIN_S
        while lasts:
            try:
                stable = self._read(spark, lasts)
            except Py4JJavaError:
                # Mostly the topic was deleted. The read that follows reports that, and every read
                # is counted.
                return False
            lasts = {place: last for place, last in lasts.items() if stable[place] <= last}
            own = all((*place, stable[place]) in firsts for place in lasts)
            if not own or (lasts and time.monotonic() > deadline):
                return False
            if lasts:
                time.sleep(_POLL_S)
        return True

    def close(self) -> None:
        if self._admin is not None:
            self._admin.close()

    def _read(self, spark: SparkSession, places: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        with self._admin_lock:
            self._admin = self._admin or open_admin(spark, self._kafka)
        return list_stable_offsets(spark, self._admin, places, within_ms=_ANSWER_WITHIN_MS)
