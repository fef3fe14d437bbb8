"""Transactions, reads and writes in the PostgreSQL database that keeps a mirror.

There is one writer: the job holds a lock of the database, on the connection that publishes. The
lock ends with the connection.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from twofold_spark.errors import Refused, SetupError, describe_causes
from twofold_spark.sources.postgres_connection import DRIVER, open_connection

Run = Callable[[str], str | None]
"""Runs a statement and returns the first value of its first row."""
_WRITER_LOCK, _LOCK_PATIENCE_S = 0x74776F66, 10


class MirrorDatabase:
    """The connection that publishes; the sinks of a group's members share it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._connection: Any = None
        self._lock = threading.Lock()
        """Members are merged side by side, and share the connection."""

    def open(self, spark: SparkSession) -> None:
        """Connect, and keep other jobs out; once."""
        if self._connection is None:
            self._connection = connect(spark, self.url)
            with self.transaction() as run:
                _take_writer_lock(run)

    @contextmanager
    def transaction(self) -> Iterator[Run]:
        """Open a transaction on the connection that holds the lock; tables use others."""
        with self._lock, transaction(self._connection) as run:
            yield run

    def close(self) -> None:
        """Give up the connection and its lock."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def configure_jdbc(reader_or_writer: Any, url: str, table: str) -> Any:
    """Point a DataFrame's reader or writer to a table."""
    options = {"url": url, "driver": DRIVER, "batchsize": "5000", "reWriteBatchedInserts": "true"}
    return reader_or_writer.format("jdbc").options(**options).option("dbtable", table)


def connect(spark: SparkSession, url: str) -> Any:
    """Open a connection; the caller closes it."""
    return open_connection(spark, url, role="the mirror's database", option="the address in --sink")


@contextmanager
def own_transaction(spark: SparkSession, url: str) -> Iterator[Run]:
    """Run statements in a transaction on a connection of its own."""
    connection = connect(spark, url)
    try:
        with transaction(connection) as run:
            yield run
    finally:
        connection.close()


@contextmanager
def transaction(connection: Any) -> Iterator[Run]:
    """Run statements that take effect together or not at all."""

    def run(statement: str) -> str | None:
        with _driver_errors():
            prepared = connection.createStatement()
            try:
                if not prepared.execute(statement):
                    return None
                result = prepared.getResultSet()
                return str(value) if result.next() and (value := result.getString(1)) is not None else None
            finally:
                prepared.close()

    try:
        with _driver_errors():
            connection.setAutoCommit(False)
        yield run
        with _driver_errors():
            connection.commit()
    except BaseException:
        with suppress(Py4JJavaError):  # if the connection is lost, the server rolls back by itself
            connection.rollback()
        raise


class StatementRejected(SetupError):
    """The database rejects a statement; `causes` is the driver's error with its causes."""

    def __init__(self, message: str, causes: str) -> None:
        super().__init__(message)
        self.causes = causes


@contextmanager
def _driver_errors() -> Iterator[None]:
    """Raise the driver's message without its stack."""
    try:
        yield
    except Py4JJavaError as error:
        message = f"the mirror's database rejects a statement: {error.java_exception.getMessage()}"
        raise StatementRejected(message, describe_causes(error)) from error


def _take_writer_lock(run: Run) -> None:
    """Take the lock, and wait for it: a job that was killed a moment ago may still hold it."""
    deadline = time.monotonic() + _LOCK_PATIENCE_S
    while run(f"SELECT pg_try_advisory_lock({_WRITER_LOCK})") != "t":
        if time.monotonic() > deadline:
            raise Refused(
                "another job writes into this database",
                at_stake="nothing yet: this job has written nothing",
                repair="end the other job",
            )
        time.sleep(0.2)
