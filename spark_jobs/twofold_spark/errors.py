"""Errors that the jobs raise on purpose: those they share with the connector, and their own.

TwofoldError
  UsageError       exit 2   the command line is wrong: correct it
  SetupError       exit 3   something is missing: the message has the remedy
    ServerAway              a server does not answer, or not any more: the job may begin again
  Refused          exit 5   continuing could lose or repeat data: the message has the repair
    TableRefused            the same for one table; others may continue (--on-table-error)
"""

from __future__ import annotations

import re
from contextlib import suppress

from py4j.java_gateway import is_instance_of
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException

from twofold_common.errors import Refused, SetupError, TwofoldError, UsageError

__all__ = ["Refused", "ServerAway", "SetupError", "TableRefused", "TwofoldError", "UsageError"]

SPARK_ERRORS = (PySparkException, Py4JJavaError)
"""What Spark raises: PySpark's own errors, and Java's exceptions as py4j hands them over."""
_NOT_AUTHORIZED = re.compile(r"TopicAuthorizationException: Not authorized to access topics: \[(.*)\]")
"""What Kafka's client says; it does not say which right is missing."""
_CONFLICT = re.compile(
    r"\bio\.delta\.exceptions\.\w+"
    r"|\borg\.apache\.iceberg\.exceptions\.(?:CommitFailedException|ValidationException: (?:Found|Cannot commit|Missing) .*)"
)
"""What Delta and Iceberg raise where another commit came first."""
_AWAY = re.compile(
    r"[\w.]*(?:Connect|Socket|SocketTimeout|UnknownHost|NoRouteToHost)Exception[^\n]*"
    r"|\bjava\.util\.concurrent\.TimeoutException: Cannot fetch record[^\n]*"
    r"|\borg\.apache\.kafka\.common\.errors\.(?:Timeout|Disconnect|Network|BrokerNotAvailable|CoordinatorNotAvailable"
    r"|LeaderNotAvailable|NotLeaderOrFollower)Exception[^\n]*"
    r"|\borg\.postgresql\.util\.PSQLException: (?:FATAL: the database system is|Connection to)[^\n]*"
    r"|(?:\S*PSQLException: )?(?:FATAL: )?(?:terminating connection|An I/O error occurred|This connection has been closed"
    r"|The connection attempt failed)[^\n]*"
    r"|\borg\.apache\.hc\.\S*(?:NoHttpResponse|ConnectionClosed)Exception[^\n]*"
    r"|\bUnable to execute HTTP request[^\n]*|\borg\.apache\.iceberg\.exceptions\.ServiceUnavailableException[^\n]*"
    r"|\bSQLSTATE (?:0800[01367]|08S01|25006|53300|57P0[1235])\b"
)
"""What Java's clients raise where a server ended, starts, does not answer, only reads as a standby
does, or has no connection left; other libraries have exceptions of the same names.
"""


_NOT_OFFERED = re.compile(r"Server does not support endpoint: ([^\n]*)")
"""What Iceberg's client raises where a REST catalog says that it does not offer a request."""


class ServerAway(SetupError):
    """A server does not answer, or not any more; nothing is lost."""


class TableRefused(Refused):
    """Continuing could lose or repeat data of one table."""

    prefix = table = ""
    """The table (`schema.name`) and its source, where only a step of all tables found it."""


def first_line(error: Exception) -> str:
    """Format an error of Spark in one line: the message without the JVM's stack."""
    text = error.java_exception.toString() if isinstance(error, Py4JJavaError) else error
    return str(text).strip().partition("\n")[0]


def describe_causes(error: Exception) -> str:
    """Return the text of an error of Spark with all its causes, as the JVM writes its stack.

    The last line is the SQLSTATE, if a database was the cause: a server's words are in the server's
    language, and those of the driver in Java's.
    """
    stack = None if isinstance(error, Py4JJavaError) else getattr(error, "_stackTrace", None)
    text = f"{error}\n{stack}" if stack else str(error)  # the message may leave the JVM's stack out
    sqlstate = _find_sqlstate(error)
    return f"{text}\nSQLSTATE {sqlstate}" if sqlstate else text


def _find_sqlstate(error: Exception) -> str:
    cause = error.java_exception if isinstance(error, Py4JJavaError) else getattr(error, "_origin", None)
    with suppress(Py4JError):  # the JVM is gone
        while cause is not None:
            if is_instance_of(SparkContext._gateway, cause, "java.sql.SQLException"):
                return str(cause.getSQLState() or "")
            cause = cause.getCause()
    return ""


def explain(error: Exception, bootstrap: str) -> TwofoldError | None:
    """Make the error that says what an error of Spark means; None if nobody knows.

    A full disk comes first: what else breaks with it is no reason to begin again.
    """
    causes = describe_causes(error)
    return (
        explain_full_disk(causes)
        or explain_missing_right(causes, bootstrap)
        or explain_conflict(causes)
        or explain_standstill(causes)
        or explain_reading_catalog(causes)
        or explain_away(causes)
    )


def explain_full_disk(causes: str) -> SetupError | None:
    if not any(name in causes for name in ("No space left on device", "Disk quota exceeded")):
        return None
    return SetupError(
        "a disk is full, and what is published stays as it is: make room where the warehouse, the checkpoint and Spark's "
        "temporary files are (TMPDIR, or spark.local.dir), then start again"
    )


def explain_away(causes: str) -> ServerAway | None:
    found = _AWAY.search(causes)
    return ServerAway(f"a server is away ({found[0].strip()}); nothing is lost") if found else None


def explain_reading_catalog(causes: str) -> SetupError | None:
    if (found := _NOT_OFFERED.search(causes)) is None:
        return None
    return SetupError(
        f"the catalog does not offer what the job needs ({found[1].strip()}), and nothing was published: give another "
        "--catalog-uri. Unity Catalog's open server is such a catalog: it only lets Iceberg's clients read"
    )


def explain_conflict(causes: str) -> Refused | None:
    if (found := _CONFLICT.search(causes)) is None:
        return None
    return Refused(
        f"another job wrote into the mirror's tables while this one did ({found[0]})",
        at_stake="nothing: the commit of this job was rejected",
        repair="end the other job, then start again",
    )


def explain_standstill(causes: str) -> SetupError | None:
    """Make the error of a process that stood still, if the causes of an error of Spark name it:
    Java waits 15 s for Python to take a result.
    """
    if "CANNOT_OPEN_SOCKET" not in causes:
        return None
    return SetupError(
        "Spark's Java and Python lost each other: this process or its machine stood still for more than 15 s, or is much "
        "too busy; nothing is lost: start again"
    )


def explain_missing_right(causes: str, bootstrap: str) -> SetupError | None:
    found = _NOT_AUTHORIZED.search(causes)
    if found is None:
        return None
    return SetupError(
        f"Kafka does not let this user read {found[1]}: grant Read: "
        + grant_command(bootstrap, "--operation Read --topic PREFIX. --resource-pattern-type prefixed")
    )


def grant_command(bootstrap: str, right: str) -> str:
    return f"kafka-acls --bootstrap-server {bootstrap} --add --allow-principal User:NAME {right}"
