"""A mirror in Iceberg, in any catalog: the table of cuts, and what publishes a cut.

The tables of one source are in the catalog of the cuts. Each member of a source group has a catalog
of its own, and its sharded tables are in that of the cuts.

A cut is decided once its rows are in the Iceberg branch `twofold` of `twofold.cuts`. It is
published once `main` of its tables, and then of `twofold.cuts`, is where the cut says. A start
shows the last decided cut again: a job may have been killed in between.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from twofold_spark.session import CATALOG, member_catalog
from twofold_spark.sinks import cut_rows, iceberg_branches, iceberg_commits, iceberg_maintenance, iceberg_tables
from twofold_spark.sinks.cuts import CUTS, GlobalCut
from twofold_spark.sinks.iceberg_branches import MERGES
from twofold_spark.sinks.iceberg_sink import IcebergSink
from twofold_spark.sinks.iceberg_tables import FORMAT_VERSION, MAIN, IcebergTables
from twofold_spark.sinks.merge_plan import WriteMode
from twofold_spark.sinks.partitioning import NO_PARTITIONING, Partitioning
from twofold_spark.sinks.place import TablePlace, refuse_other_cut
from twofold_spark.sinks.sharding import NO_SHARDING, SHARED, Sharding


class IcebergPlace(TablePlace):
    """The catalog that has the cuts."""

    word = "warehouse"
    _own: IcebergTables

    def __init__(
        self,
        catalog: str = CATALOG,
        *,
        of_group: bool = False,
        sharding: Sharding = NO_SHARDING,
        format_version: int = FORMAT_VERSION,
        write_mode: WriteMode = "by-size",
        partitioning: Partitioning = NO_PARTITIONING,
    ) -> None:
        super().__init__(of_group=of_group, sharding=sharding)
        self._catalog = catalog
        self._format_version = format_version
        self._write_mode: WriteMode = write_mode
        self._partitioning = partitioning
        self._sinks: dict[str, IcebergSink] = {}
        self._publishers: dict[str, iceberg_branches.CutPublisher] = {}
        self._shown: Mapping[str, Mapping[str, str]] = {}
        """By prefix, the versions that this job has shown."""
        self._decided: str | None = None
        """The number of the last cut, as the summary of its snapshot has it."""

    def open(self, spark: SparkSession, prefixes: tuple[str, ...]) -> None:
        self._publishers.clear()
        self._shown = {}
        super().open(spark, prefixes)
        if self.last is not None:
            # All its tables: a job was killed before it had shown them, or a person has rolled
            # back one of them alone.
            self._show(self.last, self._load_cuts())

    def _open_tables(self, spark: SparkSession) -> IcebergTables:
        spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {self._catalog}.twofold")
        return IcebergTables(spark, self._catalog, self._format_version)

    def make_sink(self, spark: SparkSession, prefix: str) -> IcebergSink:
        catalog = self._catalog_of(prefix)
        self._sinks[prefix] = IcebergSink(
            self._tables_of(spark, catalog),
            prefix,
            self,
            publisher=self._publisher(catalog),
            write_mode=self._write_mode,
            partitioning=self._partitioning,
        )
        return self._sinks[prefix]

    def publish(self, cut: GlobalCut) -> None:
        cuts, number = self._load_cuts(), str(cut.number)
        if _read_number(cuts) not in (None, self._decided):
            raise refuse_other_cut(cut)
        summary = {iceberg_tables.SEQUENCE: number}
        rows = cut_rows.make_rows(cut)
        if not iceberg_commits.append_rows(self._spark, cuts, rows, branch=MERGES, summary=summary):
            raise refuse_other_cut(cut)
        self.last, self._decided = cut, number
        self._show(cut, cuts)

    def _show(self, cut: GlobalCut, cuts: Any) -> None:
        """Move `main` of the cut's tables, then of `twofold.cuts`, which no other job has changed.

        A cut that is not whole waits for the next one that is.
        """
        if not cut.whole:
            return
        head = iceberg_tables.current_snapshot(cuts, MERGES)
        assert head is not None, "the cut was written"
        moves, known = {CUTS: head}, {CUTS: cuts}
        shown = self._list_versions(cut)
        for prefix in (*self.prefixes, SHARED):
            before = self._shown.get(prefix, {})
            changed = {n: int(v) for n, v in shown.get(prefix, {}).items() if before.get(n) != v}
            loaded = self._sinks[prefix].loaded if prefix in self._sinks else {}
            if self._catalog_of(prefix) == self._catalog:
                moves, known = {**changed, **moves}, {**loaded, **known}
            elif changed:
                self._publisher(self._catalog_of(prefix)).publish(changed, loaded)
        self._publisher(self._catalog).publish(moves, known)
        self._shown = shown
        for sink in self._sinks.values():
            sink.loaded.clear()

    def read_cuts(self, spark: SparkSession) -> DataFrame:
        return spark.table(iceberg_tables.name_branch(self._own.name(CUTS), MERGES))

    def _read_last(self) -> GlobalCut | None:
        iceberg_branches.open_branch(self._spark, self._own.name(CUTS))
        cuts = self._load_cuts()
        iceberg_commits.forget_repeated_append(self._spark, cuts, MERGES)
        self._decided = _read_number(cuts)
        return cut_rows.read_last(self.read_cuts(self._spark))

    def _delete_before(self, number: int) -> None:
        name = iceberg_tables.name_branch(self._own.name(CUTS), MERGES)
        self._spark.sql(f"DELETE FROM {name} WHERE number < {number}")
        head = iceberg_tables.current_snapshot(self._load_cuts(), MERGES)
        if self.last is not None and self.last.whole and head is not None:
            self._publisher(self._catalog).publish({CUTS: head}, {})

    def _compact(self, table: str, keep: dt.timedelta) -> None:
        publisher = self._publisher(self._catalog) if self.last is not None and self.last.whole else None
        branch = MERGES if table == CUTS else MAIN
        iceberg_maintenance.maintain(self._own, branch, publisher, {table: set()}, keep)

    def _tables_of(self, spark: SparkSession, catalog: str) -> IcebergTables:
        return IcebergTables(spark, catalog, self._format_version, opened=self._own.name(CUTS))

    def _load_cuts(self) -> Any:
        return self._own.load(CUTS)

    def _catalog_of(self, prefix: str) -> str:
        return member_catalog(self._catalog, prefix) if self.of_group and prefix != SHARED else self._catalog

    def _list_versions(self, cut: GlobalCut | None) -> Mapping[str, Mapping[str, str]]:
        """List the versions that plain names may show with this cut, by prefix.

        A sharded table stays as it is while one of its shards waits for a reload, or joins.
        """
        if cut is None:
            return {}
        held = cut.held_tables
        shared = {name: version for name, version in self.shared_versions(cut).items() if name not in held}
        own = {
            prefix: {name: version for name, version in part.versions.items() if not self.sharding.covers(name)}
            for prefix, part, _ in cut.parts
            if part.whole
        }
        return {**own, SHARED: shared}

    def _publisher(self, catalog: str) -> iceberg_branches.CutPublisher:
        if catalog not in self._publishers:
            self._publishers[catalog] = iceberg_branches.CutPublisher(self._tables_of(self._spark, catalog))
        return self._publishers[catalog]


def _read_number(cuts: Any) -> str | None:
    """Read the number of the last cut that was decided; None if its snapshot has expired."""
    return iceberg_tables.read_summary(cuts, iceberg_tables.SEQUENCE, branch=MERGES)
