"""The jars of the jobs: one lock file beside this module, fetched once, checksums verified.

`spark.jars.packages` would resolve transitive dependencies on every machine, and bring a second
Hadoop, Parquet and Jackson. The lock file names exactly the files that are needed.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from twofold_common import artifacts
from twofold_spark.errors import SetupError


def locked() -> tuple[artifacts.Artifact, ...]:
    """Read the lock file."""
    return artifacts.read_lock(resources.files("twofold_spark").joinpath("jars.lock").read_text("utf-8"))


def fetch() -> tuple[Path, ...]:
    """Return the jars' files; download those that the cache lacks.

    `TWOFOLD_MAVEN_URL=file:///folder` works without a network.
    """
    try:
        return artifacts.fetch(locked())
    except artifacts.ArtifactError as error:
        raise SetupError(str(error)) from error
