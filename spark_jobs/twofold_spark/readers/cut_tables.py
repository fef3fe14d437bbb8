"""`read_cut`: all tables of a mirror as of one cut, by pinned versions.

    cut = read_cut(spark)                       # the last one
    cut = read_cut(spark, at=dt.datetime(...))  # the last one that was committed by then
    cut = read_cut(spark, sequence=4711)        # or as of a commit record, or lsn=...
    accounts, entries = cut["public.accounts"], cut["public.entries"]
    accounts.join(entries, accounts.id == entries.account)

In the mirror of a source group every global transaction is whole or absent, and a table's name
begins with its source's topic prefix:

    cut["bank_east.public.accounts"].unionByName(cut["bank_west.public.accounts"])

A sharded table is one table, `cut["public.accounts"]`, whose column `_member` says which source has
the row.

A mirror in PostgreSQL (`reader=JdbcReader(...)`) has one cut, the present one; an older one is
refused. More than one table is read within `with`, in one snapshot of the database:

    with read_cut(spark, reader=JdbcReader(spark, url)) as cut:
        cut["public.accounts"].join(cut["public.entries"], ...).count()

A table in backfill lacks some of its rows. It is refused, and left out where the cut's tables are
listed.

A cut that does not exist (any more), or whose tables' versions were removed, is refused with a
message that names what is kept.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from twofold_spark.errors import SPARK_ERRORS, Refused, SetupError, UsageError, first_line
from twofold_spark.row_columns import MEMBER
from twofold_spark.session import CATALOG
from twofold_spark.sinks.cuts import Cut, CutLimit, GlobalCut, MissingRow
from twofold_spark.sinks.iceberg_tables import IcebergReader
from twofold_spark.sinks.interface import Reader
from twofold_spark.sinks.sharding import SHARED
from twofold_spark.sources.topic_names import reload_command


class _Place(NamedTuple):
    """Where a table of the cut is."""

    table: str
    prefixes: tuple[str, ...]
    """The member that has it; of a sharded table all that have rows in it."""
    is_shared: bool

    @property
    def source(self) -> str:
        """Whose it is in the mirror's place."""
        return SHARED if self.is_shared else self.prefixes[0]


class Tables(Mapping[str, DataFrame]):
    """The tables of a cut by their names; a DataFrame is made on access.

    A name is `schema.name`, in the mirror of a source group `prefix.schema.name`. A sharded table,
    which the members share, is `schema.name` there too.
    """

    def __init__(
        self, reader: Reader, cut: GlobalCut, *, of_group: bool, read: Callable[[Reader], Tables] | None = None
    ) -> None:
        """Without `of_group` they are those of one source: of a sharded table its rows.

        `read`: what has read the cut, to read it by a reader for which it lasts.
        """
        self.number = cut.number
        self.members = cut.members
        """The cut of each source, by topic prefix."""
        self._reader = reader
        self._of_group = of_group
        self._read_again = read
        self._ending = ExitStack()
        self._others = cut.others
        self._parts = {prefix: part for prefix, part, _ in cut.parts}
        sharding = reader.read_sharding()
        self._places: dict[str, _Place] = {}
        for prefix, part in cut.members.items():
            for table in (*part.versions, *part.stopped_tables):
                is_shared = sharding.covers(table)
                name = f"{prefix}.{table}" if of_group and not is_shared else table
                others = self._places[name].prefixes if name in self._places else ()
                self._places[name] = _Place(table, (*others, prefix), is_shared)
        self._frames: dict[str, DataFrame] = {}
        """A join's condition names columns of the frames that it joins, so a table is one frame."""

    def __enter__(self) -> Tables:
        if self._reader.is_lasting or self._read_again is None:
            return self
        with ExitStack() as opened:
            lasting = self._read_again(opened.enter_context(self._reader.pin()))
            opened.callback(lasting._frames.clear)
            self._ending = opened.pop_all()
        return lasting

    def __exit__(self, *_: object) -> None:
        self._ending.close()

    @property
    def cut(self) -> Cut:
        """The cut of the mirror's only source."""
        if len(self.members) != 1:
            raise UsageError(
                f"this cut has several sources ({', '.join(self.members)}): `.members` has the cut of each"
            )
        return next(iter(self.members.values()))

    @property
    def stale(self) -> tuple[str, ...]:
        """The tables that lack, or may lack, changes that PostgreSQL did not send.

        `twofold status` has the reasons. Until a reload, readers see such a table as it is.
        """
        return tuple(
            name
            for name, place in self._places.items()
            if any(place.table in self.members[prefix].stale for prefix in place.prefixes)
        )

    @property
    def skipped(self) -> tuple[MissingRow, ...]:
        """The rows that a person had skipped, by tables' names here: readers lack them."""
        names = {(prefix, place.table): name for name, place in self._places.items() for prefix in place.prefixes}
        return tuple(
            replace(row, table=names[prefix, row.table])
            for prefix, part in self.members.items()
            for row in part.skipped
        )

    def read_key(self, name: str) -> tuple[str, ...]:
        """Return the columns that identify a table's rows; none of a keyless table."""
        place = self._places[name]
        key = self._reader.read_key(place.source, place.table)
        return key if self._of_group else tuple(column for column in key if column != MEMBER)

    def __getitem__(self, name: str) -> DataFrame:
        if name not in self._frames:
            if self._frames and not self._reader.is_lasting:
                raise UsageError(
                    "Spark reads each table of this mirror in a transaction of its own, so two could be of two cuts: "
                    "read them within `with read_cut(...) as cut:`, which is one snapshot"
                )
            self._frames[name] = self._read(name)
        return self._frames[name]

    def _read(self, name: str) -> DataFrame:
        place = self._places[name]
        table, cut = place.table, self.members[place.prefixes[0]]
        if stopped := self._find_stopped(place):
            where, again = "", f"`{reload_command(table)}` brings it back into cuts"
            if place.is_shared:
                where = f" in {', '.join(stopped)}"
                again += (
                    " there. A member that does not publish it any more must do so until it is loaded, and its rows stay "
                    "then: load an empty table if they are to go"
                )
            raise SetupError(f"{name} was stopped by a refusal{where}: {again}")
        if loading := self._find_loading(place):
            where = f" in {', '.join(loading)}" if place.is_shared else ""
            raise SetupError(
                f"the backfill of {name} is in progress{where} as of cut {cut}, so some of its rows are missing. "
                "`twofold status` shows how far it is. To read the rows that exist, read the table by its name"
            )
        version = cut.versions[table]
        try:
            frame = self._reader.read_table(place.source, table, version)
        except SPARK_ERRORS as error:
            raise SetupError(
                f"cannot read {name} as of cut {cut}, its version {version}: {first_line(error)}; "
                f"{_describe_kept_cuts(self._reader)}"
            ) from error
        if place.is_shared and not self._of_group:
            return frame.where(f.col(MEMBER) == place.prefixes[0]).drop(MEMBER)
        return frame

    def _find_stopped(self, place: _Place) -> list[str]:
        """Return the members in which a table waits for a reload."""
        return [prefix for prefix in place.prefixes if place.table in self.members[prefix].stopped]

    def _find_loading(self, place: _Place) -> list[str]:
        """Return the members that have not all of their rows in a table yet.

        A member that no cut shows yet may have rows in a sharded table.
        """
        if not place.is_shared:
            return [prefix for prefix in place.prefixes if place.table in self.members[prefix].backfilling]
        joining = {prefix for prefix, part in self._others.items() if place.table in part.versions}
        loading = {prefix for prefix, part in self._parts.items() if place.table in part.backfilling}
        return sorted(joining | loading)

    def __iter__(self) -> Iterator[str]:
        for name, place in self._places.items():
            if not self._find_stopped(place) and not self._find_loading(place):
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

    Raise an error if there is none. `at` holds for all sources of a group.
    """
    limit = CutLimit(sequence, lsn, round(at.timestamp() * 1_000_000) if at is not None else None)

    def read(reader: Reader) -> Tables:
        cut = reader.find_cut(limit)
        if cut is None:
            up_to = f" at or before {limit}" if str(limit) else ""
            raise SetupError(f"no cut is published{up_to}; {_describe_kept_cuts(reader)}")
        of_group = reader.is_of_group()
        if of_group and not (sequence is None and lsn is None):
            raise UsageError("in the mirror of a source group sequence and lsn would be those of one source: give `at`")
        return Tables(reader, cut, of_group=of_group, read=read)

    return read(reader or IcebergReader(spark, catalog))


def read_source(reader: Reader, prefix: str) -> Tables:
    """Return what the last cut has of one source, by `schema.name`."""
    cut = reader.find_cut()
    if cut is None:
        raise SetupError(f"no cut is published; {_describe_kept_cuts(reader)}")
    if prefix not in cut.members:
        what, others = f"the mirror has no {prefix}", ", ".join(sorted(cut.members))
        if reader.is_of_group():
            raise SetupError(f"{what} yet: its last cut has {others}. The mirror adds a member with a complete cut")
        raise Refused(
            f"{what}: it is the mirror of the prefix {others}",
            at_stake="nothing: nothing was compared",
            repair=f"give --prefix {others}, or the place of the mirror of {prefix}",
        )
    return Tables(reader, GlobalCut(cut.number, {prefix: cut.members[prefix]}), of_group=False)


def _describe_kept_cuts(reader: Reader) -> str:
    first, last = reader.find_cut(first=True), reader.find_cut()
    if first is None or last is None:
        return "no cut is kept: run `twofold-spark mirror` on this warehouse first"
    if first == last:
        return f"only one cut is kept, {last}"
    return f"the cuts from {first} to {last} are kept (`mirror --keep-cuts` sets for how long)"
