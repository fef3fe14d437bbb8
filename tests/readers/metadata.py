"""A table's metadata file, read as JSON: which version its plain name has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_metadata(location: str) -> dict[str, Any]:
    """Read a table's metadata file."""
    found: dict[str, Any] = json.loads(Path(location.removeprefix("file:")).read_text())
    return found


def read_sequence(metadata: dict[str, Any]) -> int:
    """Return the last commit record whose rows the plain name has; compaction changes none."""
    snapshots = {snapshot["snapshot-id"]: snapshot for snapshot in metadata["snapshots"]}
    at = snapshots[main_version(metadata)]
    while "twofold.sequence" not in at["summary"]:
        at = snapshots[at["parent-snapshot-id"]]
    return int(at["summary"]["twofold.sequence"])


def main_version(metadata: dict[str, Any]) -> int:
    return int(metadata["refs"]["main"]["snapshot-id"])
