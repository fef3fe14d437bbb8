"""The sharded tables of a source group in Delta.

A merge is in its table at once, and only cuts say how far each member's rows are. So what no cut
has is given up by RESTORE, which brings back the rows before it. Delta's mark of an application's
transaction would stay, and Delta would skip the next merge of that number. So these merges have no
mark: the table's version takes its place, and the commit's text says writer and number.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import dropwhile

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from twofold_spark.errors import Refused, TableRefused
from twofold_spark.sinks import delta_tables
from twofold_spark.sinks.cuts import NO_CUT
from twofold_spark.sinks.delta_sink import DeltaSink
from twofold_spark.sinks.delta_tables import RowCommit, refuse_other_writer
from twofold_spark.sinks.interface import MirrorTable
from twofold_spark.sinks.place import Place
from twofold_spark.sinks.sharding import SHARED

_MADE_FOR = "twofold.made_for"
"""The property of a table that has the number of its first cut."""
_LOOKED_AT = 1000
"""So many of its last commits are looked at in a table that the last cut does not name."""


class SharedDeltaSink(DeltaSink):
    """One writer into the group's own folder."""

    def __init__(self, spark: SparkSession, folder: str, place: Place, *, members: Collection[str]) -> None:
        """`members`: the prefixes whose tables have a folder beside the sharded ones."""
        super().__init__(spark, folder)
        self._place = place
        self._members = members

    def prepare(self, table: MirrorTable, columns: StructType) -> None:
        if table.schema in self._members:
            raise TableRefused(
                f"the sharded table {table} would be in the folder of the member {table.schema}",
                at_stake="that member's tables: VACUUM of one table may remove the files of another",
                repair=f"leave {table} out of --sharded, or keep the mirror in Iceberg",
            )
        super().prepare(table, columns)

    def _make_properties(self, table: MirrorTable) -> dict[str, str]:
        return {**super()._make_properties(table), _MADE_FOR: str(self._place.next_number)}

    def _read_state(self, table: MirrorTable) -> tuple[int, int]:
        """Give up what no cut has. Return the table's version, and 0 instead if no cut has it."""
        cut, name = self._place.find_part(SHARED) or NO_CUT, self._tables.table_path(str(table))
        version = self._tables.read_version(str(table))
        # A table that was dropped and made again is not the one that the last cut names.
        is_new = int(self._tables.read_property(str(table), _MADE_FOR) or 0) > cut.sequence
        named = None if is_new else cut.versions.get(str(table))
        shown = int(named) if named is not None else None
        if shown != version:
            commits = self._list_commits(table, shown, version)
            if (before := find_published(commits, shown, cut.sequence)) is not None:
                delta_tables.restore(self._spark, name, before)
                version = self._tables.read_version(str(table))
        return version, 0 if is_new else version

    def _list_commits(self, table: MirrorTable, shown: int | None, version: int) -> list[RowCommit]:
        """List what changed the rows since the version that the last cut names, and that one."""
        last = _LOOKED_AT if shown is None else version - shown + 1
        commits = delta_tables.list_row_commits(self._spark, self._tables.table_path(str(table)), max(1, last))
        if shown is not None and shown not in {each.version for each in commits}:
            raise Refused(
                f"the version {shown} of {table}, which the last cut names, is not in its history",
                at_stake="the rows of the last cut: the next merge would lie on other ones",
                repair="end the other job that writes to this place, and start over in a new place (--sink)",
            )
        return commits

    def _check_unchanged(self, table: MirrorTable) -> tuple[int, int]:
        name, version = self._tables.table_path(str(table)), self._tables.read_version(str(table))
        expected, applied = self._states[str(table)] or (-1, 0)
        if version != expected and delta_tables.list_row_commits(self._spark, name, version - expected):
            raise refuse_other_writer(str(table))
        return version, applied

    def _mark_writes(self, spark: SparkSession, sequence: int) -> None:
        delta_tables.label_writes(spark, sequence, self._writer)

    def _read_merged(
        self,
        table: MirrorTable,
        version: int,
        sequence: int,  # noqa: ARG002  (the commit's text has it)
    ) -> tuple[int, int]:
        """Return the table's state. A merge that is refused here is given up at the next start."""
        after = self._tables.read_version(str(table))
        if after != version + 1:
            raise refuse_other_writer(str(table))
        return after, after


def find_published(commits: Iterable[RowCommit], shown: int | None, last: int) -> int | None:
    """Return the version to go back to, before what no cut has; None if nothing of it is left.

    `shown` is the version that the last cut names, if it names one, and `last` its number.
    """
    behind = [*dropwhile(lambda each: each.version <= shown if shown is not None else each.number <= last, commits)]
    if not behind or behind[-1].restored == (before := behind[0].version - 1):
        return None
    return before
