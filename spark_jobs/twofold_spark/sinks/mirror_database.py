"""Transactions, reads and writes in the PostgreSQL database that keeps a mirror."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from twofold_spark.errors import SetupError
from twofold_spark.sources.postgres_connection import DRIVER, open_connection

Run = Callable[[str], str | None]
"""Runs a statement and returns the first value of its first row."""


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


@contextmanager
def _driver_errors() -> Iterator[None]:
    """Raise the driver's message without its stack."""
    try:
        yield
    except Py4JJavaError as error:
        raise SetupError(f"the mirror's database rejects a statement: {error.java_exception.getMessage()}") from error
