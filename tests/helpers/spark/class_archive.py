"""An archive of the classes that Spark loads: a JVM that has it starts with half of the work.

Without it each JVM reads some twenty thousand classes from their jars and verifies them. `make
test-all` makes it, once for a checkout. Java itself writes it, when a job ends that did a bit of
everything. It names the jars of this checkout, so it lies in its environment. A JVM with other jars
goes on without it: jobs in S3 have one of their own, which a test makes that starts many.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from pyspark.sql import DataFrame

from twofold_common import java
from twofold_spark import jars, session

QUICK_JAVA: Final = "-XX:TieredStopAtLevel=1"
"""Java's first compiler alone halves the start; the second pays only where millions of rows go
through."""
_SILENT: Final = "-Xlog:disable -Xlog:all=error:stderr"


@cache
def find_options(*, s3: bool = False) -> str:
    """Return what JVMs of Spark are started with, by way of JAVA_TOOL_OPTIONS."""
    found = (each for each in (_files(s3=s3), _files(s3=False)) if each[1].exists())
    return next((f"{QUICK_JAVA} -XX:SharedArchiveFile={basis}:{top} {_SILENT}" for basis, top in found), QUICK_JAVA)


def _files(*, s3: bool) -> tuple[Path, Path]:
    """Of Java's own classes, which not every Java has, and of those on top of them."""
    wants = map(str, (java.spark_java_home(), *jars.fetch(s3=s3)))
    folder = Path(sys.prefix) / "java-classes" / hashlib.sha256("\n".join(wants).encode()).hexdigest()[:16]
    return folder / "java.jsa", folder / "spark.jsa"


def make(*, s3: bool = False) -> None:
    """Make the archive, if it is not there."""
    basis, archive = _files(s3=s3)
    if archive.exists():
        return
    print("making the archive of Spark's classes, with which the tests' JVMs start sooner", flush=True)
    archive.parent.mkdir(parents=True, exist_ok=True)
    home, part = java.spark_java_home(), archive.with_suffix(".part")
    dump = [str(home / "bin" / "java"), "-Xshare:dump", f"-XX:SharedArchiveFile={basis}"]
    subprocess.run(dump, check=True, capture_output=True)
    options = f"{QUICK_JAVA} -XX:SharedArchiveFile={basis} -XX:ArchiveClassesAtExit={part} {_SILENT}"
    job = [sys.executable, __file__, str(home), *(["s3"] if s3 else [])]
    done = subprocess.run(
        job, env={**os.environ, "JAVA_TOOL_OPTIONS": options}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"the archive of Spark's classes cannot be made:\n{done.stderr}")
    part.replace(archive)
    find_options.cache_clear()


def _do_a_bit_of_everything(home: str, *, s3: bool) -> None:
    with tempfile.TemporaryDirectory() as folder, patch.object(jars, "fetch", return_value=jars.fetch(s3=s3)):
        spark = session.open_session(folder, memory="1g", java_home=home, name="classes")
        table, delta = f"{session.CATALOG}.here.rows", f"delta.`{folder}/delta`"
        spark.sql(f"CREATE NAMESPACE {session.CATALOG}.here")
        spark.sql(f"CREATE TABLE {table} (id BIGINT, v STRING) USING iceberg TBLPROPERTIES ('format-version' = '3')")
        spark.sql(f"CREATE TABLE {delta} (id BIGINT, v STRING) USING delta")
        for value in "ab":
            rows = spark.range(50).selectExpr("id", f"'{value}' AS v").persist()
            rows.createOrReplaceTempView("changes")
            for into in (table, delta):
                spark.sql(
                    f"MERGE INTO {into} t USING changes s ON t.id = s.id "
                    "WHEN MATCHED THEN UPDATE SET v = s.v WHEN NOT MATCHED THEN INSERT *"
                )
            rows.groupBy("v").count().collect()
        spark.sql(f"CALL {session.CATALOG}.system.rewrite_data_files(table => 'here.rows')")
        stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load().writeStream
        query = stream.foreachBatch(_read)
        query.option("checkpointLocation", f"{folder}/checkpoint").trigger(once=True).start().awaitTermination()
        driver: Any = spark.sparkContext._gateway
        spark.stop()
        driver.proc.stdin.close()
        driver.proc.wait()  # it writes the archive now


def _read(batch: DataFrame, _number: int) -> None:
    batch.collect()


if __name__ == "__main__":
    _do_a_bit_of_everything(sys.argv[1], s3=sys.argv[2:] == ["s3"]) if sys.argv[1:] else make()
