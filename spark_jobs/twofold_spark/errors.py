"""What the jobs raise on purpose. The class says what the user does next and with what status the command ends.

    JobError
      BadUsage         exit 2   the command line is wrong: mend it
      MissingGround    exit 3   Java, a jar, the registry's subject or a table lacks something: the message has the remedy
      Refused          exit 5   going on could lose or repeat data: the message has what is at stake and the repair
        TableRefused            of one table alone; the mirror's others may go on (--on-table-error)

The connector's own hierarchy looks the same; it is not imported because the jobs run where the connector is not.
"""

from __future__ import annotations

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

SPARKS = (PySparkException, Py4JJavaError)
"""What Spark raises: its own by their names, the libraries' as they come out of the JVM."""


class JobError(Exception):
    """Base of all; `exit_status` is what the command line ends with."""

    exit_status = 1


class BadUsage(JobError):
    """The command line is wrong."""

    exit_status = 2


class MissingGround(JobError):
    """Something that must be there is not."""

    exit_status = 3


class Refused(JobError):
    """Continuing could lose or repeat data."""

    exit_status = 5

    def __init__(self, what: str, *, at_stake: str, repair: str) -> None:
        super().__init__(f"{what}\n  at stake: {at_stake}\n  repair:   {repair}")
        self.what = what


class TableRefused(Refused):
    """Continuing could lose or repeat data of one table."""


def said(error: Exception) -> str:
    """An error of Spark's in one line: the message without the JVM's stack."""
    text = error.java_exception.toString() if isinstance(error, Py4JJavaError) else error
    return str(text).strip().partition("\n")[0]
