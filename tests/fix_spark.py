"""One Spark for the whole pytest session, and for each test a lake of its own: a catalog, a prefix, a writer.

A test gets `lake`: it writes with `lake.writer`, runs the real job with `lake.mirror()` (available-now, to the end of what
is there), and compares `lake.rows(table)` with `lake.writer.model[table]`.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import psycopg
import pyspark.util
import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_writer import Writer
from twofold.stack import java
from twofold_spark import session
from twofold_spark.changelog import Changelog
from twofold_spark.cuts import Tables, read_cut
from twofold_spark.kafka import Kafka
from twofold_spark.mirror import Applied, Mirror
from twofold_spark.registry import Registry
from twofold_spark.running import Job, Trigger
from twofold_spark.sinks import Reader, Sink
from twofold_spark.sinks.choice import SinkChoice
from twofold_spark.sinks.iceberg_tables import quoted

# Java's first compiler alone halves the start; the second pays only where millions of rows go through.
QUICK_JAVA = "-XX:TieredStopAtLevel=1"
_number = itertools.count(1)


def _closing(sock_info: Any) -> Any:
    sockfile, sock = pyspark.util.local_connect_and_auth(sock_info[0], sock_info[1])
    sock.settimeout(None)
    sock.close()
    return sockfile


# PySpark never closes the socket of a collect, which is a ResourceWarning and so an error here. Closed at once it stays
# open until its file is closed, as Python's sockets do.
pyspark.util._create_local_socket = _closing


class _Kafka(Protocol):
    @property
    def bootstrap(self) -> str: ...


class _Registry(Protocol):
    @property
    def url(self) -> str: ...


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session as the jobs make it on a laptop, with room for the tests' many plans, and quick rather than fast."""
    os.environ["JAVA_TOOL_OPTIONS"] = QUICK_JAVA
    made = session.open_session(
        tmp_path_factory.mktemp("spark"), memory="1g", java_home=str(java.spark_java_home()), name="tests"
    )
    del os.environ["JAVA_TOOL_OPTIONS"]
    yield made
    made.stop()


@dataclass
class Lake:
    """A warehouse of its own, and the writer that feeds it."""

    spark: SparkSession
    catalog: str
    warehouse: Path
    writer: Writer
    applied: list[Applied] = field(default_factory=list)
    checkpoint: str = "checkpoint"
    choice: SinkChoice = field(default_factory=lambda: SinkChoice("iceberg"))
    prefix: str = ""
    """Whose topics are mirrored: the writer's, if no other is given."""

    def __post_init__(self) -> None:
        self.prefix = self.prefix or self.writer.prefix

    @property
    def kafka(self) -> Kafka:
        return Kafka(self.writer.bootstrap)

    @property
    def reader(self) -> Reader:
        return self.choice.reader(self.spark, catalog=self.catalog)

    def _sink(self, spark: SparkSession) -> Sink:
        return self.choice.sink(spark, self.prefix, catalog=self.catalog)

    def mirror(self, *, around: Callable[[Sink], Sink] = lambda sink: sink, **settings: Any) -> None:
        """Runs the mirror to the end of what is committed; a failure is raised as the job raised it. `around` the sink."""
        mirror = Mirror(
            self.kafka,
            Registry(self.writer.registry),
            self.prefix,
            lambda its: around(self._sink(its)),
            report=self.applied.append,
            **settings,
        )
        self.writer.visible()
        job = Job("mirror", mirror)
        try:
            job.start(mirror.stream(self.spark), self.warehouse / self.checkpoint, Trigger.parse("available-now"))
            job.run()
        finally:
            mirror.close()

    def changelog(self, **settings: Any) -> None:
        """Runs the changelog to the end of what is committed."""
        self.writer.visible()
        changelog = self.changelog_job(**settings)
        try:
            changelog.run(self.warehouse / f"changelog-{self.checkpoint}", Trigger.parse("available-now"))
        finally:
            changelog.close()

    def changelog_job(self, **settings: Any) -> Changelog:
        """One to take turns by hand."""
        registry = Registry(self.writer.registry)
        return Changelog(self.spark, self.kafka, registry, self.prefix, catalog=self.catalog, **settings)

    def table(self, name: str) -> DataFrame:
        """As it is now, for Iceberg; as of the last cut for the others."""
        full = (self.writer.topics[name].shape.schema, name)
        return (
            self.spark.table(f"{self.catalog}.{quoted(*full)}")
            if self.choice.name == "iceberg"
            else self.cut()[".".join(full)]
        )

    def rows(self, name: str, of: DataFrame | None = None) -> dict[Any, dict[str, Any]]:
        """The mirror's rows by key, as the writer's model has them."""
        found = [row.asDict() for row in (of if of is not None else self.table(name)).collect()]
        rows = {self.writer.key_of(name, row): row for row in found}
        assert len(rows) == len(found), f"a key occurs twice in {name}"
        return rows

    def drop(self, name: str) -> None:
        """Drops the mirror's table, as a message of the job says."""
        schema = self.writer.topics[name].shape.schema
        match self.choice.name:
            case "iceberg":
                self.spark.sql(f"DROP TABLE {self.catalog}.{quoted(schema, name)}")
            case "delta":
                shutil.rmtree(Path(self.choice.address) / schema / name)
            case "jdbc":
                with psycopg.connect(self.choice.address) as connection:
                    connection.execute(f"DROP TABLE {schema}.{name}")

    def cut(self, **at: Any) -> Tables:
        return read_cut(self.spark, reader=self.reader, **at)

    def planned(self, text: str) -> int:
        """How many statements on this catalog Spark has planned with it."""
        executions = self.spark._jsparkSession.sharedState().statusStore().executionsList()
        plans = [executions.apply(n).physicalPlanDescription() for n in range(executions.size())]
        return sum(text in plan and f" {self.catalog}." in plan for plan in plans)

    def assert_equal(self) -> None:
        """Every table is what the writer's model says."""
        for name, model in self.writer.model.items():
            assert self.rows(name) == model, name


@pytest.fixture
def lake(spark: SparkSession, kafka: _Kafka, registry: _Registry, prefix: str, tmp_path: Path) -> Lake:
    return new_lake(spark, Writer(kafka.bootstrap, registry.url, prefix), tmp_path)


def new_lake(spark: SparkSession, writer: Writer, folder: Path) -> Lake:
    """A catalog of its own in the folder."""
    catalog = f"lake{next(_number)}"
    folder.mkdir(exist_ok=True)
    for name, value in session.catalog_settings(folder, catalog).items():
        spark.conf.set(name, value)
    return Lake(spark, catalog, folder, writer)


@pytest.fixture(params=["iceberg", "delta", "jdbc"])
def kept(lake: Lake, request: pytest.FixtureRequest) -> Lake:
    """A lake that is kept in this sink. Tests that need few of them say so: `parametrize("kept", KEPT_SHORT, indirect=True)`."""
    match request.param:
        case "delta":
            lake.choice = SinkChoice("delta", str(lake.warehouse / "delta"))
        case "jdbc":
            lake.choice = SinkChoice("jdbc", request.getfixturevalue("database"))
    return lake


KEPT_SHORT = ["iceberg", *(pytest.param(name, marks=pytest.mark.slow) for name in ("delta", "jdbc"))]
"""Where a test is long and says the same of each sink: Iceberg always, the others in `make test-slow`."""
