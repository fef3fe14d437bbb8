"""`read_cut`: all tables of a mirror as of one cut, by pinned versions.

    cut = read_cut(spark)                       # the last one
    cut = read_cut(spark, at=dt.datetime(...))  # the last one that was committed by then
    cut = read_cut(spark, sequence=4711)        # or as of a commit record, or lsn=...
    cut["public.accounts"].join(cut["public.entries"], ...)

In the mirror of a source group every global transaction is whole or absent, and a table's name
begins with its source's topic prefix:

    cut["bank_east.public.accounts"].unionByName(cut["bank_west.public.accounts"])

A mirror in PostgreSQL (`reader=JdbcReader(...)`) has one cut, the present one; an older one is
refused. There every snapshot is at a cut of all sources: read the tables of several in one
REPEATABLE READ transaction.

A table in backfill lacks some of its rows. It is refused, and left out where the cut's tables are
listed.

In Iceberg and PostgreSQL a table that is read by its name is as of the last whole cut. In Delta it
is as of its own last merge, which may lie between two cuts.

A cut that does not exist (any more), or whose tables' versions were removed, is refused with a
message that names what is kept.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping

from pyspark.sql import DataFrame, SparkSession

from twofold_spark.errors import SPARK_ERRORS, SetupError, UsageError, first_line
from twofold_spark.session import CATALOG
from twofold_spark.sinks.cuts import NO_CUT, NO_LIMIT, Cut, CutLimit
from twofold_spark.sinks.delta_group import DeltaGroup
from twofold_spark.sinks.delta_tables import DeltaReader
from twofold_spark.sinks.global_cuts import GlobalCut
from twofold_spark.sinks.iceberg_group import IcebergGroup
from twofold_spark.sinks.iceberg_tables import IcebergReader
from twofold_spark.sinks.interface import Reader
from twofold_spark.sources.topic_names import reload_command


class Tables(Mapping[str, DataFrame]):
    """The tables of a cut by their names; a DataFrame is made on access.

    A name is `schema.name`, in the mirror of a source group `prefix.schema.name`.
    """

    def __init__(
        self, number: int, members: Mapping[str, Cut], readers: Mapping[str, Reader], *, of_group: bool
    ) -> None:
        self.number = number
        """The number of the cut: in the mirror of one source that of its last commit record."""
        self.members = members
        """The cut of each source, by topic prefix."""
        self._readers = readers
        self._places = {
            f"{prefix}.{name}" if of_group else name: (prefix, name)
            for prefix, cut in members.items()
            for name in (*cut.versions, *cut.stopped_tables)
        }

    @property
    def cut(self) -> Cut:
        """The cut of the mirror's only source."""
        if len(self.members) != 1:
            raise UsageError(
                f"this cut has several sources ({', '.join(self.members)}): `.members` has the cut of each"
            )
        return next(iter(self.members.values()))

    def __getitem__(self, name: str) -> DataFrame:
        prefix, table = self._places[name]
        cut, reader = self.members[prefix], self._readers[prefix]
        if table in cut.stopped:
            raise SetupError(f"{name} was stopped by a refusal: `{reload_command(table)}` brings it back into cuts")
        version = cut.versions[table]
        if table in cut.backfilling:
            raise SetupError(
                f"the backfill of {name} is in progress as of cut {cut}, so some of its rows are missing. "
                "`twofold status` shows how far it is. To read the rows that exist, read the table by its name"
            )
        try:
            return reader.read_table(table, version)
        except SPARK_ERRORS as error:
            raise SetupError(
                f"cannot read {name} as of cut {cut}, its version {version}: {first_line(error)}; "
                f"{_describe_kept_cuts(reader)}"
            ) from error

    def __iter__(self) -> Iterator[str]:
        for name, (prefix, table) in self._places.items():
            cut = self.members[prefix]
            if table not in cut.stopped and table not in cut.backfilling:
                yield name

    def __len__(self) -> int:
        return sum(1 for _ in self)


def read_cut(
    spark: SparkSession,
    at: dt.datetime | None = None,
    *,
    sequence: int | None = None,
    lsn: int | None = None,
    catalog: str = CATALOG,
    reader: Reader | None = None,
) -> Tables:
    """Return the last cut at or before what is given, of the Iceberg catalog or of a reader.

    Raise an error if there is none. The mirror of a source group has only its last cut.
    """
    reader = reader or IcebergReader(spark, catalog)
    limit = CutLimit(sequence, lsn, round(at.timestamp() * 1_000_000) if at is not None else None)
    group = _find_group(reader)
    if group is not None and (last := group.make_cuts(spark).read_last()) is not None:
        if limit != NO_LIMIT:
            raise UsageError(
                f"{group} has the mirror of a source group: read its last cut, without at, sequence or lsn"
            )
        return read_members(spark, group, last)
    cut = reader.find_cut(limit)
    if cut is None:
        up_to = f" at or before {limit}" if str(limit) else ""
        raise SetupError(f"no cut is published{up_to}; {_describe_kept_cuts(reader)}")
    prefix = reader.read_prefix()
    return Tables(cut.sequence, {prefix: cut}, {prefix: reader}, of_group=False)


def read_members(spark: SparkSession, group: DeltaGroup | IcebergGroup, cut: GlobalCut) -> Tables:
    """Read what each member has in a global cut."""
    readers = {prefix: group.make_reader(spark, prefix) for prefix in cut.members}
    members = {}
    for prefix, part in cut.members.items():
        if not part.sequence:
            members[prefix] = NO_CUT
            continue
        found = readers[prefix].find_cut(CutLimit(sequence=part.sequence))
        if found is None or found.sequence != part.sequence:
            raise SetupError(
                f"the cut {cut} of the source group names the cut {part.sequence} of {prefix}, which is not kept or not "
                f"whole; the last one before it is {found}: read the last cut again"
            )
        members[prefix] = found
    return Tables(cut.number, members, readers, of_group=True)


def _find_group(reader: Reader) -> DeltaGroup | IcebergGroup | None:
    match reader:
        case IcebergReader():
            return IcebergGroup(reader.catalog)
        case DeltaReader():
            return DeltaGroup(reader.folder)
    return None


def _describe_kept_cuts(reader: Reader) -> str:
    first, last = reader.find_cut(first=True), reader.find_cut()
    if first is None or last is None:
        return "no cut is kept: run `twofold-spark mirror` on this warehouse first"
    if first == last:
        return f"only one cut is kept, {last}"
    return f"the cuts from {first} to {last} are kept (`mirror --keep-cuts` sets for how long)"
