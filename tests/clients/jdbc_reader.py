"""Debezium's JDBC sink as a reader of topics: the tables that it writes in another database."""

from __future__ import annotations

import itertools
import threading
import time
import urllib.error
from collections.abc import Sequence
from typing import Final

import psycopg
from bench.connect import ConnectWorker
from psycopg import sql

from clients.jdbc_sink import AS_LITERALS, settings
from clients.rows import CannotReadError, Rows
from clients.samples import Sample
from clients.tables import LAST_ID, Table

LITERALS: Final = "`stringtype=unspecified`"
TRUNCATES: Final = "`truncate.enabled = true`"
_WITHIN_S = 240
_number = itertools.count(1)


class JdbcSink:
    """Tables that are there before it, with the source's types."""

    name = "Debezium's JDBC sink, your tables"
    at_once = 6
    """A connector waits most of its time: for its group, for its next look at the topic."""
    _made_before = True

    def ways(self, table: Table) -> tuple[str, ...]:
        return ("", LITERALS) if table.name == "every" else ("", TRUNCATES)

    def __init__(self, worker: ConnectWorker, target: str, registry: str, prefix: str) -> None:
        self._worker, self._target, self._registry, self._prefix = worker, target, registry, prefix
        self._making = threading.Lock()

    def read(self, way: str, table: Table, samples: Sequence[Sample]) -> Rows:
        """The rows once the last one is there."""
        name = f"{self._prefix}_{next(_number)}"
        topic = f"{self._prefix}.public.{table.table}"
        if self._made_before:
            key = "" if table.keyless else " PRIMARY KEY"
            columns = "".join(f", {sample.column} {sample.type}" for sample in samples)
            self._execute(f"CREATE TABLE {name} (id int{key}, n int{columns})")
        config = settings([topic], self._registry, self._target, AS_LITERALS if way == LITERALS else "")
        config |= {"collection.name.format": name, "truncate.enabled": str(way == TRUNCATES).lower()}
        config["field.include.list"] = ",".join(
            f"{topic}:{column}" for column in ("id", "n", *(sample.column for sample in samples))
        )
        config |= {f"connection.pool.{size}": "1" for size in ("min_size", "acquire_increment")}
        with self._making:
            self._make(name, config)
        try:
            self._wait(name)
            return self._rows(name, samples)
        finally:
            self._worker.remove(name)

    def _make(self, name: str, config: dict[str, str]) -> None:
        """A worker that is about to share out its tasks takes nothing; it answers 409 then."""
        deadline = time.monotonic() + _WITHIN_S
        while True:
            try:
                return self._worker.make(name, config)
            except urllib.error.HTTPError as error:
                if error.code != 409 or time.monotonic() > deadline:
                    raise
                time.sleep(0.5)

    def _wait(self, name: str) -> None:
        """The last change of each table is a row of its own."""
        deadline = time.monotonic() + _WITHIN_S
        there = sql.SQL("SELECT FROM {} WHERE id = %s").format(sql.Identifier(name))
        while not self._has(there):
            if (why := self._worker.failure(name)) is not None:
                raise CannotReadError(cause(why))
            if time.monotonic() > deadline:
                raise CannotReadError(f"not at the end of the topic within {_WITHIN_S} s")
            time.sleep(0.1)

    def _has(self, query: sql.Composed) -> bool:
        try:
            with psycopg.connect(self._target) as connection:
                return bool(connection.execute(query, [LAST_ID]).fetchall())
        except psycopg.errors.UndefinedTable:
            return False

    def _rows(self, name: str, samples: Sequence[Sample]) -> Rows:
        columns = sql.SQL(", ").join(sql.SQL("{}::text").format(sql.Identifier(sample.column)) for sample in samples)
        chosen = sql.SQL("SELECT id, n, {} FROM {}").format(columns, sql.Identifier(name))
        if not samples:
            chosen = sql.SQL("SELECT id, n FROM {}").format(sql.Identifier(name))
        with psycopg.connect(self._target) as connection:
            found = connection.execute(chosen).fetchall()
        names = ["n", *(sample.column for sample in samples)]
        return {key: dict(zip(names, values, strict=True)) for key, *values in found}

    def _execute(self, statement: str) -> None:
        with psycopg.connect(self._target, autocommit=True) as connection:
            connection.execute(sql.SQL(statement))


class JdbcSinkMakesTables(JdbcSink):
    """Tables that it makes itself."""

    name = "Debezium's JDBC sink, its tables"
    _made_before = False

    def ways(self, table: Table) -> tuple[str, ...]:
        return ("",) if table.name == "every" else ("", TRUNCATES)


def cause(trace: str) -> str:
    """The innermost cause in a connector's trace."""
    causes = [line for line in trace.splitlines() if line.startswith("Caused by: ") and line.count(": ") > 1]
    last = (causes or trace.splitlines())[-1]
    return last.removeprefix("Caused by: ").partition(": ")[2][:200] or last[:200]
