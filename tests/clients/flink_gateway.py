"""The locked programs of this package, and the one that it starts: a gateway of Flink."""

from __future__ import annotations

from pathlib import Path

from helpers.flink.gateway import FlinkGateway
from twofold.stack import server_files
from twofold_common import artifacts
from twofold_common.artifacts import Artifact


def lock(name: str) -> tuple[Artifact, ...]:
    """The artifacts of one of this package's lock files."""
    return artifacts.read_lock(Path(__file__).with_name(f"{name}.lock").read_text())


def local_gateway(folder: Path) -> FlinkGateway:
    """Each job has a small cluster of its own in the gateway's JVM."""
    return FlinkGateway(folder, server_files.fetched(lock("flink")), {"execution.target": "local"})
