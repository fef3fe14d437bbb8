"""A cut as a row of a table of cuts, for the sinks whose tables have versions."""

from __future__ import annotations

import datetime as dt
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from twofold_spark.sinks.cuts import Cut, CutLimit
from twofold_spark.sinks.merge_sql import escape_literal

COLUMNS = (
    "sequence bigint, applied_lsn bigint, committed_at timestamp, published_at timestamp, whole boolean, "
    "tables array<struct<name: string, version: bigint>>, backfilling array<string>, stopped array<string>, "
    "stream_id string"
)

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def select_row(cut: Cut) -> str:
    """Build a query that returns the cut as one row."""
    versions = [f"named_struct('name', '{escape_literal(n)}', 'version', {v}L)" for n, v in cut.versions.items()]
    backfilling, stopped = (
        ", ".join(f"'{escape_literal(name)}'" for name in names) for names in (cut.backfilling, cut.stopped)
    )
    return (
        f"SELECT {cut.sequence}L, {cut.applied_lsn}L, timestamp_micros({cut.committed_us}L), "
        f"current_timestamp(), {'true' if cut.whole else 'false'}, "
        f"CAST(array({', '.join(versions)}) AS array<struct<name: string, version: bigint>>), "
        f"CAST(array({backfilling}) AS array<string>), CAST(array({stopped}) AS array<string>), "
        f"'{escape_literal(cut.stream_id)}'"
    )


def make_row(cut: Cut) -> dict[str, Any]:
    """Make the cut's row, published now."""
    return {
        "sequence": cut.sequence,
        "applied_lsn": cut.applied_lsn,
        "committed_at": _EPOCH + dt.timedelta(microseconds=cut.committed_us),
        "published_at": dt.datetime.now(dt.UTC),
        "whole": cut.whole,
        "tables": [{"name": name, "version": int(version)} for name, version in cut.versions.items()],
        "backfilling": cut.backfilling,
        "stopped": cut.stopped,
        "stream_id": cut.stream_id,
    }


def time_ago(keep: dt.timedelta) -> str:
    """Build the SQL expression of the moment so long ago."""
    return f"(current_timestamp() - INTERVAL '{keep.total_seconds():.6f}' SECOND)"


def find_first_kept(cuts: DataFrame, keep: dt.timedelta, number: str = "sequence") -> int:
    """Return the number of the cut that readers got `keep` ago: older cuts had been replaced.

    A reader may have begun with a cut just before the next one came. So a cut's age counts from its
    successor, however old the cut is itself. 0 if the first cut is younger than `keep`.
    """
    row = cuts.where(f"published_at < {time_ago(keep)}").agg(f.max(number)).first()
    return row[0] or 0 if row is not None else 0


def expired_condition(cuts: DataFrame, keep: dt.timedelta, since: int | None) -> str:
    """Build the condition of the cuts that were replaced more than `keep` ago, and lie before
    `since`.

    The last whole cut is not replaced. A cut that is not whole replaces none.
    """
    kept = find_first_kept(cuts.where("whole"), keep)
    return f"sequence < {kept if since is None else min(kept, since)}"


def filter_cuts(cuts: DataFrame, limit: CutLimit) -> DataFrame:
    """Keep the cuts that are whole, and within the limit."""
    cuts = cuts.where("whole")
    if limit.sequence is not None:
        cuts = cuts.where(f.col("sequence") <= limit.sequence)
    if limit.applied_lsn is not None:
        cuts = cuts.where(f.col("applied_lsn") <= limit.applied_lsn)
    if limit.committed_us is not None:
        cuts = cuts.where(f.unix_micros("committed_at") <= limit.committed_us)
    return cuts


def read_outermost(cuts: DataFrame, *, first: bool = False) -> Cut | None:
    """Read the last cut, or the first."""
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
        stream_id=row["stream_id"],
    )
