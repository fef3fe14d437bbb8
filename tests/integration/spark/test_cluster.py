"""The same job on a standalone Spark cluster: a master and two workers, `--py-files`, a
three-broker Kafka. By the lines of docs/use/spark.md, as they stand there."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from fixtures.spark import Lake, new_lake
from fixtures.stack import Registry
from helpers.spark.writer import Writer, table
from twofold.stack import KafkaCluster
from twofold.stack.process import LOOPBACK, GuardedProcess, choose_port
from twofold_common import java

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2700)]
SPARK_HOME = Path(pyspark.__file__).parent
_ROOT = Path(__file__).parents[3]


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """A master's address; its two workers have joined it."""
    port = choose_port(None, "Spark's master")
    address = f"spark://{LOOPBACK}:{port}"
    environment = {
        "JAVA_HOME": str(java.spark_java_home()),
        "SPARK_LOCAL_IP": LOOPBACK,
        "SPARK_WORKER_DIR": str(tmp_path / "work"),
    }

    def start(name: str, what: str, *arguments: str) -> Path:
        log = tmp_path / f"{name}.log"
        program = SPARK_HOME / "bin" / "spark-class"
        command: list[str | Path] = [
            program,
            f"org.apache.spark.deploy.{what}",
            "--host",
            LOOPBACK,
            "--webui-port",
            "0",
            *arguments,
        ]
        ending.callback(GuardedProcess(name, command, log=log, environment=environment).stop)
        return log

    with ExitStack() as ending:
        log = start("master", "master.Master", "--port", str(port))
        _wait_for(lambda: "New state: ALIVE" in log.read_text(), log)
        for number in range(2):
            start(f"worker{number}", "worker.Worker", "--cores", "1", "--memory", "1g", address)
        _wait_for(lambda: log.read_text().count("Registering worker") == 2, log)
        yield address


def _wait_for(holds: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(0.1)


@pytest.fixture
def clustered(
    spark: SparkSession, own_kafka: Callable[..., KafkaCluster], registry: Registry, prefix: str, tmp_path: Path
) -> Lake:
    kafka = own_kafka(brokers=3)
    return new_lake(spark, Writer(kafka.bootstrap, registry.url, prefix, replication=3), tmp_path / "lake")


def test_submitted_to_a_cluster_with_py_files_reading_three_brokers(
    clustered: Lake, master: str, tmp_path: Path
) -> None:
    lake, w = clustered, clustered.writer
    names = [w.table(table(f"t{n}", {"id": "int8", "v": "text"})) for n in range(3)]
    with w.commit() as tx:
        for name in names:
            for i in range(300):
                tx.upsert(name, {"id": i, "v": f"first {i}"})
    w.visible()
    _submit(lake, master, tmp_path, "mirror")
    lake.assert_equal()
    with w.commit() as tx:
        for name in names:
            for i in range(100, 200):
                tx.delete(name, i)
                tx.upsert(name, {"id": 1000 + i, "v": "second"})
    w.visible()
    _submit(lake, master, tmp_path, "mirror")
    _submit(lake, master, tmp_path, "changelog")
    lake.assert_equal()
    assert lake.spark.table(f"{lake.catalog}.public_changelog.t0").count() == 500
    for worker in range(2):
        assert "Asked to launch executor" in (tmp_path / f"worker{worker}.log").read_text()


def _submit(lake: Lake, master: str, tmp_path: Path, job: str) -> None:
    """By the lines of docs/use/spark.md, with this cluster's addresses in place of the page's."""
    page = (_ROOT / "docs/use/spark.md").read_text().partition("## Under spark-submit")[2]
    lines = page.split("```")[1].strip()
    for there, here in (
        ("spark://master:7077", master),
        ("kafka:9092", lake.writer.bootstrap),
        ("http://registry:8081", lake.writer.registry),
        ("--prefix shop", f"--prefix {lake.prefix} --catalog {lake.catalog}"),
        ("--warehouse /lake", f"--warehouse {lake.warehouse}"),
        ("__main__.py mirror", f"__main__.py {job}"),
        # Of this machine, which has little memory, and no name that workers know.
        (
            "--py-files",
            f"--conf spark.driver.host={LOOPBACK} --conf spark.executor.memory=512m --conf spark.ui.enabled=false --py-files",
        ),
    ):
        assert lines.count(there) == 1, there
        lines = lines.replace(there, here)
    checkout = tmp_path / "checkout"
    checkout.mkdir(exist_ok=True)
    for folder in ("spark_jobs", "avro", "common"):
        if not (checkout / folder).exists():
            (checkout / folder).symlink_to(_ROOT / folder)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYSPARK_", "PYTHONPATH", "SPARK_"))}
    environment |= {
        "JAVA_HOME": str(java.spark_java_home()),
        "PATH": os.pathsep.join((str(SPARK_HOME / "bin"), str(Path(sys.executable).parent), os.environ["PATH"])),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": LOOPBACK,
    }
    command = ["bash", "-euc", lines]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, timeout=800, cwd=checkout
    )
    assert done.returncode == 0, done.stderr[-5000:]
