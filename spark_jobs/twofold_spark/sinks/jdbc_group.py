"""A source group's mirror in PostgreSQL: schemas for each member, and the global cuts in `twofold`.

All tables of all members and the row of the global cut change in one transaction. So one snapshot
is at a global cut, whatever tables are read in it.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

from pyspark.sql import SparkSession

from twofold_common.global_waits import LongWait
from twofold_common.table_names import quote_literal
from twofold_spark.sinks.global_cuts import GlobalCut, check_members, describe_members, read_row
from twofold_spark.sinks.interface import Reader, Sink
from twofold_spark.sinks.jdbc_sink import JdbcSink
from twofold_spark.sinks.jdbc_tables import JdbcReader, Names, first_kept
from twofold_spark.sinks.mirror_database import MirrorDatabase, Run

_TABLES = """
CREATE SCHEMA IF NOT EXISTS twofold;
CREATE TABLE IF NOT EXISTS twofold.global_cuts (
    number bigint PRIMARY KEY, published_at timestamptz NOT NULL, members jsonb NOT NULL);
CREATE TABLE IF NOT EXISTS twofold.global_waits (
    global_id text NOT NULL, since timestamptz NOT NULL, branches jsonb NOT NULL, held jsonb NOT NULL);
CREATE TABLE IF NOT EXISTS twofold.group_members (prefix text PRIMARY KEY)
"""


class JdbcGlobalCuts:
    """The global cuts in a database, whose connection the members' sinks share."""

    in_one_transaction = True

    def __init__(self, spark: SparkSession, database: MirrorDatabase) -> None:
        self._spark = spark
        self._database = database

    def open(self, prefixes: tuple[str, ...]) -> GlobalCut | None:
        self._database.open(self._spark)
        with self._database.transaction() as run:
            run(_TABLES)
            last = _read_outermost(run, "DESC")
            named = json.loads(run("SELECT coalesce(json_agg(prefix), '[]') FROM twofold.group_members") or "[]")
            check_members([*last.members] if last is not None else named, prefixes, "database")
            run("DELETE FROM twofold.group_members; DELETE FROM twofold.global_waits")
            run(f"INSERT INTO twofold.group_members VALUES {', '.join(f'({quote_literal(p)})' for p in prefixes)}")
        return last

    def together(self) -> AbstractContextManager[None]:
        return self._database.together()

    def publish(self, cut: GlobalCut) -> None:
        row = f"{cut.number}, clock_timestamp(), {_as_json(describe_members(cut))}"

        def apply(run: Run) -> None:
            run(f"INSERT INTO twofold.global_cuts VALUES ({row})")

        self._database.change(apply)

    def forget(self, keep: dt.timedelta) -> GlobalCut | None:
        kept = first_kept("twofold.global_cuts", "number", keep)
        with self._database.transaction() as run:
            run(f"DELETE FROM twofold.global_cuts WHERE number < {kept}")
            return _read_outermost(run, "ASC")

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


class JdbcGroup:
    """Makes the sinks of a group, which share one connection, and what reads them."""

    def __init__(self, url: str) -> None:
        self._database = MirrorDatabase(url)

    def make_sink(self, spark: SparkSession, prefix: str) -> Sink:
        return JdbcSink(spark, prefix, self._database, Names(prefix))

    def make_cuts(self, spark: SparkSession) -> JdbcGlobalCuts:
        return JdbcGlobalCuts(spark, self._database)

    def make_reader(self, spark: SparkSession, prefix: str) -> Reader:
        return JdbcReader(spark, self._database.url, prefix)


def _read_outermost(run: Run, order: str) -> GlobalCut | None:
    found = run(f"SELECT row_to_json(c) FROM twofold.global_cuts c ORDER BY number {order} LIMIT 1")
    return read_row(json.loads(found)) if found is not None else None


def _as_json(value: Any) -> str:
    return f"{quote_literal(json.dumps(value))}::jsonb"
