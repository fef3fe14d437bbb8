"""The source database, read only, over JDBC: for `verify`.

One connection of the driver; every statement is one round trip whose answer is one JSON text, so that a million rows or
a thousand buckets cost the same number of calls into the JVM.
"""

from __future__ import annotations

import json
import shlex
import urllib.parse
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from twofold_spark.errors import BadUsage, MissingGround

_SETTINGS = (
    "SET DateStyle = ISO",
    "SET TimeZone = 'UTC'",
    "SET IntervalStyle = postgres",
    "SET bytea_output = hex",
    "SET extra_float_digits = 1",
    "SET default_transaction_read_only = on",
)

_PASSED = {
    **{name: name for name in ("user", "password", "options", "ssl")},
    **{name: name for name in ("sslmode", "sslrootcert", "sslcert", "sslkey", "sslpassword")},
    "sslnegotiation": "sslNegotiation",
    "channel_binding": "channelBinding",
    "gssencmode": "gssEncMode",
    "application_name": "ApplicationName",
    "connect_timeout": "connectTimeout",
}
"""What is not host, port and database: libpq's names, and the JDBC driver's for the same."""


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """A column of a source table; `type` is the base type's name, below domains, `_int4` for an array."""

    name: str
    type: str


def jdbc_url(text: str) -> str:
    """A JDBC URL from what people have: a JDBC URL, `postgresql://...`, or libpq's `host=... dbname=...`."""
    if text.startswith("jdbc:postgresql:"):
        return text
    try:
        is_url = text.startswith(("postgresql://", "postgres://"))
        given = _parts(text) if is_url else dict(pair.split("=", 1) for pair in shlex.split(text))
    except ValueError as error:
        raise BadUsage(f"the database is neither a URL of one host nor libpq's name=value pairs: {error}") from error
    host = given.pop("host", "127.0.0.1")
    if host.startswith("/"):
        raise BadUsage("JDBC speaks TCP: give the database as host and port, not as a socket's folder")
    host = f"[{host}]" if ":" in host else host
    address = f"{host}:{given.pop('port', '5432')}/{urllib.parse.quote(given.pop('dbname', 'postgres'), safe='')}"
    if unknown := sorted(given.keys() - _PASSED.keys()):
        raise BadUsage(
            f"{', '.join(unknown)}: not known by PostgreSQL's JDBC driver under this name, and it must not be passed over: "
            "leave it out, or give a URL of the driver's own (jdbc:postgresql://host:port/database?...)"
        )
    return f"jdbc:postgresql://{address}?{urllib.parse.urlencode({_PASSED[k]: v for k, v in given.items() if v})}"


def _parts(url: str) -> dict[str, str]:
    """A URL by libpq's names; what is behind `?` is more of the same, and wins."""
    parts = urllib.parse.urlsplit(url)
    given = {
        "host": parts.hostname or "127.0.0.1",
        "port": str(parts.port or 5432),
        "dbname": urllib.parse.unquote(parts.path.lstrip("/")),
        "user": urllib.parse.unquote(parts.username or ""),
        "password": urllib.parse.unquote(parts.password or ""),
    }
    return given | dict(urllib.parse.parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))


class Source:
    """A connection; `close()` it."""

    def __init__(self, spark: SparkSession, url: str) -> None:
        assert spark._jvm is not None
        try:
            spark._jvm.java.lang.Class.forName("org.postgresql.Driver")
            self._connection: Any = spark._jvm.java.sql.DriverManager.getConnection(url)
        except Py4JJavaError as error:
            raise MissingGround(f"the source does not answer: {error.java_exception.getMessage()}") from error
        for setting in _SETTINGS:
            self._statement(setting)

    def close(self) -> None:
        self._connection.close()

    def rows(self, query: str) -> list[list[Any]]:
        """The query's rows as lists of JSON values."""
        text = self._one(f"SELECT coalesce(json_agg(row_to_json(q)), '[]')::text FROM ({query}) q")
        return [list(row.values()) for row in json.loads(text)]

    def value(self, query: str) -> str:
        return self._one(query)

    def columns(self, schema: str, table: str) -> list[SourceColumn]:
        """The table's columns as they are now; empty if there is no such table."""
        found = self.rows(
            "WITH RECURSIVE base(attnum, name, oid) AS ("
            "SELECT attnum, attname, atttypid FROM pg_attribute WHERE attrelid = to_regclass("
            f"{literal(identifier(schema) + '.' + identifier(table))}) AND attnum > 0 AND NOT attisdropped "
            "UNION ALL SELECT attnum, b.name, typbasetype FROM base b JOIN pg_type t ON t.oid = b.oid WHERE typtype = 'd') "
            "SELECT b.name, typname FROM base b JOIN pg_type t ON t.oid = b.oid "
            "WHERE typtype <> 'd' ORDER BY attnum"
        )
        return [SourceColumn(name, kind) for name, kind in found]

    def _one(self, query: str) -> str:
        statement = self._connection.createStatement()
        try:
            result = statement.executeQuery(query)
            result.next()
            return str(result.getString(1))
        except Py4JJavaError as error:
            raise MissingGround(f"the source refuses a query of verify: {error.java_exception.getMessage()}") from error
        finally:
            statement.close()

    def _statement(self, text: str) -> None:
        statement = self._connection.createStatement()
        try:
            statement.execute(text)
        finally:
            statement.close()


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
