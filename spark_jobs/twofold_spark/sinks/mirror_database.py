"""A PostgreSQL that is written to, through the JVM's driver: what a cluster's driver and executors have anyway."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from twofold_spark.errors import MissingGround


def jdbc(way: Any, url: str, name: str) -> Any:
    """A DataFrame's reader or writer, turned to a table."""
    options = {"url": url, "driver": "org.postgresql.Driver", "batchsize": "5000", "reWriteBatchedInserts": "true"}
    return way.format("jdbc").options(**options).option("dbtable", name)


Run = Callable[[str], str | None]
"""Runs a statement and gives the first value of its first row."""


def connect(spark: SparkSession, url: str) -> Any:
    """A connection of the JVM's driver; `close()` it."""
    assert spark._jvm is not None
    try:
        spark._jvm.java.lang.Class.forName("org.postgresql.Driver")
        return spark._jvm.java.sql.DriverManager.getConnection(url)
    except Py4JJavaError as error:
        raise MissingGround(f"the mirror's database does not answer: {error.java_exception.getMessage()}") from error


@contextmanager
def alone(spark: SparkSession, url: str) -> Iterator[Run]:
    """A transaction on a connection of its own."""
    connection = connect(spark, url)
    try:
        with transaction(connection) as run:
            yield run
    finally:
        connection.close()


@contextmanager
def transaction(connection: Any) -> Iterator[Run]:
    """All that is run in it is done, or nothing."""

    def run(statement: str) -> str | None:
        with _told():
            prepared = connection.createStatement()
            try:
                if not prepared.execute(statement):
                    return None
                result = prepared.getResultSet()
                return str(value) if result.next() and (value := result.getString(1)) is not None else None
            finally:
                prepared.close()

    try:
        with _told():
            connection.setAutoCommit(False)
        yield run
        with _told():
            connection.commit()
    except BaseException:
        with suppress(Py4JJavaError):  # of a connection that is gone the server does it by itself
            connection.rollback()
        raise


@contextmanager
def _told() -> Iterator[None]:
    """The driver's own words, without its stack."""
    try:
        yield
    except Py4JJavaError as error:
        raise MissingGround(f"the mirror's database refuses: {error.java_exception.getMessage()}") from error
