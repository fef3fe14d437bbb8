"""Repairs tables whose catalog made a commit and then answered that another commit was first.

A catalog answers so when it is asked twice. A proxy before a REST catalog repeats a request whose
answer it did not get, and Iceberg's JDBC catalog a statement whose connection broke. Iceberg takes
the answer for another writer's commit. What it does then destroys its own version, which the
catalog has:

- A merge or a compaction is checked against that "other" commit and refused, and its files are
  deleted.
- An append is made once more on top of the first, whose list of manifests is deleted.

The list goes first, so a version without its list is one of these. It is given up: the branch goes
back to where the batch began, by compare-and-swap, and the batch is merged again. The versions are
taken out of the table's metadata, because expiring them would read their lists.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from twofold_spark.java_classes import java_class
from twofold_spark.sinks import iceberg_tables


class CommitRepeated(Exception):
    """A merge is in the catalog, and Iceberg has deleted files of it."""


def list_behind(loaded: Any, branch: str, *, version: str | None, sequence: int) -> list[Any]:
    """List the snapshots of a branch behind a version, newest first.

    A snapshot up to this sequence number ends the list as well: a cut had it.
    """
    behind = []
    for snapshot in iceberg_tables.walk_lineage(loaded, loaded.snapshot(branch)):
        if str(snapshot.snapshotId()) == version:
            break
        applied = snapshot.summary().get(iceberg_tables.SEQUENCE)
        if applied is not None and int(applied) <= sequence:
            break
        behind.append(snapshot)
    return behind


def select_broken(loaded: Any, behind: list[Any]) -> list[Any]:
    """Select what cannot stay: from the newest snapshot to the oldest one without its list."""
    broken = [place for place, snapshot in enumerate(behind) if not _has_list(loaded, snapshot)]
    return behind[: broken[-1] + 1] if broken else []


def find_broken_head(loaded: Any) -> list[Any]:
    """Return the present snapshot of a table without branches, if it cannot stay."""
    head = loaded.currentSnapshot()
    return select_broken(loaded, [head] if head is not None else [])


def give_up(spark: SparkSession, loaded: Any, snapshots: list[Any], branch: str) -> None:
    """Bring the branch back to before these snapshots, which are its newest; forget them."""
    operations = loaded.operations()
    metadata = operations.refresh()
    present = metadata.ref(branch)
    if not snapshots or present is None or present.snapshotId() != snapshots[0].snapshotId():
        return  # another job is at work: what is checked next refuses that
    before = snapshots[-1].parentId()
    changed = java_class(spark, "org.apache.iceberg.TableMetadata").buildFrom(metadata)
    changed = changed.setBranchSnapshot(before, branch) if before is not None else changed.removeRef(branch)
    operations.commit(metadata, _without(spark, changed, snapshots).build())
    loaded.refresh()


def forget_repeated_append(spark: SparkSession, loaded: Any, branch: str) -> None:
    """Forget the first of two appends of one row; the rows of both are in the second.

    Readers of these tables take one row of those that are the same.
    """
    head = loaded.snapshot(branch)
    first = loaded.snapshot(head.parentId()) if head is not None and head.parentId() is not None else None
    if first is None or _has_list(loaded, first):
        return
    operations = loaded.operations()
    metadata = operations.refresh()
    changed = java_class(spark, "org.apache.iceberg.TableMetadata").buildFrom(metadata)
    operations.commit(metadata, _without(spark, changed, [first]).build())
    loaded.refresh()


def _without(spark: SparkSession, changed: Any, snapshots: list[Any]) -> Any:
    removed = java_class(spark, "java.util.ArrayList")()
    for snapshot in snapshots:
        removed.add(snapshot)
    return changed.removeSnapshots(removed)


def _has_list(loaded: Any, snapshot: Any) -> bool:
    return bool(loaded.io().newInputFile(snapshot.manifestListLocation()).exists())
