"""Debezium on Kafka Connect, and the job that people write by hand: Spark's `foreachBatch` with a
MERGE into Iceberg.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Final

from compare import debezium, lake
from compare.debezium import Worker
from compare.faults import Part
from compare.ground import Ground, Service
from compare.lake import LakeCopy
from compare.looks import Copy
from twofold_common.java import spark_java_home

_JSON: Final = {"": "org.apache.kafka.connect.json.JsonConverter", ".schemas.enable": "false"}


class DebeziumMerge:
    """A MERGE by key is idempotent, so a batch that is done again ends in the same rows."""

    name = "debezium-merge"
    kafka = True
    documentation = (
        *debezium.DOCUMENTATION,
        (
            "foreachBatch with an idempotent write, checkpointLocation",
            "https://spark.apache.org/docs/4.1.3/streaming/apis-on-dataframes-and-datasets.html#foreachbatch",
        ),
        (
            "kafka.isolation.level = read_committed",
            "https://spark.apache.org/docs/4.1.3/streaming/structured-streaming-kafka-integration.html",
        ),
        (
            "MERGE INTO, write.merge.mode = merge-on-read",
            "https://iceberg.apache.org/docs/latest/spark-writes/#merge-into",
        ),
    )

    def __init__(self) -> None:
        self._worker: Worker | None = None
        self._job: Service | None = None
        self._lake: LakeCopy | None = None

    @property
    def parts(self) -> Mapping[str, Part]:
        return {name: part for name, part in (("connect", self._worker), ("spark", self._job)) if part}

    def start(self, ground: Ground) -> Copy:
        self._worker = Worker(ground, ("debezium",))
        self._worker.start()
        self._worker.await_answers()
        debezium.start_sources(ground, self._worker, _JSON)
        warehouse = ground.folder / "lake"
        settings = lake.choose_catalog(ground).settings(str(warehouse), lake.CATALOG)
        words = [ground.kafka.bootstrap, str(warehouse), json.dumps(settings)]
        command = [sys.executable, "-m", "compare.merge_job", *words]
        environment = {"JAVA_HOME": str(spark_java_home()), "PYTHONPATH": os.pathsep.join(sys.path)}
        self._job = Service("spark", command, ground.folder / "spark.log", environment)
        self._job.start()
        self._lake = LakeCopy(ground.copies)
        return self._lake

    def tend(self) -> None:
        for part in (self._worker, self._job):
            if part is not None:
                part.tend()

    def stop(self) -> None:
        for part in (self._job, self._worker):
            if part is not None:
                part.stop()
        if self._lake is not None:
            self._lake.duckdb.close()
