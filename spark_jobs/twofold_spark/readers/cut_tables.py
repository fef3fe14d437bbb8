"""`read_cut`: all tables of the mirror as of one source position, by pinning versions.

    cut = read_cut(spark)                       # the last one
    cut = read_cut(spark, at=dt.datetime(...))  # the last one whose source transactions had committed by then
    cut = read_cut(spark, sequence=4711)        # or as of a commit record, or lsn=...
    cut["public.accounts"].join(cut["public.entries"], ...)

A mirror in PostgreSQL (`reader=JdbcReader(...)`) has one cut, which is the present: an older one is refused.

A table whose backfill is not over is there in part: it is refused, and left out where the cut's tables are listed.

A table read by its name alone is as of its own last merge, which may be between two cuts: of the reads of "latest" in a
test with crashes a third saw tables that did not fit together, of the cuts none.

A cut that is not there (any more), or whose tables' versions are not, is refused by a message that names what is kept.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping

from pyspark.sql import DataFrame, SparkSession

from twofold_spark.errors import SPARKS, MissingGround, said
from twofold_spark.session import CATALOG
from twofold_spark.sinks import Asked, Cut, Reader
from twofold_spark.sinks.iceberg_tables import IcebergReader


class Tables(Mapping[str, DataFrame]):
    """The tables of a cut by `schema.name`; a DataFrame is made when it is asked for."""

    def __init__(self, reader: Reader, cut: Cut) -> None:
        self.cut = cut
        self._reader = reader

    def __getitem__(self, name: str) -> DataFrame:
        if name in self.cut.stopped:
            raise MissingGround(
                f"{name} was stopped by a refusal: `twofold backfill start {name}` brings it into cuts again"
            )
        version = self.cut.versions[name]
        if name in self.cut.backfilling:
            raise MissingGround(
                f"{name} is still in backfill as of cut {self.cut}: its rows are not all there (`twofold status` says how far it "
                "is; read by its name alone it has those that are)"
            )
        try:
            return self._reader.table(name, version)
        except SPARKS as error:
            raise MissingGround(
                f"{name} cannot be read as of cut {self.cut}, its version {version}: {said(error)}; {_kept(self._reader)}"
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
    """The last cut at or before what is given; refuses where there is none. Of the Iceberg catalog, or of a reader."""
    reader = reader or IcebergReader(spark, catalog)
    asked = Asked(sequence, lsn, round(at.timestamp() * 1_000_000) if at is not None else None)
    cut = reader.whole_cut(asked)
    if cut is None:
        up_to = f" at or before {asked}" if str(asked) else ""
        raise MissingGround(f"no cut is published{up_to}; {_kept(reader)}")
    return Tables(reader, cut)


def _kept(reader: Reader) -> str:
    first, last = reader.whole_cut(first=True), reader.whole_cut()
    if first is None or last is None:
        return "there is none at all: has `mirror` run on this warehouse?"
    if first == last:
        return f"kept is one alone, {last}"
    return f"kept are those from {first} to {last} (`mirror --keep-cuts` says for how long)"
