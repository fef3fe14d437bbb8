"""The walls of docs/inside/architecture.md: what each folder imports. The tables are exact."""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {"twofold", "twofold_avro", "twofold_common", "twofold_reader", "twofold_spark"}


@dataclass(frozen=True)
class Walls:
    """Imports of a folder: folders of its distribution, packages beside the standard library."""

    folders: set[str] = field(default_factory=set)
    packages: set[str] = field(default_factory=set)


CONNECTOR: Mapping[str, Walls] = {
    "source": Walls({"conninfo", "descriptions", "errors"}, {"psycopg", "twofold_avro", "twofold_common"}),
    "stream": Walls(
        {"bridge", "descriptions", "errors", "kafka", "lives", "outbox", "source", "spool", "tables"},
        {"twofold_avro", "twofold_common"},
    ),
    "tables": Walls(
        {"config", "descriptions", "errors", "kafka", "lives", "loads", "outbox", "source", "thread_owner"},
        {"twofold_avro", "twofold_common"},
    ),
    "outbox": Walls({"config", "errors", "kafka", "source"}, {"twofold_avro", "twofold_common"}),
    "descriptions": Walls(),
    "bridge": Walls({"errors"}, {"twofold_common"}),
    "lives": Walls(),
    "loads": Walls(
        {"config", "errors", "kafka", "lives", "source", "spool", "thread_owner"},
        {"fastavro", "twofold_avro", "twofold_common"},
    ),
    "kafka": Walls(
        {"config", "errors", "failpoints", "thread_owner"}, {"confluent_kafka", "twofold_avro", "twofold_common"}
    ),
    "group": Walls({"bridge", "errors", "kafka", "source"}, {"twofold_avro", "twofold_common"}),
    "run": Walls(
        {
            "bridge",
            "config",
            "descriptions",
            "errors",
            "failpoints",
            "group",
            "inspect",
            "kafka",
            "lives",
            "loads",
            "source",
            "spool",
            "stream",
            "tables",
        },
        {"twofold_avro", "twofold_common"},
    ),
    "inspect": Walls(
        {"config", "descriptions", "errors", "group", "kafka", "lives", "source"},
        {"fastavro", "twofold_avro", "twofold_common"},
    ),
    "watch": Walls(
        {"bridge", "config", "errors", "inspect", "kafka", "row_path", "run", "source"},
        {
            "confluent_kafka",
            "prometheus_client",
            "psycopg",
            "twofold_avro",
            "twofold_common",
        },
    ),
    "doctor": Walls(
        {"config", "errors", "group", "inspect", "kafka", "outbox", "row_path", "run", "source", "tables"},
        {"confluent_kafka", "psycopg", "twofold_avro", "twofold_common"},
    ),
    "stack": Walls({"errors"}, {"confluent_kafka", "psycopg", "twofold_common"}),
    "demo": Walls(
        {"errors", "stack"}, {"confluent_kafka", "fastavro", "psycopg", "rich", "twofold_avro", "twofold_common"}
    ),
    "cli": Walls(
        {
            "config",
            "demo",
            "doctor",
            "errors",
            "inspect",
            "kafka",
            "row_path",
            "run",
            "source",
            "stack",
            "watch",
        },
        {"click", "rich", "twofold_common", "twofold_reader"},
    ),
    # It reads the conninfo as psycopg does.
    "config": Walls({"conninfo", "errors"}, {"psycopg", "pydantic", "pydantic_settings", "twofold_common"}),
    "conninfo": Walls(set(), {"twofold_common"}),
    "errors": Walls(set(), {"twofold_common"}),
    "failpoints": Walls({"errors"}),
    "spool": Walls({"errors"}),
    "thread_owner": Walls(),
    "row_path": Walls(set(), {"twofold_avro"}),
    "__init__": Walls(),
    "__main__": Walls({"cli"}),
}

AVRO: Mapping[str, Walls] = {
    "shapes": Walls(),
    "types": Walls({"shapes"}),
    "names": Walls(),
    "text": Walls({"types"}),
    "schemas": Walls({"comments", "connect", "names", "shapes", "types"}),
    "comments": Walls({"names", "shapes"}),
    "connect": Walls({"shapes", "types"}),
    "wire": Walls({"errors", "plain"}, {"cython"}),
    "records": Walls({"errors", "schemas", "types", "wire"}, {"fastavro"}),
    "json_values": Walls({"errors", "json_scalars", "types", "wire"}, {"fastavro"}),
    "json_scalars": Walls({"errors"}),
    # cython is the compiler's vocabulary; `plain` stands in for it at run time.
    "transcode": Walls({"errors", "hashing", "names", "plain", "shapes", "text", "types", "wire"}, {"cython"}),
    "hashing": Walls({"plain"}, {"cython"}),
    "plain": Walls(),
    "errors": Walls(),
    "__init__": Walls(),
}

COMMON: Mapping[str, Walls] = {
    "gids": Walls(),
    "positions": Walls(),
    "global_cut": Walls(),
    "global_waits": Walls({"global_cut"}),
    "global_loads": Walls({"global_cut"}),
    "global_order": Walls({"global_cut"}),
    "group_admission": Walls({"global_cut", "global_loads"}),
    "mirror_place": Walls({"errors", "positions"}),
    "table_names": Walls({"printable"}),
    "errors": Walls({"printable"}),
    "printable": Walls(),
    "artifacts": Walls({"http_client"}),
    "http_client": Walls(),
    "http_server": Walls(),
    "java": Walls({"artifacts", "errors"}),
    "kept_connections": Walls(),
    "registry_http": Walls({"http_client", "kept_connections", "secret_sources"}),
    "secret_sources": Walls({"errors"}),
    "crashes": Walls(),
    "__init__": Walls(),
}

READER: Mapping[str, Walls] = {
    "whole_transactions": Walls({"changes"}, {"twofold_avro", "twofold_common"}),
    "changes": Walls({"values"}, {"fastavro", "twofold_avro", "twofold_common"}),
    "values": Walls(),
    "arrow": Walls({"changes", "whole_transactions"}, {"pyarrow", "twofold_avro"}),
    "partition_rows": Walls(set(), {"twofold_avro", "twofold_common"}),
    "topics": Walls({"partition_rows"}, {"confluent_kafka", "twofold_avro", "twofold_common"}),
    "schemas": Walls(set(), {"twofold_common"}),
    "reader": Walls(
        {"arrow", "changes", "partition_rows", "schemas", "topics", "waiting", "whole_transactions"},
        {"twofold_avro", "twofold_common"},
    ),
    "frontiers": Walls({"topics"}, {"confluent_kafka", "twofold_avro", "twofold_common"}),
    "group_reader": Walls(
        {"changes", "frontiers", "reader", "schemas", "topics", "whole_transactions"},
        {"twofold_common"},
    ),
    "waiting": Walls({"schemas", "topics"}, {"confluent_kafka", "twofold_avro", "twofold_common"}),
    "__init__": Walls({"changes", "group_reader", "reader", "waiting", "whole_transactions"}, {"twofold_common"}),
}

SPARK: Mapping[str, Walls] = {
    "sources": Walls(
        {"errors", "java_classes", "row_columns", "signals"}, {"py4j", "pyspark", "twofold_avro", "twofold_common"}
    ),
    "sinks": Walls(
        {"errors", "java_classes", "row_columns", "session", "sources"},
        {"py4j", "pyspark", "twofold_common"},
    ),
    "readers": Walls({"errors", "row_columns", "session", "sinks", "sources"}, {"pyspark"}),
    "mirror": Walls(
        {"errors", "java_classes", "row_columns", "session", "sinks", "sources", "streaming"},
        {"py4j", "pyspark", "twofold_avro", "twofold_common"},
    ),
    "changelog": Walls(
        {"errors", "row_columns", "session", "signals", "sinks", "sources", "streaming"}, {"pyspark", "twofold_common"}
    ),
    "verify": Walls(
        {"errors", "readers", "row_columns", "sinks", "sources"},
        {"pyspark", "twofold_avro", "twofold_common"},
    ),
    "job": Walls(
        {
            "catalog_choice",
            "changelog",
            "errors",
            "jars",
            "mirror",
            "row_columns",
            "session",
            "signals",
            "sinks",
            "sources",
            "streaming",
            "verify",
        },
        {"py4j", "pyspark", "twofold_common"},
    ),
    "session": Walls(
        {"catalog_choice", "errors", "jars", "java_classes", "object_store", "signals"}, {"pyspark", "twofold_common"}
    ),
    "catalog_choice": Walls({"errors"}),
    "object_store": Walls({"errors"}),
    "jars": Walls({"errors"}, {"twofold_common"}),
    "streaming": Walls({"errors", "java_classes", "signals"}, {"pyspark", "twofold_common"}),
    "signals": Walls(),
    "errors": Walls(set(), {"py4j", "pyspark", "twofold_common"}),
    "java_classes": Walls(set(), {"py4j", "pyspark"}),
    "row_columns": Walls(),
    "__init__": Walls({"errors", "readers", "sinks", "sources"}),
    "__main__": Walls({"job"}),
}


@dataclass(frozen=True)
class Distribution:
    """A package with folders: its folders, and its modules that lie in none."""

    package: Path
    walls: Mapping[str, Walls]

    def files(self) -> Iterator[Path]:
        return self.package.rglob("*.py")

    def folder_of(self, file: Path) -> str:
        return file.relative_to(self.package).with_suffix("").parts[0]

    def folders(self) -> set[str]:
        return {self.folder_of(file) for file in self.files()}

    def found(self, folder: str) -> Walls:
        """What the folder imports."""
        folders, packages = set(), set()
        for file in self.files():
            if self.folder_of(file) != folder:
                continue
            for name in imports(file, self.package):
                top, _, rest = name.partition(".")
                if top == self.package.name:
                    folders.add(rest.partition(".")[0])
                else:
                    packages.add(top)
        return Walls(folders - {folder, "__version__"}, packages)


DISTRIBUTIONS = [
    Distribution(ROOT / "connector/twofold", CONNECTOR),
    Distribution(ROOT / "avro/twofold_avro", AVRO),
    Distribution(ROOT / "common/twofold_common", COMMON),
    Distribution(ROOT / "reader/twofold_reader", READER),
    Distribution(ROOT / "spark_jobs/twofold_spark", SPARK),
]
FOLDERS = [
    pytest.param(distribution, folder, id=f"{distribution.package.name}.{folder}")
    for distribution in DISTRIBUTIONS
    for folder in distribution.walls
]


def imports(file: Path, package: Path) -> Iterator[str]:
    """Full names of what a module imports, without the standard library.

    `from twofold import kafka` is `twofold.kafka`.
    """
    here = (package.name, *file.relative_to(package).with_suffix("").parts)
    for node in ast.walk(ast.parse(file.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(here[: len(here) - node.level]) + "." if node.level else ""
            module = (base + (node.module or "")).rstrip(".")
            names = [f"{module}.{alias.name}" if module in PACKAGES else module for alias in node.names]
        yield from (name for name in names if name.partition(".")[0] not in sys.stdlib_module_names)


@pytest.mark.parametrize(("distribution", "folder"), FOLDERS)
def test_a_folder_imports_what_its_table_says_and_nothing_else(distribution: Distribution, folder: str) -> None:
    """A permission that nobody uses fails as well."""
    assert folder in distribution.folders()
    assert distribution.found(folder) == distribution.walls[folder]


@pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=lambda each: each.package.name)
def test_every_room_has_walls(distribution: Distribution) -> None:
    assert distribution.folders() == {*distribution.walls}


@pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=lambda each: each.package.name)
def test_no_imports_run_in_a_circle(distribution: Distribution) -> None:
    above = {folder: set(walls.folders) for folder, walls in distribution.walls.items()}
    while lowest := {folder for folder, below in above.items() if not below & above.keys()}:
        above = {folder: below for folder, below in above.items() if folder not in lowest}
    assert not above


def test_the_spark_jobs_use_the_part_of_the_contract_that_has_no_dependency() -> None:
    spark = DISTRIBUTIONS[-1]
    assert not [file for file in spark.files() if "twofold_avro.records" in set(imports(file, spark.package))]


@pytest.mark.parametrize("distribution", DISTRIBUTIONS[1:], ids=lambda each: each.package.name)
def test_a_module_name_exists_once(distribution: Distribution) -> None:
    names = Counter(file.stem for file in distribution.files() if file.stem != "__init__")
    assert {name: count for name, count in names.items() if count > 1} == {}


@pytest.mark.parametrize(
    "folder", ["connector", "avro", "spark_jobs", "common", "reader", "tests", "benchmarks", "docs"]
)
def test_a_top_level_folder_is_a_room_and_no_package(folder: str) -> None:
    assert not (ROOT / folder / "__init__.py").exists()


def test_a_breach_is_seen(tmp_path: Path) -> None:
    """The reading itself: every form of import, and the standard library left out."""
    package = tmp_path / "twofold"
    file = package / "bridge" / "thief.py"
    file.parent.mkdir(parents=True)
    file.write_text(
        "import os.path, psycopg.rows\nfrom twofold import kafka\nfrom twofold.source.session import x\n"
        "def f():\n    from ..run import timers\n    from . import state\n"
    )
    assert set(imports(file, package)) == {
        "psycopg.rows",
        "twofold.kafka",
        "twofold.source.session",
        "twofold.run",
        "twofold.bridge",
    }
    found = Distribution(package, {}).found("bridge")
    assert found == Walls({"kafka", "source", "run"}, {"psycopg"})
