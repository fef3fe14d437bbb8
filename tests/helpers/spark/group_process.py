"""The jobs of a source group as people start them: a process, and what it says."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager

from helpers.spark import process
from helpers.spark.group_lake import GroupLake
from twofold_common import java


def running(
    group: GroupLake,
    *arguments: str,
    command: str = "mirror",
    environment: Mapping[str, str] | None = None,
    by_group: bool = False,
) -> AbstractContextManager[subprocess.Popen[str]]:
    """A job of the group, in a process group of its own; `by_group`: it finds the members."""
    here = next(iter(group.members.values()))
    members = [each for prefix in group.members for each in ("--prefix", prefix)]
    line = [
        sys.executable, "-m", "twofold_spark", command,
        *(("--source-group", min(group.members)) if by_group else members),
        "--bootstrap", here.reader.bootstrap, "--registry", here.reader.registry_url,
        "--warehouse", str(group.folder / "warehouse"),
        *(("--sink", "=".join(filter(None, (group.choice.name, group.choice.address)))) if command == "mirror" else ()),
        "--sharded", str(group.sharding),
        "--java-home", str(java.spark_java_home()), *arguments,
    ]  # fmt: skip
    return process.in_its_own_group(line, environment)


def publishes(job: subprocess.Popen[str], many: int) -> None:
    """Return when the job has said that it published so many global cuts."""
    for line in process.lines(job):
        many -= line.startswith("mirror: global cut ")
        if not many:
            return


def runs_to_the_end(group: GroupLake, *, within_s: float) -> None:
    """Start a job that ends by itself, once all that the sources have is in Kafka."""
    for here in group.members.values():
        here.caught_up()
    with running(group, "--trigger", "available-now") as job:
        process.finish(job, within_s=within_s)
