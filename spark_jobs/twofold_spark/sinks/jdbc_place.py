"""A mirror in PostgreSQL: all tables of all sources and the rows of their cut change in one
transaction. So one snapshot is at a cut, whatever tables are read in it.

The tables of one source keep their schemas' names, and so do the sharded tables of a source group,
whose members have schemas of their own.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable
from typing import Any

from pyspark.sql import SparkSession

from twofold_common.global_waits import LongWait
from twofold_common.table_names import quote_identifier, quote_literal
from twofold_spark.sinks import jdbc_tables
from twofold_spark.sinks.cuts import Cut, GlobalCut
from twofold_spark.sinks.jdbc_sink import JdbcSink
from twofold_spark.sinks.jdbc_tables import Names
from twofold_spark.sinks.mirror_database import MirrorDatabase
from twofold_spark.sinks.place import Place
from twofold_spark.sinks.sharding import NO_SHARDING, SHARED, Sharding

_CUTS = """
CREATE SCHEMA IF NOT EXISTS twofold;
CREATE TABLE IF NOT EXISTS twofold.cuts (
    number bigint, prefix text, joined boolean NOT NULL, sequence bigint NOT NULL, commit_offset bigint NOT NULL,
    applied_lsn bigint NOT NULL, committed_at timestamptz NOT NULL, published_at timestamptz NOT NULL,
    backfilling text[] NOT NULL, stopped text[] NOT NULL, committed_us bigint NOT NULL, stream_id text NOT NULL,
    stale text[] NOT NULL, skipped text[] NOT NULL, PRIMARY KEY (number, prefix))
"""
_WAITS = """
CREATE TABLE IF NOT EXISTS twofold.global_waits (
    global_id text NOT NULL, since timestamptz NOT NULL, branches jsonb NOT NULL, held jsonb NOT NULL);
DELETE FROM twofold.global_waits
"""
_MIRRORED = """
CREATE SCHEMA IF NOT EXISTS {schema};
CREATE TABLE IF NOT EXISTS {schema}.mirrored (
    name text PRIMARY KEY, prefix text NOT NULL, key text[] NOT NULL)
"""


_HAS_SHARD = "INSERT INTO {} VALUES ({}, {}, ARRAY[]::text[]) ON CONFLICT (name) DO NOTHING"
"""A member has rows in a sharded table."""


class JdbcPlace(Place):
    """The database, by one connection that the sinks share."""

    word = "database"

    def __init__(self, url: str, *, of_group: bool = False, sharding: Sharding = NO_SHARDING) -> None:
        super().__init__(of_group=of_group, sharding=sharding)
        self._database = MirrorDatabase(url)
        self._sinks: dict[str, JdbcSink] = {}
        self._listed: set[tuple[str, str]] = set()
        """Members and the sharded tables that have rows of theirs, as the database knows."""

    def open(self, spark: SparkSession, prefixes: tuple[str, ...]) -> None:
        for prefix in prefixes:
            self._names(prefix).check(prefix)
        self._database.open(spark)
        with self._database.transaction() as run:
            known, of_group = jdbc_tables.read_sources(run)
            if known:
                self.check_sources(known, prefixes, of_group=of_group)
            run(_CUTS)
            run(_WAITS if self.of_group else "DROP TABLE IF EXISTS twofold.global_waits")
            for prefix in (*prefixes, SHARED) if self.sharding.patterns else prefixes:
                run(_MIRRORED.format(schema=quote_identifier(self._names(prefix).schema("twofold"))))
            self.last = jdbc_tables.read_cut(run)
            self.sharding.check_unchanged(jdbc_tables.read_sharding(run), self.last)
            jdbc_tables.write_sharding(run, self.sharding)

    def make_sink(self, spark: SparkSession, prefix: str) -> JdbcSink:
        made = JdbcSink(spark, prefix, self, self._database, self._names(prefix))
        self._sinks[prefix] = made
        return made

    def publish(self, cut: GlobalCut) -> None:
        with self._database.transaction() as run:
            for sink in self._sinks.values():
                sink.merge_staged(run)
            shards = {(p, name) for p, part, _ in cut.parts for name in part.versions if self.sharding.covers(name)}
            for prefix, name in shards - self._listed:
                run(_HAS_SHARD.format(self._names(prefix).own("mirrored"), *map(quote_literal, (name, prefix))))
            rows = (_cut_row(cut.number, prefix, part, joined=joined) for prefix, part, joined in cut.parts)
            run(f"INSERT INTO twofold.cuts {' UNION ALL '.join(rows)}")
        self.last = cut
        self._listed |= shards
        for sink in self._sinks.values():
            sink.forget_staged()

    def forget(self, keep: dt.timedelta) -> None:
        ago = f"clock_timestamp() - interval '{keep.total_seconds()} s'"
        with self._database.transaction() as run:
            run(
                "DELETE FROM twofold.cuts WHERE number < "
                f"(SELECT coalesce(max(number), 0) FROM twofold.cuts WHERE published_at < {ago})"
            )

    def maintain(self, keep: dt.timedelta) -> None:
        """Do nothing: autovacuum has the tables."""

    def close(self) -> None:
        self._database.close()

    def replace_waits(self, waits: Iterable[LongWait]) -> None:
        with self._database.transaction() as run:
            run("DELETE FROM twofold.global_waits")
            for each in waits:
                branches = [place._asdict() for place in each.wait.places]
                held = [{"prefix": prefix, "commits": count} for prefix, count in each.held.items()]
                run(
                    f"INSERT INTO twofold.global_waits VALUES ({quote_literal(each.wait.global_id)}, "
                    f"clock_timestamp() - interval '{each.waited_s:.3f} s', {_as_json(branches)}, {_as_json(held)})"
                )

    def _names(self, prefix: str) -> Names:
        return Names(prefix if self.of_group else "")


def _cut_row(number: int, prefix: str, part: Cut, *, joined: bool) -> str:
    backfilling, stopped, stale, skipped = (
        f"ARRAY[{', '.join(map(quote_literal, names))}]::text[]"
        for names in (part.backfilling, part.stopped, part.stale, map(str, part.skipped))
    )
    return (
        f"SELECT {number}, {quote_literal(prefix)}, {joined}, {part.sequence}, {part.offset}, {part.applied_lsn}, "
        f"to_timestamp({part.committed_us} / 1e6), clock_timestamp(), {backfilling}, {stopped}, {part.committed_us}, "
        f"{quote_literal(part.stream_id)}, {stale}, {skipped}"
    )


def _as_json(value: Any) -> str:
    return f"{quote_literal(json.dumps(value))}::jsonb"
