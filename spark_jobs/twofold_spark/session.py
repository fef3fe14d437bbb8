"""The SparkSession of the jobs: made for a laptop, taken unchanged under spark-submit.

Under spark-submit (or in a notebook) the session is there before the job; it is then used as it is, and only what the
jobs cannot do without is checked. On its own, a job makes `local[2]` with 512 MB: time zone UTC, no web page, two
shuffle partitions, everything on loopback.

The Iceberg catalog is `twofold` if no other is named: a JDBC catalog in `<warehouse>/catalog.db` (SQLite), whose compare-and-swap keeps two
writers apart on any file system and which pyiceberg reads as well. A session that already has a catalog of that name
keeps its own: Hive, Glue, Polaris, Nessie are the user's choice.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from pyspark.sql import SparkSession

import twofold_common.errors
from twofold_common import java
from twofold_spark import jars
from twofold_spark.errors import BadUsage, MissingGround

CATALOG = "twofold"
_JAVA_OPTIONS = "-XX:+UseSerialGC -XX:ReservedCodeCacheSize=256m -Duser.timezone=UTC"
"""One collector's thread: a laptop's few cores are for the rows. Where only the start matters (a demo, a test), JAVA_TOOL_OPTIONS with
-XX:TieredStopAtLevel=1 halves it."""

_CONSUMERS = {
    f"spark.kafka.consumer.{cache}.{name}": value
    for cache in ("cache", "fetchedData.cache")
    for name, value in (("timeout", "5s"), ("evictorThreadRunInterval", "2s"))
}
"""Each read of ranges has consumers of its own, which Spark keeps for five minutes with what they fetched ahead, some MB each: a backlog of
large bites filled the driver's memory with them."""


def place(text: str) -> str:
    """A folder of this machine by its whole path, wherever the job was started; `s3a://...` and the like as they are."""
    return text if "://" in text else str(Path(text).absolute())


def catalog_settings(warehouse: Path, catalog: str = CATALOG) -> dict[str, str]:
    """What makes an Iceberg catalog of a folder."""
    prefix = f"spark.sql.catalog.{catalog}"
    return {
        prefix: "org.apache.iceberg.spark.SparkCatalog",
        f"{prefix}.type": "jdbc",
        f"{prefix}.uri": f"jdbc:sqlite:{warehouse}/catalog.db?busy_timeout=30000",
        f"{prefix}.jdbc.schema-version": "V1",
        f"{prefix}.warehouse": str(warehouse),
        # A reader that polls, and a retried batch, must see the table as it is and not as it was cached.
        f"{prefix}.cache-enabled": "false",
    }


def local_settings(warehouse: Path, *, catalog: str, memory: str) -> dict[str, str]:
    """Everything a session on one machine is made with."""
    return {
        **catalog_settings(warehouse, catalog),
        "spark.driver.extraClassPath": os.pathsep.join(str(jar) for jar in jars.fetch()),
        "spark.driver.extraJavaOptions": _JAVA_OPTIONS,
        "spark.driver.memory": memory,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        # The code that Spark generates for a table's batch is the same each time; with room for 100 pieces it is made anew.
        "spark.sql.codegen.cache.maxEntries": "5000",
        # Code with a batch's keys written into it would be another one each time.
        "spark.sql.optimizer.inSetSwitchThreshold": "0",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(warehouse / "spark"),
        "spark.sql.extensions": (
            "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions,io.delta.sql.DeltaSparkSessionExtension"
        ),
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "2",
        # A commit record is read as soon as it is there; a batch of nothing is not made.
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        "spark.sql.streaming.pollingDelay": "20ms",
        "spark.log.level": "ERROR",
        **_CONSUMERS,
    }


def open_session(
    warehouse: Path | str,
    *,
    catalog: str = CATALOG,
    master: str = "local[2]",
    memory: str = "512m",
    java_home: str | None = None,
    name: str = "twofold",
) -> SparkSession:
    """The session that is there, or a new one for this machine."""
    there = SparkSession.getActiveSession() or _submitted()
    if there is not None:
        _check(there, catalog)
        return there
    if "://" in str(warehouse):
        raise BadUsage(
            f"--warehouse {warehouse}: without spark-submit the catalog is a file in it, so it is a folder of this machine by its path; "
            "tables elsewhere want spark-submit, with a catalog of yours (docs/use/spark.md has the lines)"
        )
    warehouse = Path(warehouse)
    _choose_java(java_home)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    warehouse.mkdir(parents=True, exist_ok=True)
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in local_settings(warehouse, catalog=catalog, memory=memory).items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _submitted() -> SparkSession | None:
    """spark-submit starts the JVM first and tells the port: then the session is made by what was submitted."""
    return SparkSession.builder.getOrCreate() if "PYSPARK_GATEWAY_PORT" in os.environ else None


def _check(spark: SparkSession, catalog: str) -> None:
    if spark.conf.get(f"spark.sql.catalog.{catalog}", None) is None:
        raise MissingGround(
            f"the session has no Iceberg catalog {catalog!r}: submit with --conf spark.sql.catalog.{catalog}=... "
            "(docs/use/spark.md has the lines)"
        )
    if spark.conf.get("spark.sql.session.timeZone", None) not in ("UTC", "Etc/UTC", "Z", "+00:00"):
        raise MissingGround("the session's time zone is not UTC: submit with --conf spark.sql.session.timeZone=UTC")


def _choose_java(java_home: str | None) -> None:
    home = java_home or os.environ.get("JAVA_HOME")
    if home is None:
        try:
            home = str(java.spark_java_home())
        except twofold_common.errors.SetupError as error:
            raise MissingGround(str(error)) from None
    os.environ["JAVA_HOME"] = home
    program = Path(home) / "bin" / "java"
    if not program.exists():
        raise MissingGround(
            f"{program} does not exist: correct JAVA_HOME or --java-home; Spark 4.1 runs on Java 17 or 21"
        )
    said = subprocess.run([program, "-version"], capture_output=True, text=True, check=False).stderr
    version = said.partition('version "')[2].partition(".")[0].partition('"')[0]
    if version not in ("17", "21"):
        raise MissingGround(f"{program} is Java {version or 'of unknown version'}: Spark 4.1 runs on Java 17 or 21")
