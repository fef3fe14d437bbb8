"""Commits to Iceberg's tables: rows that are appended without a Spark job; whether another writer
merged into a table; and the repair of tables whose catalog made a commit, and then answered that
another commit was first.

A cut is a row for each source, and every batch publishes one. Planning and running an INSERT of one
row takes Spark longer than merging a small table.

A batch is merged onto the snapshot whose sequence number was read. If another job came in between,
Iceberg refuses the merge, or the parent of the new snapshot shows it. Then this job takes its
snapshot back and stops before it publishes a cut. A job may be killed before that; the next start
sees it. On top of a published cut there may be a batch that was interrupted, and nothing else. Its
sequence number is above the cut's, and each of its merges was prepared for the number that it lies
on (`twofold.since`).

A catalog answers that another commit was first when it is asked twice. A proxy before a REST
catalog repeats a request whose answer it did not get, and Iceberg's JDBC catalog a statement whose
connection broke. Iceberg takes the answer for another writer's commit. What it does then destroys
its own version, which the catalog has:

- A merge or a compaction is checked against that "other" commit and refused, and its files are
  deleted.
- An append is made once more on top of the first, whose list of manifests is deleted.

The list goes first, so a version without its list is one of these. It is given up: the branch goes
back to where the batch began, by compare-and-swap, and the batch is merged again. The versions are
taken out of the table's metadata, because expiring them would read their lists.
"""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from twofold_spark.errors import Refused
from twofold_spark.java_classes import java_class
from twofold_spark.sinks import iceberg_tables
from twofold_spark.sinks.cuts import Cut
from twofold_spark.sinks.iceberg_branches import MERGES
from twofold_spark.sinks.iceberg_tables import current_snapshot
from twofold_spark.sinks.interface import MirrorTable
from twofold_spark.sinks.place import refuse_lost_cuts
from twofold_spark.sources.topic_names import reload_command


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
    if not snapshots:
        return
    operations = loaded.operations()
    metadata = operations.refresh()
    present = metadata.ref(branch)
    if present is None or present.snapshotId() != snapshots[0].snapshotId():
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


def append_rows(
    spark: SparkSession,
    table: Any,
    rows: Iterable[Mapping[str, Any]],
    *,
    branch: str,
    summary: Mapping[str, str],
) -> bool:
    """Append rows to a branch of a loaded table. Return whether they lie on what was loaded; else
    they are taken back.

    Iceberg tries again if another commit came between. The table is as of the commit then.
    """
    parquet = java_class(spark, "org.apache.iceberg.FileFormat").PARQUET
    place = table.locationProvider().newDataLocation(f"{uuid.uuid4()}.parquet")
    file = table.io().newOutputFile(place)
    schema = table.schema()
    fields = json.loads(java_class(spark, "org.apache.iceberg.SchemaParser").toJson(schema))
    data = java_class(spark, "org.apache.iceberg.InternalData")
    writer = data.write(parquet, file).schema(schema).build()
    try:
        parser = java_class(spark, "org.apache.iceberg.SingleValueParser")
        for row in rows:
            writer.add(parser.fromJson(schema.asStruct(), json.dumps(to_single_value(fields, row))))
    finally:
        writer.close()
    files = java_class(spark, "org.apache.iceberg.DataFiles")
    written = files.builder(table.spec()).withInputFile(file.toInputFile()).withFormat(parquet)
    append = table.newAppend().appendFile(written.withMetrics(writer.metrics()).build()).toBranch(branch)
    for key, value in summary.items():
        append = append.set(key, value)
    before = current_snapshot(table, branch)
    append.commit()
    appended = table.snapshot(branch)
    if appended.parentId() == before:
        return True
    forget_repeated_append(spark, table, branch)
    is_repeated = table.snapshot(appended.parentId()) is None
    if not is_repeated:
        take_back(spark, table, appended)
    return is_repeated


def to_single_value(kind: Any, value: Any) -> Any:
    """Build the JSON of Iceberg's specification: a struct's fields go by their ids."""
    if value is None or isinstance(kind, str):
        return value.isoformat(timespec="microseconds") if isinstance(value, dt.datetime) else value
    if kind["type"] == "list":
        return [to_single_value(kind["element"], each) for each in value]
    return {str(field["id"]): to_single_value(field["type"], value[field["name"]]) for field in kind["fields"]}


SINCE, WRITER = "twofold.since", "twofold.writer"
"""Keys of a merge's summary.

`SINCE`: the last cut when the batch was prepared, with the tables that were ahead of it. `WRITER`:
the job.
"""


def format_since(cut: Cut, applied: Mapping[str, int]) -> str:
    """Format what a batch is prepared for: the cut, and the tables ahead of it (mostly none)."""
    ahead = {name: n for name, n in applied.items() if n > cut.sequence}
    return json.dumps({"cut": cut.sequence, "ahead": ahead})


def give_up_broken(spark: SparkSession, table: MirrorTable, loaded: Any, cut: Cut) -> None:
    """Give up what a batch that was interrupted left of a merge whose files Iceberg deleted."""
    behind = list_behind(loaded, MERGES, version=cut.versions.get(str(table)), sequence=cut.sequence)
    give_up(spark, loaded, select_broken(loaded, behind), MERGES)


def give_up_unpublished(
    spark: SparkSession,
    table: MirrorTable,
    loaded: Any,
    cut: Cut,
    list_named: Callable[[], Mapping[str, Collection[int]]],
) -> None:
    """Give up what no cut has of a sharded table: only cuts say how far each member's rows are.

    Where the last cut does not name the table, `list_named` lists the versions that earlier ones
    name: `main` may have waited. A number tells nothing, for a merge that no cut has may have that
    of a later cut. A `main` with more is refused, because only a published cut moves it.
    """
    published = int(iceberg_tables.read_summary(loaded, iceberg_tables.SEQUENCE) or 0)
    if published > cut.sequence:
        raise refuse_lost_cuts(str(table), published, cut.sequence, option="--warehouse")
    version = cut.versions.get(str(table))
    shown = version or _find_shown(loaded, list_named()[str(table)])
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


def _find_shown(loaded: Any, named: Collection[int]) -> str | None:
    """Return the newest version in the branch that a cut named, or that `main` has."""
    shown = {*named, iceberg_tables.current_snapshot(loaded)}
    lineage = iceberg_tables.walk_lineage(loaded, loaded.snapshot(MERGES))
    return next((str(each.snapshotId()) for each in lineage if each.snapshotId() in shown), None)


def check_since_cut(table: MirrorTable, full_name: str, loaded: Any, cut: Cut) -> None:
    """Refuse a table on which two jobs worked since the last cut.

    A batch that was interrupted is allowed.
    """
    version = cut.versions.get(str(table))
    for snapshot in iceberg_tables.walk_lineage(loaded, loaded.snapshot(MERGES)):
        if str(snapshot.snapshotId()) == version:
            return
        sequence = snapshot.summary().get(iceberg_tables.SEQUENCE)
        if sequence is None:
            continue
        if int(sequence) <= cut.sequence:
            if version is None:  # the table was stopped: this snapshot was in a cut once
                return
            what = (
                f"{table} is at {sequence} again, after cut {cut.sequence} had it: another writer applied that, or the "
                "table alone was restored from a backup"
            )
            raise _refuse_repeated(table, full_name, loaded, version, what)
        onto = int(iceberg_tables.read_summary(loaded, iceberg_tables.SEQUENCE, under=snapshot) or 0)
        if not _is_prepared_for(snapshot.summary().get(SINCE), table, onto):
            what = f"two writers merged into {table} at once: {sequence} was not prepared for {onto}"
            raise _refuse_repeated(table, full_name, loaded, version, what)


def _is_prepared_for(since: str | None, table: MirrorTable, onto: int) -> bool:
    """Whether a merge's batch was prepared for the number that it lies on.

    True if the merge does not say.
    """
    if since is None:
        return True
    known = json.loads(since)
    ahead = known["ahead"].get(str(table))
    return bool(onto <= known["cut"] if ahead is None else onto == ahead)


def _refuse_repeated(table: MirrorTable, full_name: str, loaded: Any, version: str | None, what: str) -> Refused:
    """Make the refusal, with the way back to the last cut; a table may not have its snapshot."""
    roll_back = f"ALTER TABLE {full_name} CREATE OR REPLACE BRANCH {MERGES} AS OF VERSION {version}"
    reload = f"drop the mirror's table, then `{reload_command(table)}`"
    has_snapshot = version is not None and loaded.snapshot(int(version)) is not None
    repair = f"end the other job, then: {roll_back if has_snapshot else reload}"
    return Refused(what, at_stake="changes applied twice, or missing", repair=repair)


def check_parent(
    spark: SparkSession, table: MirrorTable, loaded: Any, *, base: int | None, writer: str, sequence: int
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
    return Refused(
        f"another writer committed to {table} while this batch was merged ({how})",
        at_stake="a batch applied to a state that it does not belong to",
        repair="end the other job, then start again",
    )
