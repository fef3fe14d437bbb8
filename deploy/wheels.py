"""Makes the distributions as they are published, in dist/: source distributions, wheels, and
twofold-avro's compiled wheel for each architecture.

    python deploy/wheels.py UV

The compiler is Zig's, from PyPI: it builds for an old glibc and for other architectures on any
machine, so nothing has to be installed.

The results are examined. `auditwheel` shows the oldest glibc that a wheel runs with, and `twine`
what a package index would refuse. Each compiled module must be for the architecture in its wheel's
name, must export its entry point, and must import the same symbols of Python on every architecture.
"""

from __future__ import annotations

import io
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Final

from elftools.elf.elffile import ELFFile

ROOT: Final = Path(__file__).parents[1]
DIST: Final = ROOT / "dist"
MACHINES: Final = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}
"""The architectures, and their names in an ELF header."""
GLIBC: Final = (2, 17)
PARTS: Final = ("connector", "avro", "spark_jobs", "common", "reader")


def main(uv: str) -> None:
    shutil.rmtree(DIST, ignore_errors=True)
    for part in PARTS:
        _run([uv, "build", "--quiet", "--sdist", "--out-dir", DIST, ROOT / part])
    for part in ("connector", "spark_jobs", "common", "reader"):
        _run([uv, "build", "--quiet", "--wheel", "--out-dir", DIST, ROOT / part])
    with tempfile.TemporaryDirectory() as headers:
        for machine in MACHINES:
            _compiled(uv, machine, Path(headers))
    _examine()


def _compiled(uv: str, machine: str, headers: Path) -> None:
    # Debian's Python.h includes the architecture's pyconfig.h from a folder beside it. This
    # machine's says the same of another one of 64 bits.
    here = Path(f"/usr/include/{platform.machine()}-linux-gnu")
    if here.exists():
        (headers / f"{machine}-linux-gnu").symlink_to(here)
    target = f"{machine}-linux-gnu.{GLIBC[0]}.{GLIBC[1]}"
    compiler = f"{sys.executable} -m ziglang cc -target {target} -idirafter {headers}"
    environment = {
        **os.environ,
        "TWOFOLD_WHEEL_PLATFORM": f"manylinux_{GLIBC[0]}_{GLIBC[1]}_{machine}",
        "CC": compiler,
        "LDSHARED": f"{compiler} -shared",
    }
    # From the source distribution, so that nothing that was built in the checkout comes with it.
    (source,) = DIST.glob("twofold_avro-*.tar.gz")
    _run([uv, "build", "--quiet", "--wheel", "--out-dir", DIST, source], environment)


def _examine() -> None:
    _run([sys.executable, "-m", "twine", "check", "--strict", *sorted(DIST.glob("twofold*"))])
    imported = {}
    for machine, number in MACHINES.items():
        (wheel,) = DIST.glob(f"twofold_avro-*_{machine}.whl")
        with zipfile.ZipFile(wheel) as archive:
            code = {name: archive.read(name) for name in archive.namelist() if name.endswith(".abi3.so")}
        assert len(code) == 3, f"{wheel.name} has {sorted(code)}"
        for name, data in code.items():
            imported[name, machine] = _python_symbols(f"{wheel.name}: {name}", data, number)
        said = _run([sys.executable, "-m", "auditwheel", "show", wheel])
        print(re.sub(r"\s+", " ", said).strip())  # noqa: T201
    for (name, machine), symbols in imported.items():
        if differing := symbols ^ imported[name, "x86_64"]:
            raise SystemExit(f"{name} for {machine} imports other symbols of Python: {', '.join(sorted(differing))}")
        print(f"{name} for {machine} imports {len(symbols)} symbols of Python")  # noqa: T201
    print("\n".join(sorted(each.name for each in DIST.glob("twofold*"))))  # noqa: T201


def _python_symbols(where: str, code: bytes, machine: str) -> set[str]:
    """Return what a module imports of Python, after checking its architecture and its entry
    point.
    """
    elf = ELFFile(io.BytesIO(code))
    if elf["e_machine"] != machine:
        raise SystemExit(f"{where} is for {elf['e_machine']}, not {machine}")
    symbols = list(elf.get_section_by_name(".dynsym").iter_symbols())
    entry = f"PyInit_{Path(where).name.partition('.')[0]}"
    if not any(symbol.name == entry and symbol["st_shndx"] != "SHN_UNDEF" for symbol in symbols):
        raise SystemExit(f"{where} does not export {entry}")
    return {each.name for each in symbols if each["st_shndx"] == "SHN_UNDEF" and "Py" in each.name}


def _run(command: list[str | Path], environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main(sys.argv[1])
