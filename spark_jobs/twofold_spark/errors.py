"""Errors that the jobs raise on purpose: those they share with the connector, and their own.

TwofoldError
  UsageError       exit 2   the command line is wrong: correct it
  SetupError       exit 3   something is missing: the message has the remedy
  Refused          exit 5   continuing could lose or repeat data: the message has the repair
    TableRefused            the same for one table; others may continue (--on-table-error)
"""

from __future__ import annotations

import re

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from twofold_common.errors import Refused, SetupError, TwofoldError, UsageError

__all__ = [
    "SPARK_ERRORS",
    "Refused",
    "SetupError",
    "TableRefused",
    "TwofoldError",
    "UsageError",
    "describe_causes",
    "explain_conflict",
    "explain_full_disk",
    "explain_missing_right",
    "explain_standstill",
    "first_line",
    "grant_command",
]

SPARK_ERRORS = (PySparkException, Py4JJavaError)
"""What Spark raises: PySpark's own errors, and Java's exceptions as py4j hands them over."""


_NOT_AUTHORIZED = re.compile(r"TopicAuthorizationException: Not authorized to access topics: \[(.*)\]")
"""What Kafka's client says; it does not say which right is missing."""
_CONFLICT = re.compile(
    r"\bio\.delta\.exceptions\.\w+"
    r"|\borg\.apache\.iceberg\.exceptions\.(?:CommitFailedException|ValidationException: (?:Found|Cannot commit|Missing) .*)"
)
"""What Delta and Iceberg raise where another commit came first."""


class TableRefused(Refused):
    """Continuing could lose or repeat data of one table."""

    prefix = table = ""
    """The table (`schema.name`) and its source, where only a step of all tables found it."""


def first_line(error: Exception) -> str:
    """Format an error of Spark in one line: the message without the JVM's stack."""
    text = error.java_exception.toString() if isinstance(error, Py4JJavaError) else error
    return str(text).strip().partition("\n")[0]


def describe_causes(error: Exception) -> str:
    """Return the text of an error of Spark with all its causes, as the JVM writes its stack."""
    if isinstance(error, Py4JJavaError):
        return str(error)
    stack = getattr(error, "_stackTrace", None)  # the JVM's, which the message may leave out
    return f"{error}\n{stack}" if stack else str(error)


def explain_full_disk(causes: str) -> SetupError | None:
    """Make the error of a full disk, if the causes of an error of Spark name one."""
    if not any(name in causes for name in ("No space left on device", "Disk quota exceeded")):
        return None
    return SetupError(
        "a disk is full, and what is published stays as it is: make room where the warehouse, the checkpoint and Spark's "
        "temporary files are (TMPDIR, or spark.local.dir), then start again"
    )


def explain_conflict(causes: str) -> Refused | None:
    """Make the refusal of a commit that another one came before, if the causes name one."""
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
    """Make the error of a missing right in Kafka, if the causes of an error of Spark name one."""
    found = _NOT_AUTHORIZED.search(causes)
    if found is None:
        return None
    return SetupError(
        f"Kafka does not let this user read {found[1]}: grant Read: "
        + grant_command(bootstrap, "--operation Read --topic PREFIX. --resource-pattern-type prefixed")
    )


def grant_command(bootstrap: str, right: str) -> str:
    """Return the command that gives the job's user a right in Kafka."""
    return f"kafka-acls --bootstrap-server {bootstrap} --add --allow-principal User:NAME {right}"
