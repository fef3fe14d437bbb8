"""Whether another writer merged into a table of Iceberg, and what repairs it.

A batch is merged onto the snapshot whose sequence number was read. If another job came in between,
Iceberg refuses the merge, or the parent of the new snapshot shows it. Then this job takes its
snapshot back and stops before it publishes a cut.

A job may be killed before it takes its snapshot back; the next start sees that. On top of a
published cut there may be a batch that was interrupted, and nothing else. Its sequence number is
above the cut's, and each of its merges was prepared for the number that it lies on
(`twofold.since`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from twofold_spark.errors import Refused
from twofold_spark.java_classes import java_class
from twofold_spark.sinks import iceberg_tables
from twofold_spark.sinks.cuts import Cut
from twofold_spark.sinks.iceberg_branches import MERGES
from twofold_spark.sinks.iceberg_repeated import CommitRepeated, give_up, list_behind, select_broken
from twofold_spark.sinks.interface import MirrorTable
from twofold_spark.sources.topic_names import reload_command

SINCE, WRITER = "twofold.since", "twofold.writer"
"""Keys of a merge's summary.

`SINCE`: the last cut when the batch was prepared, with the tables that were ahead of it. `WRITER`:
the job.
"""


def format_since(cut: Cut | None, applied: Mapping[str, int]) -> str:
    """Format what a batch is prepared for: the cut, and the tables ahead of it (mostly none)."""
    sequence = cut.sequence if cut is not None else 0
    return json.dumps({"cut": sequence, "ahead": {name: n for name, n in applied.items() if n > sequence}})


def give_up_broken(spark: SparkSession, table: MirrorTable, loaded: Any, cut: Cut | None) -> None:
    """Give up what a batch that was interrupted left of a merge whose files Iceberg deleted."""
    version = cut.versions.get(str(table)) if cut is not None else None
    behind = list_behind(loaded, MERGES, version=version, sequence=cut.sequence if cut is not None else 0)
    if broken := select_broken(loaded, behind):
        give_up(spark, loaded, broken, MERGES)


def give_up_unpublished(spark: SparkSession, table: MirrorTable, loaded: Any, cut: Cut | None) -> None:
    """Give up what no cut has of a sharded table: only cuts say how far each member's rows are.

    Where the last cut does not name the table, `main` has what an earlier one had.
    """
    version = cut.versions.get(str(table)) if cut is not None else None
    shown = version or str(iceberg_tables.current_snapshot(loaded))
    behind = list_behind(loaded, MERGES, version=shown, sequence=0)
    base = behind[-1].parentId() if behind else iceberg_tables.current_snapshot(loaded, MERGES)
    if version is not None and version != str(base):
        raise Refused(
            f"the version {version} of {table}, which the last cut names, is not in its Iceberg branch {MERGES}",
            at_stake="the rows of the last cut: the next merge would lie on other ones",
            repair="end the other job that writes to this place, and start over in a new place (--warehouse)",
        )
    merges = [place for place, each in enumerate(behind) if each.summary().get(iceberg_tables.SEQUENCE) is not None]
    give_up(spark, loaded, behind[: merges[-1] + 1] if merges else [], MERGES)


def check_since_cut(table: MirrorTable, full_name: str, loaded: Any, cut: Cut | None) -> None:
    """Refuse a table on which two jobs worked since the last cut.

    A batch that was interrupted is allowed.
    """
    last = cut.sequence if cut is not None else 0
    version = cut.versions.get(str(table)) if cut is not None else None
    for snapshot in iceberg_tables.walk_lineage(loaded, loaded.snapshot(MERGES)):
        if str(snapshot.snapshotId()) == version:
            return
        sequence = snapshot.summary().get(iceberg_tables.SEQUENCE)
        if sequence is None:
            continue
        if int(sequence) <= last:
            if version is None:  # the table was stopped: this snapshot was in a cut once
                return
            what = f"another writer applied {sequence} to {table} again, after cut {last} had it"
            raise _refuse_repeated(table, full_name, version, what)
        onto = int(iceberg_tables.read_summary(loaded, iceberg_tables.SEQUENCE, under=snapshot) or 0)
        if not _is_prepared_for(snapshot.summary().get(SINCE), table, onto):
            what = f"two writers merged into {table} at once: {sequence} was not prepared for {onto}"
            raise _refuse_repeated(table, full_name, version, what)


def _is_prepared_for(since: str | None, table: MirrorTable, onto: int) -> bool:
    """Whether a merge's batch was prepared for the number that it lies on.

    True if the merge does not say.
    """
    if since is None:
        return True
    known = json.loads(since)
    ahead = known["ahead"].get(str(table))
    return bool(onto <= known["cut"] if ahead is None else onto == ahead)


def _refuse_repeated(table: MirrorTable, full_name: str, version: str | None, what: str) -> Refused:
    roll_back = f"ALTER TABLE {full_name} CREATE OR REPLACE BRANCH {MERGES} AS OF VERSION {version}"
    reload = f"drop the mirror's table, then `{reload_command(table)}`"
    repair = f"end the other job, then: {roll_back if version else reload}"
    return Refused(what, at_stake="changes applied twice", repair=repair)


def check_parent(
    spark: SparkSession,
    table: MirrorTable,
    loaded: Any,
    *,
    base: int | None,
    writer: str,
    sequence: int,
) -> None:
    """Refuse a merge of this writer that did not land on `base`, and take it back.

    Raise `CommitRepeated` if it landed on itself.
    """
    snapshot = loaded.snapshot(MERGES)
    if snapshot is None or snapshot.snapshotId() == base:
        return
    is_ours = snapshot.summary().get(WRITER) == writer
    if not is_ours or snapshot.parentId() != base:
        if is_ours and is_of_batch(loaded.snapshot(snapshot.parentId()), writer, sequence):
            raise CommitRepeated
        if is_ours:
            take_back(spark, loaded, snapshot)
        raise refuse_other_writer(table, f"snapshot {snapshot.parentId()} after {base}")


def is_of_batch(snapshot: Any | None, writer: str, sequence: int) -> bool:
    """Whether this job's merge of the batch up to `sequence` made the snapshot."""
    summary = snapshot.summary() if snapshot is not None else {}
    return bool(summary.get(WRITER) == writer and summary.get(iceberg_tables.SEQUENCE) == str(sequence))


def take_back(spark: SparkSession, loaded: Any, snapshot: Any) -> None:
    """Make the parent of this job's snapshot present again, unless another job has committed.

    It is one commit, by compare-and-swap.
    """
    operations = loaded.operations()
    metadata = operations.refresh()
    parent, present = snapshot.parentId(), metadata.ref(MERGES)
    if parent is None or present is None or present.snapshotId() != snapshot.snapshotId():
        return
    changed = java_class(spark, "org.apache.iceberg.TableMetadata").buildFrom(metadata)
    with suppress(Py4JJavaError):  # another job was faster; the next start sees it
        operations.commit(metadata, changed.setBranchSnapshot(parent, MERGES).build())


def refuse_other_writer(table: MirrorTable, how: str) -> Refused:
    """Make the refusal of a merge that met another job's."""
    return Refused(
        f"another writer committed to {table} while this batch was merged ({how})",
        at_stake="a batch applied to a state that it does not belong to",
        repair="end the other job, then start again",
    )
