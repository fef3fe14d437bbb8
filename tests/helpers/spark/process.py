"""The jobs as people start them: a process on a lake, and what it says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from fixtures.spark import Lake
from helpers.spark import class_archive
from twofold_common import java
from twofold_spark import object_store


def running(
    lake: Lake,
    *arguments: str,
    command: str = "mirror",
    environment: Mapping[str, str] | None = None,
    program: Sequence[str] = ("-m", "twofold_spark"),
) -> AbstractContextManager[subprocess.Popen[str]]:
    """A job on the lake, in a process group of its own."""
    in_s3 = object_store.is_s3(lake.catalog_choice.properties.get("warehouse", ""))
    environment = {"JAVA_TOOL_OPTIONS": class_archive.find_options(s3=in_s3), **(environment or {})}
    return in_its_own_group(make_line(lake, *arguments, command=command, program=program), environment)


def run(lake: Lake, *arguments: str, status: int = 0, within_s: float = 300, **more: Any) -> str:
    """Run a job to its end; return what it said."""
    with running(lake, *arguments, **more) as process:
        return finish(process, status, within_s)


def finish(process: subprocess.Popen[str], status: int = 0, within_s: float = 300) -> str:
    """Return what a job that ends has said since."""
    _, said = process.communicate(timeout=within_s)
    assert process.returncode == status, said
    return said


def make_line(
    lake: Lake, *arguments: str, command: str = "mirror", program: Sequence[str] = ("-m", "twofold_spark")
) -> list[str]:
    """The job's command line."""
    return [
        sys.executable, *program, command,
        "--bootstrap", lake.writer.bootstrap, "--registry", lake.writer.registry, "--prefix", lake.prefix,
        "--warehouse", str(lake.warehouse), "--catalog", lake.catalog, "--java-home", str(java.spark_java_home()),
        *(("--sink", "=".join(filter(None, (lake.choice.name, lake.choice.address)))) if command == "mirror" else ()),
        *lake.place, *arguments,
    ]  # fmt: skip


def job_environment() -> dict[str, str]:
    """Ours without the port of our own JVM, and with what lets the job's start quickly."""
    ours = {name: value for name, value in os.environ.items() if name != "PYSPARK_GATEWAY_PORT"}
    return {**ours, "JAVA_TOOL_OPTIONS": class_archive.find_options()}


@contextmanager
def in_its_own_group(
    line: Sequence[str], environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """A job in a process group of its own, killed at the end if it has not ended."""
    with subprocess.Popen(
        line,
        stderr=subprocess.PIPE,
        text=True,
        env={**job_environment(), **(environment or {})},
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def cuts(process: subprocess.Popen[str], many: int) -> None:
    """Returns when the job has said that it published so many cuts."""
    batches(process, "mirror", many)


def cut(process: subprocess.Popen[str], sequence: int) -> None:
    """Returns when the job has said that it published this cut."""
    for published in _published(process):
        if published == sequence:
            return


def batches(process: subprocess.Popen[str], command: str, many: int) -> None:
    """Returns when the job has said of so many batches that they are in its tables."""
    for line in lines(process):
        many -= line.startswith(f"{command}: ")
        if not many:
            return


def _published(process: subprocess.Popen[str]) -> Iterator[int]:
    for line in lines(process):
        if line.startswith("mirror: "):
            yield int(line.rsplit(" ", 1)[1])


def lines(process: subprocess.Popen[str]) -> Iterator[str]:
    """Yields what the job says; its end is a failure of whoever still waits for a line."""
    assert process.stderr is not None
    seen = []
    for line in process.stderr:
        seen.append(line)
        yield line
    raise AssertionError("the job ended: " + "".join(seen))
