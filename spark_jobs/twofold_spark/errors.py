"""Errors that the jobs raise on purpose: those they share with the connector, and their own.

TwofoldError
  UsageError       exit 2   the command line is wrong: correct it
  SetupError       exit 3   something is missing: the message has the remedy
  Refused          exit 5   continuing could lose or repeat data: the message has the repair
    TableRefused            the same for one table; others may continue (--on-table-error)
"""

from __future__ import annotations

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from twofold_common.errors import Refused, SetupError, TwofoldError, UsageError

__all__ = ["SPARK_ERRORS", "Refused", "SetupError", "TableRefused", "TwofoldError", "UsageError", "first_line"]

SPARK_ERRORS = (PySparkException, Py4JJavaError)
"""What Spark raises: PySpark's own errors, and Java's exceptions as py4j hands them over."""


class TableRefused(Refused):
    """Continuing could lose or repeat data of one table."""


def first_line(error: Exception) -> str:
    """Format an error of Spark in one line: the message without the JVM's stack."""
    text = error.java_exception.toString() if isinstance(error, Py4JJavaError) else error
    return str(text).strip().partition("\n")[0]
