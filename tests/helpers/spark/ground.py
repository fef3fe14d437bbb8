"""A broker, a registry and a Spark session in a folder of their own, for commands that measure or
try the jobs.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from pyspark.sql import SparkSession

from twofold.stack import KafkaCluster, RegistryServer, temporary_folder
from twofold_common import java
from twofold_spark import jars, object_store, session


@dataclass(frozen=True, slots=True)
class JobsGround:
    folder: Path
    bootstrap: str
    registry: str
    spark: SparkSession


@contextmanager
def jobs_ground(memory: str = "512m", *, s3: bool = False) -> Iterator[JobsGround]:
    """All ends with it, and the folder is removed. With `s3` the session's lakes may be there."""
    folder = temporary_folder()
    with ExitStack() as ending:
        ending.callback(shutil.rmtree, folder, ignore_errors=True)
        kafka, registry = KafkaCluster(folder / "kafka"), RegistryServer(folder / "registry")
        for server in (kafka, registry):
            ending.callback(server.stop)
            server.start()
        with patch.dict(os.environ, list_s3_environment() if s3 else {}):
            spark = session.open_session(folder / "lake", memory=memory, java_home=str(java.spark_java_home()))
        ending.callback(spark.stop)
        yield JobsGround(folder, kafka.bootstrap, registry.url, spark)


def list_s3_environment() -> dict[str, str]:
    """List what lets a session of this machine's folders have lakes in S3 as well."""
    return {
        "JAVA_TOOL_OPTIONS": object_store.JAVA_OPTIONS,
        "SPARK_DIST_CLASSPATH": os.pathsep.join(str(jar) for jar in jars.fetch(s3=True)),
    }
