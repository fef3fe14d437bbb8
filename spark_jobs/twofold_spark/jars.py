"""The jars of the jobs: one locked list beside this file, fetched once, sums verified.

`spark.jars.packages` would resolve transitive dependencies anew on every machine (a second Hadoop, Parquet and Jackson
among them); the lock file names exactly the ten files that are needed and nothing is resolved.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from twofold_common import artifacts
from twofold_spark.errors import MissingGround


def locked() -> tuple[artifacts.Artifact, ...]:
    return artifacts.read_lock(resources.files("twofold_spark").joinpath("jars.lock").read_text("utf-8"))


def fetch() -> tuple[Path, ...]:
    """The jars' files; what the cache lacks is downloaded. `TWOFOLD_MAVEN_URL=file:///folder` works offline."""
    try:
        return artifacts.fetch(locked())
    except artifacts.ArtifactError as error:
        raise MissingGround(str(error)) from error
