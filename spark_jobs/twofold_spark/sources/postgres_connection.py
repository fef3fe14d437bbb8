"""A PostgreSQL database over JDBC: its URL, its connection, and how names are quoted.

The JVM's driver connects, because a cluster's driver and executors have it anyway.
"""

from __future__ import annotations

import re
import shlex
import urllib.parse
from collections.abc import Mapping
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from twofold_spark.errors import ServerAway, SetupError, UsageError, describe_causes, explain_away

DRIVER = "org.postgresql.Driver"
_PASSED_ON = {
    **{name: name for name in ("user", "password", "options", "ssl")},
    **{name: name for name in ("sslmode", "sslrootcert", "sslcert", "sslkey", "sslpassword")},
    "sslnegotiation": "sslNegotiation",
    "channel_binding": "channelBinding",
    "gssencmode": "gssEncMode",
    "application_name": "ApplicationName",
    "connect_timeout": "connectTimeout",
}
"""Settings beside host, port and database: libpq's names, and the JDBC driver's names for them."""
_NAME = re.compile(r"\w+", re.ASCII)


def build_jdbc_url(text: str) -> str:
    """Build a JDBC URL from one, from `postgresql://...`, or from libpq's `host=... dbname=...`.

    An error quotes nothing of the text but names of settings: any other place may be the password.
    """
    if text.startswith("jdbc:postgresql:"):
        _refuse_empty_secrets(dict(urllib.parse.parse_qsl(text.partition("?")[2], keep_blank_values=True)))
        return text
    try:
        is_url = text.startswith(("postgresql://", "postgres://"))
        given = _parse_url(text) if is_url else dict(pair.split("=", 1) for pair in shlex.split(text))
        if not all(map(_NAME.fullmatch, given)):
            raise ValueError
    except ValueError:
        raise UsageError(
            "the database must be a URL of one host, or libpq's name=value pairs, and it is neither: "
            "percent-encode special characters of a URL, and put a value with spaces in single quotes"
        ) from None
    _refuse_empty_secrets(given)
    host = given.pop("host", "127.0.0.1")
    if host.startswith("/"):
        raise UsageError("JDBC connects over TCP only: give the database's host and port instead of a socket folder")
    host = f"[{host}]" if ":" in host else host
    address = f"{host}:{given.pop('port', '5432')}/{urllib.parse.quote(given.pop('dbname', 'postgres'), safe='')}"
    if unknown := sorted(given.keys() - _PASSED_ON.keys()):
        raise UsageError(
            f"PostgreSQL's JDBC driver does not know {', '.join(unknown)} by that name. "
            "Leave it out, or give a URL of the driver's own (jdbc:postgresql://host:port/database?...)"
        )
    return f"jdbc:postgresql://{address}?{urllib.parse.urlencode({_PASSED_ON[k]: v for k, v in given.items() if v})}"


def _refuse_empty_secrets(given: Mapping[str, str]) -> None:
    if any(given.get(name) == "" for name in ("password", "sslpassword")):
        raise UsageError("the database's password is empty: give one, or leave it out")


def _parse_url(url: str) -> dict[str, str]:
    """Split a URL into libpq's settings; those behind `?` win."""
    parts = urllib.parse.urlsplit(url)
    given = {
        "host": parts.hostname or "127.0.0.1",
        "port": str(parts.port or 5432),
        "dbname": urllib.parse.unquote(parts.path.lstrip("/")),
        "user": urllib.parse.unquote(parts.username or ""),
    }
    if parts.password is not None:
        given["password"] = urllib.parse.unquote(parts.password)
    return given | dict(urllib.parse.parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))


def run_statement(connection: Any, text: str) -> str | None:
    """Run a statement; return the first value of its first row."""
    statement = connection.createStatement()
    try:
        if not statement.execute(text):
            return None
        result = statement.getResultSet()
        return str(value) if result.next() and (value := result.getString(1)) is not None else None
    finally:
        statement.close()


def open_connection(spark: SparkSession, url: str, *, role: str, option: str) -> Any:
    """Open a connection of the JVM's driver; the caller closes it.

    The error names the database by its role, and the option that has its address.
    """
    assert spark._jvm is not None
    try:
        spark._jvm.java.lang.Class.forName(DRIVER)
        return spark._jvm.java.sql.DriverManager.getConnection(url)
    except Py4JJavaError as error:
        said = error.java_exception.getMessage()
        if url in said:  # it may hold the password
            said = "the driver cannot use its address"
        verb = "refuses the connection" if "FATAL" in said else "does not answer"
        kind = ServerAway if explain_away(describe_causes(error)) else SetupError
        raise kind(f"{role} {verb} ({said}): check {option}") from None
