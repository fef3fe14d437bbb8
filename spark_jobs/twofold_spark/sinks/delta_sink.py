"""The mirror in Delta: tables in folders, with deletion vectors and type widening.

The sequence number is Delta's own mark of an application's transaction (`txnAppId` twofold,
`txnVersion` the sequence number). The commit that holds the rows writes it, and the table's state
keeps it for good. Delta itself skips a merge whose number the table has.

A batch is merged onto the state that was read. A table that has another number by then is refused
before anything is written, and Delta refuses two writers at once. A writer that came in the instant
between is seen by the versions, before a cut is published. A table whose merge lies on such a
writer's is marked: RESTORE would bring back its rows and leave the number, so only a reload repairs
it. A person's RESTORE leaves the number too, so a table that was restored since the last cut is
refused. So is one whose folder alone came from a backup.
"""

from __future__ import annotations

import datetime as dt
import threading
import uuid
from collections.abc import Collection, Iterable
from functools import partial
from itertools import dropwhile

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from twofold_spark.errors import Refused, TableRefused
from twofold_spark.sinks import column_changes, cut_rows, delta_tables, merge_sql, sharding
from twofold_spark.sinks.cut_rows import KEY
from twofold_spark.sinks.cuts import CUTS, GlobalCut
from twofold_spark.sinks.delta_tables import (
    APPLICATION,
    SPOILED,
    DeltaTables,
    RowCommit,
    refuse_other_writer,
    refuse_spoiled,
)
from twofold_spark.sinks.interface import MirrorTable, TableBatch
from twofold_spark.sinks.merge_sql import escape_literal
from twofold_spark.sinks.place import (
    Place,
    TablePlace,
    check_owner,
    list_owner_properties,
    refuse_lost_cuts,
    refuse_other_cut,
)
from twofold_spark.sinks.sharding import NO_SHARDING, SHARED, Sharding
from twofold_spark.sources.decoding import RECORD_PLACE

_QUARANTINE = "twofold.quarantine"


class DeltaSink:
    """One writer into one folder."""

    def __init__(self, tables: DeltaTables, place: Place, prefix: str) -> None:
        delta_tables.compact_only_when_asked(tables.spark)
        self._spark = tables.spark
        self._tables = tables
        self._place = place
        self._prefix = prefix
        self._lock = threading.Lock()
        self._writer = uuid.uuid4().hex
        self._states: dict[str, tuple[int, int] | None] = {}
        """Version and sequence number of each table, as this job last saw it."""
        self._checked: set[str] = set()
        """Tables that have their topic's rows, or that this job makes."""

    def read_applied(self, table: MirrorTable) -> int:
        exists = self._tables.has(str(table))
        if exists and str(table) not in self._checked:
            check_owner(table, self._tables.name(str(table)), partial(self._tables.read_property, str(table)))
        state = self._read_state(table) if exists else None
        with self._lock:
            self._states[str(table)] = state
            if table.topic:
                self._checked.add(str(table))
        return state[1] if state else 0

    def _read_state(self, table: MirrorTable) -> tuple[int, int]:
        state = self._tables.read_state(str(table))
        self._check_restored(table, *state)
        return state

    def _check_restored(self, table: MirrorTable, version: int, applied: int) -> None:
        """Refuse a table to which a person has brought back former rows since the last cut."""
        cut, name = self._place.find_part(self._prefix), self._tables.name(str(table))
        named = cut.versions.get(str(table))
        if named is None or version == (shown := int(named)):
            return
        if version < shown:
            # A table that was dropped and made again has no number yet, or one above the cut's.
            if 0 < applied <= cut.sequence:
                raise delta_tables.refuse_former(str(table), applied, cut.sequence)
            return
        behind = delta_tables.list_row_commits(self._spark, name, version - shown)
        if delta_tables.has_lost_rows(behind, shown):
            may_return = not any(each.number for each in behind)
            raise delta_tables.refuse_restored(str(table), name, shown, may_return=may_return)

    def plan_batch(self, tables: Collection[MirrorTable], rows: int) -> None:
        """Do nothing: a merge rewrites whole files, and the log does not say how large they are."""

    def prepare(self, table: MirrorTable, columns: StructType) -> None:
        name = self._tables.name(str(table))
        if not self._tables.has(str(table)):
            self._tables.create(str(table), column_changes.format_columns(columns), self._make_properties(table))
        for change in column_changes.list_alterations(self._spark.table(name).schema, columns, table=str(table)):
            self._spark.sql(f"ALTER TABLE {name} {change}")

    def _make_properties(self, table: MirrorTable) -> dict[str, str]:
        return list_owner_properties(table)

    def read_current(self, table: MirrorTable) -> DataFrame | None:
        name = str(table)
        return self._spark.table(self._tables.name(name)) if self._tables.has(name) else None

    def merge(self, table: MirrorTable, batch: TableBatch, *, sequence: int) -> None:
        name, spark = self._tables.name(str(table)), batch.rows.sparkSession
        present_key = self._tables.read_key(str(table))
        merge_sql.check_key(table, present_key, replace=batch.replace)
        if present_key != table.key:
            spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('{KEY}' = '{escape_literal(','.join(table.key))}')")
        version, applied = self._check_unchanged(table)
        # These settings are the same for all tables of the batch, so merges of several tables may
        # run at once.
        self._mark_writes(spark, sequence)
        with merge_sql.refusing_missing_copies(table):
            if batch.replace or applied == 0:
                rows, view = merge_sql.rows_of_empty_table(batch.rows, table.key), f"_twofold_{abs(hash(table))}"
                rows.createOrReplaceTempView(view)
                names = ", ".join(map(merge_sql.SPARK.quote, rows.columns))
                put = "OVERWRITE" if batch.replace else "INTO"
                spark.sql(f"INSERT {put} {name} ({names}) SELECT {names} FROM {view}")
            else:
                merge_sql.merge_batch(name, table, batch)
        after = self._read_merged(table, version, sequence)
        with self._lock:
            self._states[str(table)] = after

    def _check_unchanged(self, table: MirrorTable) -> tuple[int, int]:
        """Return the table's state; refuse what another writer did since it was read."""
        version, applied = self._tables.read_state(str(table))
        read, expected = self._states[str(table)] or (version, 0)
        if applied != expected:
            raise Refused(
                f"another writer brought {table} from {expected} to {applied} while this job prepared a batch for it",
                at_stake="nothing yet: this batch has not been merged",
                repair="end the other job, then start again",
            )
        if version != read:
            self._check_restored(table, version, applied)
        return version, applied

    def _mark_writes(self, spark: SparkSession, sequence: int) -> None:
        delta_tables.mark_writes(spark, sequence, self._writer)

    def _read_merged(self, table: MirrorTable, version: int, sequence: int) -> tuple[int, int]:
        """Return the table's state behind the merge; refuse it if it is not on this version."""
        name, after = self._tables.name(str(table)), self._tables.read_state(str(table))
        if after != (version + 1, sequence):
            if delta_tables.find_write(self._spark, name, sequence, self._writer) in (None, version + 1):
                raise delta_tables.refuse_other_writer(str(table))
            # The number says that the table has this batch. The mark tells every job not to
            # believe it.
            self._spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('{SPOILED}' = 'by two writers')")
            raise refuse_spoiled(str(table))
        return after

    def read_key(self, table: MirrorTable) -> tuple[str, ...]:
        return self._tables.read_key(str(table))

    def find_repeated(self, table: MirrorTable, batch: TableBatch | None, *, everywhere: bool) -> str | None:
        rows = batch.rows if batch is not None else None
        return sharding.find_repeated(self.read_current(table), table.key, rows, everywhere=everywhere)

    def quarantine(self, records: DataFrame) -> None:
        if self._tables.has(_QUARANTINE):
            present = self._spark.table(self._tables.name(_QUARANTINE))
            records = records.join(present.select(*RECORD_PLACE), list(RECORD_PLACE), "left_anti")
        # A mark of its own: with the session's mark Delta would let only one table of a batch
        # write.
        own = {"txnAppId": f"quarantine {uuid.uuid4()}", "txnVersion": "1"}
        records.write.format("delta").options(**own).mode("append").save(self._tables.table_folder(_QUARANTINE))

    def version_of(self, table: MirrorTable) -> str | None:
        state = self._states[str(table)]
        return str(state[0]) if state else None

    def maintain(self, tables: Collection[str], keep: dt.timedelta) -> None:
        delta_tables.forget_marks(self._spark)
        for table in tables:
            delta_tables.compact(self._spark, self._tables.name(table), keep)


_MADE_FOR = "twofold.made_for"
"""The property of a table that has the number of its first cut."""
_LOOKED_AT = 1000
"""So many of its last commits are looked at in a table that the last cut does not name."""


class SharedDeltaSink(DeltaSink):
    """One writer of sharded tables into the group's own folder.

    A merge is in its table at once, and only cuts say how far each member's rows are. So what no
    cut has is given up by RESTORE. Delta's mark of an application's transaction would stay, and
    Delta would skip the next merge of that number. So these merges have no mark: the table's
    version takes its place, and the commit's text says writer and number.
    """

    def __init__(self, tables: DeltaTables, place: Place, *, members: Collection[str]) -> None:
        """`members`: the prefixes whose tables have a folder beside the sharded ones."""
        super().__init__(tables, place, SHARED)
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
        cut, name = self._place.find_part(SHARED), self._tables.name(str(table))
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
        commits = delta_tables.list_row_commits(self._spark, self._tables.name(str(table)), max(1, last))
        if shown is not None and shown not in {each.version for each in commits}:
            raise Refused(
                f"the version {shown} of {table}, which the last cut names, is not in its history",
                at_stake="the rows of the last cut: the next merge would lie on other ones",
                repair="end the other job that writes to this place, and start over in a new place (--sink)",
            )
        # A merge is for the cut behind the last one, and a kill may leave it.
        number = max((each.number for each in commits), default=0)
        if shown is None and number > self._place.next_number:
            raise refuse_lost_cuts(str(table), number, self._place.next_number - 1, option="--sink")
        return commits

    def _check_unchanged(self, table: MirrorTable) -> tuple[int, int]:
        name, version = self._tables.name(str(table)), self._tables.read_version(str(table))
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


class DeltaPlace(TablePlace):
    """The folder that has the cuts, and the tables of one source, or a group's sharded ones. Each
    member of a group has a folder of its own in it.

    The rows of a cut carry its number as Delta's mark. So of two jobs that publish one number,
    Delta rejects one or skips its rows, and that job is refused.
    """

    word = "folder"
    _own: DeltaTables

    def __init__(self, folder: str, *, of_group: bool = False, sharding: Sharding = NO_SHARDING) -> None:
        super().__init__(of_group=of_group, sharding=sharding)
        self._folder = folder

    def _open_tables(self, spark: SparkSession) -> DeltaTables:
        delta_tables.compact_only_when_asked(spark)
        return DeltaTables(spark, self._folder)

    def make_sink(self, spark: SparkSession, prefix: str) -> DeltaSink:
        own = DeltaTables(spark, self._folder)
        if prefix == SHARED:
            others = self.last.others if self.last is not None else ()
            return SharedDeltaSink(own, self, members=(*self.prefixes, *others))
        return DeltaSink(own.of_member(prefix) if self.of_group else own, self, prefix)

    def publish(self, cut: GlobalCut) -> None:
        self._append(cut)
        self.last = cut

    def _append(self, cut: GlobalCut) -> None:
        listed = cut_rows.format_rows(cut_rows.make_rows(cut), cut_rows.COLUMNS)
        rows = self._spark.range(0, 1, 1, 1).select(f.inline(listed))
        before, _ = self._own.read_state(CUTS)
        # Options, because a setting of the session would mark all that it writes.
        mark = {"txnAppId": APPLICATION, "txnVersion": str(cut.number)}
        rows.write.format("delta").options(**mark).mode("append").save(self._own.table_folder(CUTS))
        if self._own.read_state(CUTS) != (before + 1, cut.number):
            raise refuse_other_cut(cut)

    def read_cuts(self, spark: SparkSession) -> DataFrame:
        return spark.table(self._own.name(CUTS))

    def _read_last(self) -> GlobalCut | None:
        last = cut_rows.read_last(self.read_cuts(self._spark))
        (_, number), name = self._own.read_state(CUTS), self._own.name(CUTS)
        if number > (known := last.number if last is not None else 0):
            # Delta would skip the rows of the cuts in between.
            raise Refused(
                f"{name} ends with cut {known}, and cut {number} was published: somebody has restored it, or deleted rows",
                at_stake="the cuts in between, which readers have seen",
                repair=f"{delta_tables.begin_restore(name)} TO VERSION AS OF the last one before that: DESCRIBE HISTORY {name} lists them",
            )
        return last

    def _delete_before(self, number: int) -> None:
        delta_tables.forget_marks(self._spark)
        self._spark.sql(f"DELETE FROM {self._own.name(CUTS)} WHERE number < {number}")

    def _compact(self, table: str, keep: dt.timedelta) -> None:
        delta_tables.forget_marks(self._spark)
        delta_tables.compact(self._spark, self._own.name(table), keep)
