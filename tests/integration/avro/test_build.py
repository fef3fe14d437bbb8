"""The wheel builds with and without a C compiler, and what is installed from it runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
UV = shutil.which("uv") or shutil.which("uv", path=str(ROOT / ".tools" / "bin"))


@pytest.mark.skipif(UV is None, reason="needs uv to build")
@pytest.mark.parametrize("compiler", [True, False], ids=["with", "without"])
def test_the_wheel_builds(compiler: bool, tmp_path: Path) -> None:
    if compiler and shutil.which(os.environ.get("CC", "cc")) is None:
        pytest.skip("no C compiler here")
    source = tmp_path / "avro"
    leftovers = shutil.ignore_patterns("*.so", "*.c", "build", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT / "avro", source, ignore=leftovers)
    # Without optimisation it compiles in a third of the time.
    environment = {**os.environ, **({"CFLAGS": "-O0"} if compiler else {"CC": "/bin/false"})}
    assert UV is not None
    subprocess.run(
        [UV, "build", "--wheel", "--quiet", "--out-dir", tmp_path / "dist", source], check=True, env=environment
    )
    [wheel] = (tmp_path / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert any(name.endswith(".so") for name in archive.namelist()) == compiler
        assert not any(name.endswith(".c") for name in archive.namelist())
        archive.extractall(tmp_path / "installed")
    program = "from twofold_avro.transcode import is_compiled; print(is_compiled())"
    isolated = {"PYTHONPATH": str(tmp_path / "installed"), "PATH": os.environ["PATH"]}
    said = subprocess.run(
        [sys.executable, "-S", "-c", program], check=True, env=isolated, capture_output=True, text=True
    )
    assert said.stdout.strip() == str(compiler)
