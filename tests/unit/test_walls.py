"""The walls of docs/inside/architecture.md, by reading what each module imports."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONNECTOR, AVRO, SPARK = ROOT / "connector/twofold", ROOT / "avro/twofold_avro", ROOT / "spark_jobs/twofold_spark"
COMMON_CODE = ROOT / "common/twofold_common"

POSTGRES, KAFKA = {"psycopg"}, {"confluent_kafka"}
LEAVES = {"errors", "failpoints"}
COMMON = {"twofold_common"}

# What a room of the connector may import of the connector, and what of others beside the standard library. None: anything.
WALLS: dict[str, tuple[set[str], set[str] | None]] = {
    "source": (LEAVES, {"twofold_avro"} | COMMON | POSTGRES),
    "sink": (LEAVES, {"twofold_avro"} | COMMON | KAFKA),
    "bridge": ({"errors"}, COMMON),
    "backfill": (LEAVES | {"source", "sink", "config", "spool"}, {"twofold_avro", "fastavro"} | COMMON),
    "runner": (
        LEAVES | {"source", "bridge", "sink", "backfill", "config", "spool", "gids"},
        {"twofold_avro", "prometheus_client"} | COMMON,
    ),
    "ops": (
        LEAVES | {"source", "sink", "bridge", "runner", "config", "gids"},
        {"twofold_avro", "prometheus_client", "pydantic", "pydantic_core"} | COMMON | POSTGRES | KAFKA,
    ),
    "stack": ({"errors"}, COMMON | POSTGRES | KAFKA),
    "demo": (LEAVES | {"config", "stack", "runner", "source", "sink"}, None),
    "cli": (
        LEAVES | {"config", "spool", "gids", "stack", "runner", "backfill", "source", "sink", "bridge", "ops", "demo"},
        None,
    ),
    "errors": (set(), COMMON),
    "failpoints": ({"errors"}, set()),
    "gids": ({"errors", "config"}, set()),
    # It reads the conninfo, and asks psycopg how.
    "config": ({"errors", "gids"}, {"pydantic", "pydantic_settings"} | POSTGRES),
    "spool": ({"errors", "sink"}, {"twofold_avro"}),
    "__main__": ({"cli"}, set()),
}


def imports(file: Path, package: Path) -> Iterator[str]:
    """Full names of what a module imports, `from twofold import sink` as twofold.sink; the standard library left out."""
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


PACKAGES = {"twofold", "twofold_avro", "twofold_common", "twofold_spark"}


def room_of(file: Path) -> str:
    parts = file.relative_to(CONNECTOR).with_suffix("").parts
    return parts[0]


def breaches(file: Path, room: str) -> list[str]:
    inside, outside = WALLS[room]
    found = []
    for name in imports(file, CONNECTOR):
        top, _, rest = name.partition(".")
        if top == "twofold":
            part = rest.partition(".")[0]
            allowed = part in inside | {room, "__version__"}
        else:
            allowed = outside is None or top in outside
        if not allowed:
            found.append(f"{file.relative_to(ROOT)} imports {name}")
    return found


@pytest.mark.parametrize("room", WALLS)
def test_a_room_of_the_connector_imports_only_what_it_may(room: str) -> None:
    files = [file for file in CONNECTOR.rglob("*.py") if room_of(file) == room]
    assert files or room == "demo"
    assert [breach for file in files for breach in breaches(file, room)] == []


def test_every_room_of_the_connector_has_walls() -> None:
    assert {room_of(file) for file in CONNECTOR.rglob("*.py")} - {"__init__"} <= set(WALLS)


def test_the_data_contract_needs_nothing_but_the_extra_records() -> None:
    for file in AVRO.rglob("*.py"):
        tops = {name.partition(".")[0] for name in imports(file, AVRO)} - {"twofold_avro"}
        # cython is the compiler's vocabulary; twofold_avro.plain stands in for it at run time.
        assert tops <= ({"fastavro"} if file.name == "records.py" else {"cython"}), file
        if file.name != "records.py":
            assert "twofold_avro.records" not in set(imports(file, AVRO)), file


def test_what_is_shared_needs_nothing_but_the_standard_library() -> None:
    for file in COMMON_CODE.rglob("*.py"):
        assert {name.partition(".")[0] for name in imports(file, COMMON_CODE)} <= {"twofold_common"}, file


def test_the_spark_jobs_import_pyspark_and_the_free_part_of_the_contract() -> None:
    for file in SPARK.rglob("*.py"):
        names = set(imports(file, SPARK))
        assert {name.partition(".")[0] for name in names} <= {
            "pyspark",
            "py4j",
            "twofold_avro",
            "twofold_common",
            "twofold_spark",
        }, file
        assert "twofold_avro.records" not in names, file


@pytest.mark.parametrize("folder", ["connector", "avro", "spark_jobs", "common", "tests", "benchmarks", "docs"])
def test_a_top_level_folder_is_a_room_and_no_package(folder: str) -> None:
    assert not (ROOT / folder / "__init__.py").exists()


def test_a_breach_is_seen(tmp_path: Path) -> None:
    """The reading itself: every form of import, and the standard library left out."""
    package = tmp_path / "twofold"
    file = package / "bridge" / "thief.py"
    file.parent.mkdir(parents=True)
    file.write_text(
        "import os.path, psycopg.rows\nfrom twofold import sink\nfrom twofold.source.session import x\n"
        "def f():\n    from ..runner import run\n    from . import state\n"
    )
    assert set(imports(file, package)) == {
        "psycopg.rows",
        "twofold.sink",
        "twofold.source.session",
        "twofold.runner",
        "twofold.bridge",
    }
