"""Jars on a machine without a network: a folder in Maven's layout, and an empty cache."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fixtures.spark import Lake
from helpers.spark import process as spark_process
from helpers.spark.writer import table
from twofold_spark import jars


@pytest.fixture
def maven(tmp_path: Path) -> Path:
    """The locked jars as a repository has them; links, for they are many."""
    folder = tmp_path / "maven"
    for artifact, jar in zip(jars.locked(), jars.fetch(), strict=True):
        place = folder / artifact.path
        place.parent.mkdir(parents=True)
        place.symlink_to(jar)
    return folder


@pytest.fixture
def environment(maven: Path, tmp_path: Path) -> dict[str, str]:
    """Whoever asks the network meets a door that is shut."""
    shut = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), "http://127.0.0.1:9")
    return {
        **shut,
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
        "TWOFOLD_MAVEN_URL": maven.as_uri(),
        "TWOFOLD_CACHE": str(tmp_path / "cache"),
    }


def _jars(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "twofold_spark", "jars"]
    return subprocess.run(line, env={**os.environ, **environment}, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_job_runs_with_the_jars_of_a_folder_alone(lake: Lake, environment: dict[str, str], tmp_path: Path) -> None:
    w = lake.writer
    t = w.table(table("t", {"id": "int8", "v": "text"}))
    with w.commit() as tx:
        tx.upsert(t, {"id": 1, "v": "v"})
    spark_process.run(lake, "--trigger", "available-now", environment=environment, within_s=120)
    lake.assert_equal()
    done = _jars(environment | {"TWOFOLD_MAVEN_URL": "file:///nowhere"})  # all are in the cache now
    found = [Path(jar) for jar in done.stdout.strip().split(os.pathsep)]
    assert [jar.name for jar in found] == [artifact.filename for artifact in jars.locked()], done.stderr
    assert {jar.is_relative_to(tmp_path / "cache") and jar.is_file() for jar in found} == {True}


def test_a_jar_that_the_folder_lacks_is_named_and_so_is_one_with_another_sum(
    maven: Path, environment: dict[str, str]
) -> None:
    lacking, *_, other = (maven / artifact.path for artifact in jars.locked())
    lacking.unlink()
    done = _jars(environment)
    assert done.returncode == 3
    assert done.stderr.splitlines()[-1] == (
        f"jars: {lacking.as_uri()} is not there: put it into the folder that TWOFOLD_MAVEN_URL names, in Maven's layout"
    )
    lacking.symlink_to(jars.fetch()[0])
    other.unlink()
    other.write_bytes(b"another jar")
    environment["TWOFOLD_CACHE"] += " of another machine"
    done = _jars(environment)
    assert done.returncode == 3
    said = done.stderr.splitlines()[-1]
    assert said.startswith(f"jars: the sha256 of {other.as_uri()} is ")
    assert "do not use it" in said
    assert not list(Path(environment["TWOFOLD_CACHE"]).rglob(other.name)), "it is kept nowhere"
