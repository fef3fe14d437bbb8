"""A cut as a row of a table of cuts, for the sinks whose tables have versions."""

from __future__ import annotations

import datetime as dt

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from twofold_spark.sinks import Asked, Cut
from twofold_spark.sinks.merge_sql import text

COLUMNS = (
    "sequence bigint, applied_lsn bigint, committed_at timestamp, published_at timestamp, whole boolean, "
    "tables array<struct<name: string, version: bigint>>, backfilling array<string>, stopped array<string>"
)


def select(cut: Cut) -> str:
    """A query of one row."""
    versions = [f"named_struct('name', '{text(n)}', 'version', {v}L)" for n, v in cut.versions.items()]
    behind, stopped = (", ".join(f"'{text(name)}'" for name in names) for names in (cut.backfilling, cut.stopped))
    return (
        f"SELECT {cut.sequence}L, {cut.applied_lsn}L, timestamp_micros({cut.committed_us}L), "
        f"current_timestamp(), {'true' if cut.whole else 'false'}, "
        f"CAST(array({', '.join(versions)}) AS array<struct<name: string, version: bigint>>), "
        f"CAST(array({behind}) AS array<string>), CAST(array({stopped}) AS array<string>)"
    )


def ago(keep: dt.timedelta) -> str:
    return f"(current_timestamp() - INTERVAL '{int(keep.total_seconds())}' SECOND)"


def forgotten(last: Cut, keep: dt.timedelta) -> str:
    """Of a table of cuts, which are older than that; never the last."""
    return f"published_at < {ago(keep)} AND sequence < {last.sequence}"


def meant(cuts: DataFrame, asked: Asked) -> DataFrame:
    """Those that are whole, and at or before what is given."""
    cuts = cuts.where("whole")
    if asked.sequence is not None:
        cuts = cuts.where(f.col("sequence") <= asked.sequence)
    if asked.applied_lsn is not None:
        cuts = cuts.where(f.col("applied_lsn") <= asked.applied_lsn)
    if asked.committed_us is not None:
        cuts = cuts.where(f.unix_micros("committed_at") <= asked.committed_us)
    return cuts


def end_of(cuts: DataFrame, *, first: bool = False) -> Cut | None:
    """The last one, or the first."""
    row = cuts.orderBy("sequence", ascending=first).withColumn("committed_us", f.unix_micros("committed_at")).first()
    if row is None:
        return None
    return Cut(
        sequence=row["sequence"],
        applied_lsn=row["applied_lsn"],
        committed_us=row["committed_us"],
        whole=row["whole"],
        versions={entry["name"]: str(entry["version"]) for entry in row["tables"]},
        backfilling=tuple(row["backfilling"]),
        stopped=tuple(row["stopped"]),
    )
