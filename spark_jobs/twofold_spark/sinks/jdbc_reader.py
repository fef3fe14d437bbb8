"""`JdbcReader`: the last cut of a mirror in PostgreSQL and its tables, in one snapshot."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyspark.sql import DataFrame, SparkSession

from twofold_common.table_names import quote_literal
from twofold_spark.errors import UsageError
from twofold_spark.sinks.cuts import NO_LIMIT, CutLimit, GlobalCut
from twofold_spark.sinks.interface import MirrorTable
from twofold_spark.sinks.jdbc_tables import (
    NOW,
    Names,
    Run,
    check_time_zone,
    connect,
    driver_errors,
    own_transaction,
    read_cut,
    read_frame,
    read_key,
    read_sharding,
    read_sources,
)
from twofold_spark.sinks.sharding import Sharding
from twofold_spark.sources.postgres_connection import run_statement

_ONE_SNAPSHOT = "ISOLATION LEVEL REPEATABLE READ READ ONLY"


class PinnedSnapshot:
    """A transaction that stays open, so that connections of Spark's tasks can see what it sees.

    Its tables are locked before it sees anything: a table whose column was widened is empty for an
    older snapshot.
    """

    def __init__(self, spark: SparkSession, url: str) -> None:
        with own_transaction(spark, url) as run:
            tables = _list_readable(run)
        self._connection = connect(spark, url)
        self._is_open = True
        self._locked = {*tables}
        try:
            with driver_errors():
                self._connection.setAutoCommit(False)
            self.run(f"SET TRANSACTION {_ONE_SNAPSHOT}")
            if tables:
                self.run(f"LOCK TABLE {', '.join(tables)} IN ACCESS SHARE MODE")
            name = self.run("SELECT pg_export_snapshot()")
        except BaseException:
            self.close()
            raise
        join = f"SET TRANSACTION {_ONE_SNAPSHOT}; SET TRANSACTION SNAPSHOT '{name}'"
        # Without a fetch size Spark reads outside of a transaction.
        self.options = {"sessionInitStatement": join, "fetchsize": "10000"}

    def run(self, statement: str) -> str | None:
        if not self._is_open:
            raise UsageError(
                "this cut is closed, and with it the snapshot that its tables are read in: call read_cut again"
            )
        with driver_errors():
            return run_statement(self._connection, statement)

    def has_locked_all(self) -> bool:
        return {*_list_readable(self.run)} <= self._locked

    def close(self) -> None:
        self._is_open = False
        with suppress(Py4JJavaError, Py4JNetworkError):  # the server, or the JVM, has ended it
            self._connection.close()


def _list_readable(run: Run) -> list[str]:
    """List the mirror's tables that the user may read, quoted."""
    prefixes, of_group = read_sources(run)
    tables = []
    for names in map(Names, ("", *(prefixes if of_group else ()))):
        if run(f"SELECT to_regclass({quote_literal(names.own('mirrored'))})::text") is not None:
            known = json.loads(run(f"SELECT coalesce(json_agg(name), '[]') FROM {names.own('mirrored')}") or "[]")
            tables += [names.table(MirrorTable.by_name(name)) for name in known]
    listed = ", ".join(map(quote_literal, tables))
    readable = (
        f"SELECT json_agg(t) FROM unnest(ARRAY[{listed}]::text[]) t WHERE has_table_privilege(to_regclass(t), 'SELECT')"
    )
    return json.loads(run(readable) or "[]")  # type: ignore[no-any-return]


class JdbcReader:
    """The last cut and its tables.

    There are no older versions. What belongs together is read in one snapshot: see `pin`.
    """

    def __init__(self, spark: SparkSession, url: str) -> None:
        check_time_zone(spark)
        self._spark = spark
        self._url = url
        self._snapshot: PinnedSnapshot | None = None

    @property
    def is_lasting(self) -> bool:
        return self._snapshot is not None

    @contextmanager
    def pin(self) -> Iterator[JdbcReader]:
        has_locked_all = False
        while not has_locked_all:  # a table was made since they were listed
            with closing(PinnedSnapshot(self._spark, self._url)) as snapshot:
                if has_locked_all := snapshot.has_locked_all():
                    pinned = JdbcReader(self._spark, self._url)
                    pinned._snapshot = snapshot
                    yield pinned

    @contextmanager
    def _transaction(self) -> Iterator[Run]:
        if self._snapshot is not None:
            yield self._snapshot.run
        else:
            with own_transaction(self._spark, self._url) as run:
                yield run

    def find_cut(self, limit: CutLimit = NO_LIMIT, *, first: bool = False) -> GlobalCut | None:  # noqa: ARG002  (there is one)
        with self._transaction() as run:
            cut = read_cut(run) if read_sources(run)[0] else None
        if cut is None or not cut.members:
            return None
        parts = cut.members.values()
        return cut if all(limit.admits(each.sequence, each.applied_lsn, each.committed_us) for each in parts) else None

    def is_of_group(self) -> bool:
        with self._transaction() as run:
            return read_sources(run)[1]

    def read_sharding(self) -> Sharding:
        with self._transaction() as run:
            return read_sharding(run)

    def read_table(self, prefix: str, name: str, version: str) -> DataFrame:
        assert version == NOW
        options = self._snapshot.options if self._snapshot is not None else {}
        return read_frame(self._spark, self._url, self._names(prefix).table(MirrorTable.by_name(name)), **options)

    def read_key(self, prefix: str, name: str) -> tuple[str, ...]:
        names = self._names(prefix)
        with self._transaction() as run:
            return read_key(run, names, name) or ()

    def _names(self, prefix: str) -> Names:
        return Names(prefix if self.is_of_group() else "")
