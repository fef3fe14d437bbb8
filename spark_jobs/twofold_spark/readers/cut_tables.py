"""`read_cut`: all tables of the mirror as of one source position, by pinned versions.

    cut = read_cut(spark)                       # the last one
    cut = read_cut(spark, at=dt.datetime(...))  # the last one that was committed by then
    cut = read_cut(spark, sequence=4711)        # or as of a commit record, or lsn=...
    cut["public.accounts"].join(cut["public.entries"], ...)

A mirror in PostgreSQL (`reader=JdbcReader(...)`) has one cut, the present one; an older one is
refused.

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

from twofold_spark.errors import SPARK_ERRORS, SetupError, first_line
from twofold_spark.session import CATALOG
from twofold_spark.sinks.cuts import Cut, CutLimit
from twofold_spark.sinks.iceberg_tables import IcebergReader
from twofold_spark.sinks.interface import Reader


class Tables(Mapping[str, DataFrame]):
    """The tables of a cut by `schema.name`; a DataFrame is made on access."""

    def __init__(self, reader: Reader, cut: Cut) -> None:
        self.cut = cut
        self._reader = reader

    def __getitem__(self, name: str) -> DataFrame:
        if name in self.cut.stopped:
            raise SetupError(
                f"{name} was stopped by a refusal: `twofold backfill start {name}` brings it back into cuts"
            )
        version = self.cut.versions[name]
        if name in self.cut.backfilling:
            raise SetupError(
                f"the backfill of {name} is in progress as of cut {self.cut}, so some of its rows are missing. "
                "`twofold status` shows how far it is. To read the rows that exist, read the table by its name"
            )
        try:
            return self._reader.read_table(name, version)
        except SPARK_ERRORS as error:
            raise SetupError(
                f"cannot read {name} as of cut {self.cut}, its version {version}: {first_line(error)}; "
                f"{_describe_kept_cuts(self._reader)}"
            ) from error

    def __iter__(self) -> Iterator[str]:
        return (name for name in self.cut.versions if name not in self.cut.backfilling)

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

    Raise an error if there is none.
    """
    reader = reader or IcebergReader(spark, catalog)
    limit = CutLimit(sequence, lsn, round(at.timestamp() * 1_000_000) if at is not None else None)
    cut = reader.find_cut(limit)
    if cut is None:
        up_to = f" at or before {limit}" if str(limit) else ""
        raise SetupError(f"no cut is published{up_to}; {_describe_kept_cuts(reader)}")
    return Tables(reader, cut)


def _describe_kept_cuts(reader: Reader) -> str:
    first, last = reader.find_cut(first=True), reader.find_cut()
    if first is None or last is None:
        return "no cut is kept: run `twofold-spark mirror` on this warehouse first"
    if first == last:
        return f"only one cut is kept, {last}"
    return f"the cuts from {first} to {last} are kept (`mirror --keep-cuts` sets for how long)"
