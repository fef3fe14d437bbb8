"""The branch of each Iceberg table that merges go to, and `main`, which a plain name reads.

A merge goes to the branch `twofold`. A cut is published by moving `main` of its tables, and of
`twofold.cuts` after them, to the snapshots that the cut names. So a reader of plain names sees
cuts. A REST catalog moves its own tables in one commit; a group has several. Elsewhere one follows
the other.

`main` is never ahead of the branch, except by what others commit to it: compaction. The branch
follows such commits before the next merge.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from twofold_spark.errors import Refused, SetupError
from twofold_spark.java_classes import java_class
from twofold_spark.sinks import iceberg_tables
from twofold_spark.sinks.iceberg_tables import MAIN, IcebergTables, find_catalog, identify

MERGES = "twofold"
_ATTEMPTS = 5
_NO_BRANCHES = ("BadRequestException", "UnsupportedOperationException")
_NO_TRANSACTIONS = "UnsupportedOperationException"
_NO_TABLE = "NoSuchTableException"
_CONFLICT = "CommitFailedException"


def open_branch(spark: SparkSession, cuts: str) -> None:
    """Create the cuts' branch, or refuse a catalog that keeps no branches of tables."""
    loaded = iceberg_tables.load_table(spark, cuts)
    try:
        follow_main(spark, cuts, loaded)
    except Py4JJavaError as error:
        if loaded.snapshot(MERGES) is not None or not any(name in str(error) for name in _NO_BRANCHES):
            raise
        raise _refuse_without_branches(cuts) from error
    # Nessie 0.99 answers that it made the branch, and did not.
    if iceberg_tables.load_table(spark, cuts).snapshot(MERGES) is None:
        raise _refuse_without_branches(cuts)


def _refuse_without_branches(cuts: str) -> SetupError:
    return SetupError(
        f"the catalog of {cuts} keeps no branches of Iceberg tables, and the mirror merges into one: give another "
        "--catalog-uri. Nessie is such a catalog: of a table it keeps the last version alone"
    )


def follow_main(spark: SparkSession, name: str, loaded: Any) -> None:
    """Create the branch, or bring it forward to what others committed to `main`."""
    head, main = loaded.snapshot(MERGES), loaded.currentSnapshot()
    if head is None:
        made = loaded.manageSnapshots()
        (made.createBranch(MERGES, main.snapshotId()) if main is not None else made.createBranch(MERGES)).commit()
    elif main is None or main.snapshotId() == head.snapshotId() or _is_ancestor(spark, loaded, head, main):
        return
    elif _is_ancestor(spark, loaded, main, head):
        loaded.manageSnapshots().replaceBranch(MERGES, main.snapshotId()).commit()
    else:
        _check_only_compacted(name, loaded, main, head)
        return
    loaded.refresh()


@dataclass(frozen=True, slots=True)
class _Move:
    """`main` of one table, to one snapshot: the table's metadata before and after."""

    name: str
    operations: Any
    before: Any
    after: Any


class CutPublisher:
    """Moves `main` of tables; `loaded` are tables as their last merge left them."""

    def __init__(self, tables: IcebergTables) -> None:
        self._spark = tables.spark
        self._tables = tables
        java_catalog = find_catalog(tables.spark, tables.catalog)
        is_rest = java_catalog.getClass().getName() == "org.apache.iceberg.rest.RESTCatalog"
        self._transactions: Any | None = java_catalog if is_rest else None
        self._has_moved_at_once = False

    def publish(self, versions: Mapping[str, int], loaded: Mapping[str, Any]) -> None:
        """Move `main` of each table (`schema.name`) to its version, in this order.

        A table that is not there any more is left out. So is one whose `main` has more already.
        """
        for attempt in range(1, _ATTEMPTS + 1):
            known = loaded if attempt == 1 else {}
            moves = [
                move for name, version in versions.items() if (move := self._prepare(name, version, known.get(name)))
            ]
            try:
                self._commit(moves)
            except Py4JJavaError as error:
                if _CONFLICT not in str(error) or attempt == _ATTEMPTS:
                    raise
            else:
                return

    def _prepare(self, name: str, version: int, loaded: Any | None) -> _Move | None:
        if loaded is None:
            if not self._tables.has(name):
                return None
            loaded = self._tables.load(name)
        operations = loaded.operations()
        metadata = operations.current()
        snapshot, main = metadata.snapshot(version), metadata.currentSnapshot()
        if snapshot is None or (main is not None and main.snapshotId() == version):
            return None
        if main is not None and not _is_ancestor(self._spark, loaded, snapshot, main):
            if _is_ancestor(self._spark, loaded, main, snapshot):
                return None
            _check_only_compacted(self._tables.name(name), loaded, main, snapshot)
        changed = java_class(self._spark, "org.apache.iceberg.TableMetadata").buildFrom(metadata)
        after = changed.setBranchSnapshot(version, MAIN).build()
        return _Move(name, operations, metadata, after)

    def _commit(self, moves: list[_Move]) -> None:
        if self._transactions is not None and len(moves) > 1:
            try:
                self._commit_at_once(moves)
            except Py4JJavaError as error:
                if not self._lacks_transactions(str(error), moves):
                    raise
                self._transactions = None  # a server with a part of the protocol
            else:
                self._has_moved_at_once = True
                return
        for move in moves:
            move.operations.commit(move.before, move.after)

    def _lacks_transactions(self, error: str, moves: list[_Move]) -> bool:
        """Whether the server has no commit of several tables.

        A server that lists no endpoints is asked for it nevertheless. Iceberg's client takes the
        answer 404 for a table that does not exist. Once the server has made such a commit, a 404 is
        of something before it that fails.
        """
        if _NO_TRANSACTIONS in error:
            return True
        exist = _NO_TABLE in error and all(self._tables.has(move.name) for move in moves)
        return exist and not self._has_moved_at_once

    def _commit_at_once(self, moves: list[_Move]) -> None:
        assert self._transactions is not None
        commits = java_class(self._spark, "java.util.ArrayList")()
        create = java_class(self._spark, "org.apache.iceberg.catalog.TableCommit").create
        for move in moves:
            commits.add(create(identify(self._spark, move.name), move.before, move.after))
        self._transactions.commitTransaction(commits)


def _is_ancestor(spark: SparkSession, loaded: Any, snapshot: Any, ancestor: Any) -> bool:
    """Whether a snapshot has this ancestor, as far as its lineage is kept."""
    snapshots = java_class(spark, "org.apache.iceberg.util.SnapshotUtil")
    return bool(snapshots.isAncestorOf(loaded, snapshot.snapshotId(), ancestor.snapshotId()))


def _check_only_compacted(name: str, loaded: Any, main: Any, head: Any) -> None:
    """Refuse a `main` that has another's rows, which the branch does not have.

    What compaction wrote beside the branch is given up with the next cut. It holds no rows of its
    own.
    """
    kept = {snapshot.snapshotId() for snapshot in iceberg_tables.walk_lineage(loaded, head)}
    for snapshot in iceberg_tables.walk_lineage(loaded, main):
        if snapshot.snapshotId() in kept or snapshot.summary().get(iceberg_tables.SEQUENCE) is not None:
            return
        if snapshot.operation() != "replace":
            raise Refused(
                f"another writer committed to main of {name} while the mirror merged into its branch {MERGES}",
                at_stake="what that writer wrote: the next cut would not have it",
                repair=f"write into no table of the mirror. To give it up: ALTER TABLE {name} CREATE OR REPLACE BRANCH "
                f"{MAIN} AS OF VERSION {head.snapshotId()}",
            )
