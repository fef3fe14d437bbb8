"""The jars of the jobs: lock files beside this module, fetched once, checksums verified.

`spark.jars.packages` would resolve transitive dependencies on every machine, and bring a second
Hadoop, Parquet and Jackson. The lock files name exactly the files that are needed. Those of S3 are
fetched only for a warehouse there.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from twofold_common import artifacts
from twofold_spark.errors import SetupError


def locked(*, s3: bool = False) -> tuple[artifacts.Artifact, ...]:
    """Read the lock file; with `s3` also that of S3."""
    names = ("jars.lock", "s3_jars.lock") if s3 else ("jars.lock",)
    texts = (resources.files("twofold_spark").joinpath(name).read_text("utf-8") for name in names)
    return tuple(artifact for text in texts for artifact in artifacts.read_lock(text))


def fetch(*, s3: bool = False) -> tuple[Path, ...]:
    """Return the jars' files; download those that the cache lacks.

    `TWOFOLD_MAVEN_URL=file:///folder` works without a network.
    """
    try:
        return artifacts.fetch(locked(s3=s3))
    except artifacts.ArtifactError as error:
        raise SetupError(str(error)) from error
