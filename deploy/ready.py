"""`make ready`: the locked packages into .venv, and the row path compiled: by this machine's C
compiler, or else by one from PyPI.

    python deploy/ready.py UV PYTHON

Without a compiler Twofold is the same and its row path some fifty times slower, so what is missing
is told in one line. Compiled again when a compiler has come since. Standard library only: this runs
before anything is installed.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
ZIG: Final = "ziglang==0.17.1"
ZIG_FOLDER: Final = ROOT / ".tools/ziglang"
ROW_PATH: Final = ROOT / "avro/twofold_avro"
COMPILED: Final = tuple(
    ROW_PATH / f"{name}{sysconfig.get_config_var('EXT_SUFFIX')}" for name in ("hashing", "transcode", "wire")
)


def main(uv: str, python: str) -> int:
    compiler, lacks = _compiler(uv)
    environment = {**os.environ, **compiler}
    command = [uv, "sync", "--locked", "--python", python]
    if (ROOT / ".venv/bin").is_dir():
        command.append("--quiet")
    if (compiler or not lacks) and not _is_compiled():
        command += ["--reinstall-package", "twofold-avro"]
    status = subprocess.run(command, check=False, env=environment, cwd=ROOT).returncode
    if status == 0 and not _is_compiled():
        print(  # noqa: T201
            f"the row path is not compiled, so a row costs some fifty times as much: {lacks or 'its compiler failed'}; then make ready again",
            file=sys.stderr,
        )
    return status


def _is_compiled() -> bool:
    return all(file.exists() for file in COMPILED)


def _compiler(uv: str) -> tuple[dict[str, str], str]:
    """What to set for the build, and what to install if that is not enough."""
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return {}, "install Python's headers (Debian: apt install python3-dev; Fedora: dnf install python3-devel)"
    if os.environ.get("CC") or any(map(shutil.which, ("cc", "gcc", "clang"))):
        return _by_its_name(), ""
    lacks = "install a C compiler (Debian: apt install gcc libc6-dev)"
    if _is_compiled():
        return {}, lacks
    if not (ZIG_FOLDER / "ziglang/zig").exists():
        print("no C compiler here: taking one from PyPI", flush=True)  # noqa: T201
        fetched = subprocess.run([uv, "pip", "install", "--quiet", "--target", ZIG_FOLDER, ZIG], check=False)
        if fetched.returncode:
            return {}, lacks
    # Debian's Python.h includes a file by its path below /usr/include. Searched last, so that
    # libc's headers are Zig's.
    cc = f"{ZIG_FOLDER}/ziglang/zig cc -target {platform.machine()}-linux-gnu.2.17 -idirafter /usr/include"
    return {"CC": cc, "LDSHARED": f"{cc} -shared"}, lacks


def _by_its_name() -> dict[str, str]:
    """Python was built with some compiler, which need not be the one that is here."""
    wanted = os.environ.get("CC") or (sysconfig.get_config_var("CC") or "cc").split()[0]
    if os.environ.get("CC") or shutil.which(wanted):
        return {}
    here = next(name for name in ("cc", "gcc", "clang") if shutil.which(name))
    return {"CC": here, "LDSHARED": f"{here} -shared"}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
