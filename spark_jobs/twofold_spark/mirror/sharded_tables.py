"""The sharded tables of a source group: one merge of each for a cut, of what all members changed.

Each member's batch leaves the ranges of its rows here. When all members are at their parts of the
cut, the rows of a table are folded (`shard_folding`), with the member as a column, and merged at
once. A row that moved between two shards is deleted and inserted by that merge, in whatever order
the two came.

What a member's rows are in such a table only the cuts say. So its merges have the number of the
global cut, and the sink gives up what no cut has.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import replace
from functools import partial, reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from twofold_spark.errors import Refused, TableRefused
from twofold_spark.mirror.batching import MirrorSettings, TableMaintenance
from twofold_spark.mirror.shard_folding import DueShard, FoldedTable, Shard, ShardFolder, add_member
from twofold_spark.row_columns import MEMBER, OP, UNCHANGED
from twofold_spark.session import fork_session
from twofold_spark.sinks import column_changes
from twofold_spark.sinks.interface import MirrorTable, Sink, TableBatch
from twofold_spark.sinks.merge_sql import refuse_key
from twofold_spark.sinks.place import Place
from twofold_spark.sinks.sharding import SHARED
from twofold_spark.sinks.table_errors import refusing_errors
from twofold_spark.sources.topic_names import reload_command

_LOAD_ALL = "drop the mirror's table, start the mirror again, and run that in all shards"
"""The reload of a shard reads the rows of the others."""


class ShardedTables:
    """The tables that the members share. Members add to them side by side."""

    def __init__(self, place: Place, folder: ShardFolder, settings: MirrorSettings) -> None:
        self._place = place
        self._settings = settings
        self._checked: set[str] = set()
        """Tables in which no two members had a key at the last cut."""
        self._spark: SparkSession | None = None
        self._sink: Sink | None = None
        self._pool = ThreadPoolExecutor(settings.tables_at_once, thread_name_prefix="sharded")
        self._lock = threading.RLock()
        self._applied: dict[str, int] = {}
        """The tables that were read since the last cut."""
        self._folder = folder
        self._due: dict[str, list[DueShard]] = defaultdict(list)
        self._folded: dict[str, FoldedTable] = {}
        """By table, behind the last cut."""
        self.versions: dict[str, str] = {}
        """By table (`schema.name`), as of the last merge."""
        self._published: dict[str, str] = {}
        """The same, as of the last cut."""
        self.gone: list[str] = []
        """The tables of the last cut that were not there any more when the job began."""
        self.maintenance = TableMaintenance(settings)

    def covers(self, table: str) -> bool:
        return self._place.sharding.covers(table)

    def begin(self, spark: SparkSession, sources: Collection[str]) -> None:
        """Take over what an earlier process published, with the sources of this one."""
        if not self._place.sharding.patterns:
            return
        self._spark = fork_session(spark)
        self._sink = self._place.make_sink(self._spark, SHARED)
        self.versions = dict(self._place.find_part(SHARED).versions)
        self.gone = [name for name in self.versions if not self._read(MirrorTable.by_name(name))]
        for name in self.gone:
            del self.versions[name]
        self.refuse_parts_of_rows(sources)
        self._published = dict(self.versions)
        self._applied.clear()

    def refuse_parts_of_rows(self, sources: Collection[str]) -> None:
        """Refuse a start without a source of which tables have rows as no cut had them."""
        for prefix, part, is_member in self._place.last.parts if self._place.last is not None else ():
            begun = {*part.backfilling} if is_member else {*part.versions}
            names = sorted(begun & self.versions.keys())
            if names and part.sequence and prefix not in sources:  # with a record of a commit, so perhaps with rows
                reloads = ", ".join(f"`{reload_command(name)}`" for name in names)
                raise Refused(
                    f"{prefix} was taken out while {', '.join(names)} had a part of its rows: it was joining, or being loaded",
                    at_stake="rows as no cut had them: of those that moved between members some would be there twice",
                    repair=f"give {prefix} again until it has joined and its loads are over; or drop the mirror's table, "
                    f"start the mirror with --on-table-error go-on, then in each shard {reloads}",
                )

    def has(self, table: MirrorTable) -> bool:
        """Whether there is the table that a member's table is a shard of."""
        applied = self._read(_share(table))
        if not applied and str(table) in self.versions:
            raise Refused(
                f"the sharded table {table} was dropped while the mirror ran",
                at_stake="the rows of all shards: the batch has only those that changed",
                repair=f"start the mirror again with --on-table-error go-on, then in each shard `{reload_command(table)}`",
            )
        return bool(applied)

    def _read_shard(self, prefix: str, table: MirrorTable, columns: StructType, locks: ExitStack) -> DataFrame | None:
        """Read a member's rows, with these columns. Nobody changes the columns until `locks` is
        closed.
        """
        assert self._sink is not None, "begin comes first"
        locks.enter_context(self._lock)
        if not self.has(table):
            return None
        shared = _share(table)
        self._sink.prepare(shared, add_member(columns))
        current = self._sink.read_current(shared)
        return current.where(f.col(MEMBER) == prefix).drop(MEMBER) if current is not None else None

    def add(self, due: DueShard) -> None:
        """Leave what one member's batch has of its shard."""
        with self._lock:
            self._due[str(due.table)].append(due)

    def fold(self) -> Mapping[str, FoldedTable]:
        if not self._due:
            return {}
        assert self._sink is not None, "begin comes first"
        assert self._spark is not None, "begin comes first"
        due, self._due = self._due, defaultdict(list)
        for each in due.values():
            self.has(each[0].table)
        rows = sum(each.count for shards in due.values() for shard in shards for each in shard.ranges)
        self._sink.plan_batch([_share(each[0].table) for each in due.values()], rows)
        jobs = {
            name: self._pool.submit(self._folder.fold, self._spark, each, self._read_shard)
            for name, each in due.items()
        }
        wait(jobs.values())
        self._folded = {name: job.result() for name, job in jobs.items()}
        return self._folded

    def merge(self, number: int, loading: Collection[str] = ()) -> list[TableRefused]:
        """Merge what was folded, for the global cut of this number.

        Return the refusals of tables, of whose rows no cut has any. `loading`: the tables that lack
        rows of some member, in which a row may be twice.
        """
        self._checked -= {*loading}
        if self._sink is None:
            return []
        return self._merge_folded(self._sink, number, loading) + self._check_others(self._sink, loading)

    def _merge_folded(self, sink: Sink, number: int, loading: Collection[str]) -> list[TableRefused]:
        for folded in self._folded.values():
            if not folded.shards:
                folded.caches.close()
        jobs = {
            name: self._pool.submit(self._merge_table, sink, folded, number, is_loading=name in loading)
            for name, folded in self._folded.items()
            if folded.shards
        }
        refusals = [refused for job in jobs.values() if (refused := job.result()) is not None]
        for refused in refusals:
            # What was merged goes before the cut has its number, and after all merges: they write
            # with the settings of one session.
            with self._lock:
                del self._applied[refused.table]
            self._read(_share(self._folded[refused.table].shards[0].table))
        return refusals

    def _check_others(self, sink: Sink, loading: Collection[str]) -> list[TableRefused]:
        """Check the keys of tables that this cut does not change.

        A process begins with tables as others left them, and a load may end without a row.
        """
        if not self._settings.unique_keys:
            return []
        refusals = []
        changed = {name for name, folded in self._folded.items() if folded.shards}
        for name in sorted(self.versions.keys() - changed - {*loading} - self._checked):
            table = MirrorTable.by_name(name)
            try:
                self._check_unique(sink, replace(table, key=sink.read_key(table)), None)
            except TableRefused as refused:
                refused.prefix, refused.table = SHARED, name
                refusals.append(refused)
        return refusals

    def find_members(self, table: str) -> list[str]:
        """Return the members that changed a table since the last cut."""
        folded = self._folded.get(table)
        return [prefix for each in folded.shards for prefix in each.prefixes] if folded is not None else []

    def take_back(self, table: str) -> None:
        """Forget the merge of a table that was refused when the cut was published."""
        self.versions.pop(table, None)
        if table in self._published:
            self.versions[table] = self._published[table]

    def note_published(self, number: int) -> None:
        self._published = dict(self.versions)
        self._folded = {}
        self._applied.clear()
        self.maintenance.note_batch(number - 1, number)

    def maintain_if_due(self) -> None:
        """Maintain some of the changed tables, between two cuts.

        Maintenance moves `main` to the last merge, so it leaves out tables whose `main` stays.
        """
        due = [table for table in self.maintenance.due.take_share() if table in self.versions]
        if due and self._place.last is not None:
            due = [table for table in due if table not in self._place.last.held_tables]
        if due and self._sink is not None:
            self._sink.maintain(due, self._settings.keep_cuts)

    def close(self) -> None:
        self._pool.shutdown()
        self._folder.close()

    def _read(self, shared: MirrorTable) -> int:
        """Read the table's number, once for each cut: what is unpublished of it goes."""
        assert self._sink is not None, "begin comes first"
        with self._lock:
            if str(shared) not in self._applied:
                self._applied[str(shared)] = self._sink.read_applied(shared)
            return self._applied[str(shared)]

    def _merge_table(self, sink: Sink, folded: FoldedTable, number: int, *, is_loading: bool) -> TableRefused | None:
        table = _share(folded.shards[0].table)
        try:
            with refusing_errors(table, otherwise=_LOAD_ALL):
                self._unite_and_merge(
                    sink, table, folded.shards, number, check=self._settings.unique_keys and not is_loading
                )
        except TableRefused as refused:
            refused.prefix, refused.table = SHARED, str(table)
            return refused
        finally:
            folded.caches.close()
        with self._lock:
            self.maintenance.changed.add(str(table))
            if (version := sink.version_of(table)) is not None:
                self.versions[str(table)] = version
        return None

    def _unite_and_merge(
        self, sink: Sink, table: MirrorTable, shards: list[Shard], number: int, *, check: bool
    ) -> None:
        columns = unite_columns(table, [(_share(each.table).key, one) for each in shards for one in each.columns])
        counts = [each.keys for each in shards]
        batch = TableBatch(
            reduce(DataFrame.unionByName, (_select_rows(each, columns) for each in shards)),
            sum(counts) if None not in counts else None,  # type: ignore[arg-type]
            replace=False,
            unchanged=tuple(dict.fromkeys(name for each in shards for name in each.unchanged)),
            emptied=tuple(prefix for each in shards for prefix in each.emptied),
        )
        sink.prepare(table, add_member(columns))
        sink.merge(table, batch, sequence=number)
        if check:
            self._check_unique(sink, table, batch)

    def _check_unique(self, sink: Sink, table: MirrorTable, batch: TableBatch | None) -> None:
        """Refuse a key that two members have behind this merge, or without one."""
        everywhere = str(table) not in self._checked
        if table.key and (repeated := sink.find_repeated(table, batch, everywhere=everywhere)) is not None:
            raise TableRefused(
                f"two members have one key of {table}: {repeated}",
                at_stake="which of the rows is the one that counts",
                repair="delete the row in all of them except one, or start the mirror without --unique-keys",
            )
        self._checked.add(str(table))


def unite_columns(table: MirrorTable, shards: Iterable[tuple[tuple[str, ...], StructType]]) -> StructType:
    """Return the columns of all shards, by their keys and columns; refuse what does not unite."""
    repair = f"give the column one type in all shards; then, in each of them, `{reload_command(table)}`"
    found = []
    for key, columns in shards:
        if key != table.key:
            raise refuse_key(table, key)
        found.append(columns)
    refuse = partial(TableRefused, at_stake="the column's values", repair=repair)
    return column_changes.unite_columns(table, found, refuse=refuse)


def _share(table: MirrorTable) -> MirrorTable:
    """Return the one table that a member's table is a shard of.

    The member is the last column of its key: filters go by the first.
    """
    return replace(table, topic=f"*.{table}", key=(*table.key, MEMBER) if table.key else (), stream_id="")


def _select_rows(shard: Shard, columns: StructType) -> DataFrame:
    own = {*shard.columns[0].names}
    values = (
        (f.col(field.name) if field.name in own else f.lit(None)).cast(field.dataType).alias(field.name)
        for field in columns
    )
    return shard.rows.select(*values, MEMBER, OP, UNCHANGED)
