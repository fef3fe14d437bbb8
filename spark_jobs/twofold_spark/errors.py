"""What the jobs raise on purpose. The class tells what the user does next, and the exit status.

    JobError
      UsageError       exit 2   the command line is wrong: correct it
      SetupError       exit 3   something is missing: the message has the remedy
      Refused          exit 5   continuing could lose or repeat data: the message has the repair
        TableRefused            the same for one table; others may continue (--on-table-error)

The connector has the same hierarchy. It is not imported, because the jobs run where the connector
is not installed.
"""

from __future__ import annotations

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

SPARK_ERRORS = (PySparkException, Py4JJavaError)
"""What Spark raises: PySpark's own errors, and Java's exceptions as py4j hands them over."""


class JobError(Exception):
    """Base of all; the command ends with `exit_status`."""

    exit_status = 1


class UsageError(JobError):
    """The command line is wrong."""

    exit_status = 2


class SetupError(JobError):
    """Something that must be there is missing."""

    exit_status = 3


class Refused(JobError):
    """Continuing could lose or repeat data."""

    exit_status = 5

    def __init__(self, what: str, *, at_stake: str, repair: str) -> None:
        super().__init__(f"{what}\n  at stake: {at_stake}\n  repair:   {repair}")
        self.what = what


class TableRefused(Refused):
    """Continuing could lose or repeat data of one table."""


def first_line(error: Exception) -> str:
    """Format an error of Spark in one line: the message without the JVM's stack."""
    text = error.java_exception.toString() if isinstance(error, Py4JJavaError) else error
    return str(text).strip().partition("\n")[0]
