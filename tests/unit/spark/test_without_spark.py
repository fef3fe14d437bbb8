"""The jobs and the demo in an installation that has no Spark."""

from __future__ import annotations

import subprocess
import sysconfig
import venv
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with everything that is installed here, except Spark."""
    folder = tmp_path_factory.mktemp("without-spark")
    packages = folder / "packages"
    packages.mkdir()
    for there in Path(sysconfig.get_path("purelib")).iterdir():
        if not there.name.startswith(("pyspark", "py4j")):
            (packages / there.name).symlink_to(there)
    venv.create(folder / "environment", symlinks=True)
    for own in (folder / "environment").glob("lib/python*/site-packages"):
        # As a folder of packages, so that the files in it that name editable installations are
        # read.
        (own / "packages.pth").write_text(f"import site; site.addsitedir({str(packages)!r})\n")
    return folder / "environment" / "bin" / "python"


def said_by(python: Path, *command: str) -> tuple[int, str]:
    done = subprocess.run([python, "-m", *command], capture_output=True, text=True, timeout=120, check=False)
    assert not done.stdout
    return done.returncode, done.stderr


def test_a_job_says_in_one_sentence_that_spark_is_missing(python: Path) -> None:
    status, said = said_by(python, "twofold_spark", "mirror", "--help")
    assert status == 3
    assert "pip install 'twofold-spark[spark]'" in said
    assert len(said.splitlines()) == 1


def test_the_demo_says_so_before_it_starts_any_server(python: Path) -> None:
    status, said = said_by(python, "twofold", "demo")
    assert status == 3
    assert "pip install 'twofold[spark]'" in said
    assert len(said.splitlines()) == 1
