"""Decides which errors of Spark, its sinks and PostgreSQL concern one table. Pure.

A value that a cast or a constraint rejects, two rows for one key, a column that is not there, a
data file that is gone: a reload of the table repairs it, or leaves the others alone. A broker, a
catalog or a disk that fails, and a job that is cancelled, concern all tables: the process ends, and
a restart goes on. What is in neither list ends the process too, because a table that is stopped by
mistake must be loaded again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from twofold_spark.errors import SPARK_ERRORS, TableRefused, describe_causes, explain_away, explain_full_disk
from twofold_spark.sinks.interface import MirrorTable
from twofold_spark.sources.topic_names import reload_command

_NAME = re.compile(r"(?<![\w.$])((?:[a-z_]\w*\.)+[A-Z][\w$]*)(?=:|\s|$)")
_OF_A_TABLE = frozenset(
    {
        "java.io.FileNotFoundException",
        "java.lang.ArithmeticException",
        "java.lang.ArrayIndexOutOfBoundsException",
        "java.lang.ClassCastException",
        "java.lang.IllegalArgumentException",
        "java.lang.NullPointerException",
        "java.lang.NumberFormatException",
        "java.lang.UnsupportedOperationException",
        "java.nio.file.NoSuchFileException",
        "java.time.DateTimeException",
        "org.apache.iceberg.exceptions.NotFoundException",
        "org.apache.iceberg.exceptions.ValidationException",
        "org.apache.spark.SparkArithmeticException",
        "org.apache.spark.SparkArrayIndexOutOfBoundsException",
        "org.apache.spark.SparkDateTimeException",
        "org.apache.spark.SparkIllegalArgumentException",
        "org.apache.spark.SparkNumberFormatException",
        "org.apache.spark.SparkRuntimeException",
        "org.apache.spark.SparkUnsupportedOperationException",
        "org.apache.spark.sql.AnalysisException",
        "org.apache.spark.sql.catalyst.ExtendedAnalysisException",
        "org.apache.spark.sql.delta.DeltaAnalysisException",
        "org.apache.spark.sql.delta.schema.DeltaInvariantViolationException",
        "org.postgresql.util.PSQLException",
    }
)
_OF_ALL = re.compile(
    r"OutOfMemoryError|cancelled|canceling statement|was shut down|stopped SparkContext"
    r"|InterruptedException|TimeoutException|CommitStateUnknown|PSQLException: FATAL"
    r"|DUPLICATED_MAP_KEY"  # two threads in from_avro: folded_rows.cache_until_closed
    r"|CommitFailedException|org\.apache\.kafka\.common\.errors|iceberg\.exceptions\.(?:REST|Service)|ConcurrentModification"
    r"|SQLSTATE (?:08|25|28|3D|40|53|55P03|57|58)"
)
"""Beside a full disk, and a server that is away. The last are PostgreSQL's: connections, a server
that only reads, logins, a database that is not there, locks of other transactions, full memory or
disks, a person's stop, and its files.
"""


_LEAVE_OUT = "leave the table out of the publication: the table's rows cannot be mirrored as they are"


@contextmanager
def refusing_errors(table: MirrorTable, *, otherwise: str = _LEAVE_OUT) -> Iterator[None]:
    """Turn an error of Spark that concerns this table alone into the table's refusal.

    `otherwise`: what to do if its reload meets the same error.
    """
    try:
        yield
    except SPARK_ERRORS as error:
        refused = refuse_for_error(table, describe_causes(error), otherwise=otherwise)
        if refused is None:
            raise
        raise refused from error


def refuse_for_error(table: MirrorTable, text: str, *, otherwise: str = _LEAVE_OUT) -> TableRefused | None:
    """Make the table's refusal of an error of Spark, given as its whole text with its causes.

    None if the error concerns more than this table, or may.
    """
    told = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith(("at ", "... ")))
    causes = [found for found in _NAME.finditer(told) if found[1] in _OF_A_TABLE]
    if not causes or explain_full_disk(told) or explain_away(told) or _OF_ALL.search(told):
        return None
    innermost = told[causes[-1].start() :].partition("\n")[0]
    return TableRefused(
        f"{table}: its changes cannot be applied: {innermost}",
        at_stake="its changes of this batch, of which none is applied",
        repair=f"`{reload_command(table)}`. If its reload meets the same error, {otherwise}",
    )
