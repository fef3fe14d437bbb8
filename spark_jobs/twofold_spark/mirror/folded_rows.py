"""A folded batch of one topic: the last state of every key. It is what the sinks merge.

A folded row has the key's columns and all others, `OP` and `UNCHANGED` (see `row_columns`). A
truncate empties its partition. So the fold drops what came before it, and the sink replaces the
table.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import StructField, StructType

from twofold_avro.comments import read_comments
from twofold_spark.errors import TableRefused
from twofold_spark.row_columns import COPIES, KEY, KEY_TEXT, OP, UNCHANGED
from twofold_spark.sinks.interface import MirrorTable
from twofold_spark.sources.registry import Subject
from twofold_spark.sources.topic_names import reload_command


@dataclass(frozen=True, slots=True)
class FoldedRows:
    """A topic's batch, folded; its cached data stays until it is merged."""

    rows: DataFrame
    columns: StructType
    """The table's columns: the union of all versions."""
    counts: dict[int, int]
    """Records read of each partition, with tombstones, to compare with the commit records."""
    positions: dict[int, int]
    """The last position in PostgreSQL's WAL of each partition's rows, to compare likewise."""
    changes: int
    """Records without the tombstones."""
    unreadable: int
    """Records that cannot be decoded, or whose schema id is not known (yet)."""
    truncated: bool
    unchanged: tuple[str, ...]
    """Columns that `UNCHANGED` lists in some row."""
    bytes: int
    keys: int | None = None
    """How many rows there are, at most; not known of a table without a key."""
    keyless_rows: bool = False
    """Rows lack a key that the registry has.

    All of them were folded into one, so they must not be merged.
    """
    keyed_rows: bool = False
    """Rows have a key that the registry has not; their changes name no whole old row."""

    def check(self, table: MirrorTable) -> None:
        """Refuse rows without a key in a table with one, and the reverse."""
        if self.keyed_rows:
            raise TableRefused(
                f"{table.topic} has rows with a key, but the registry has no key for them, the subject {table.topic}-key",
                at_stake="their updates and deletes: each would leave the former row there",
                repair="give --registry the connector's registry; if the subject was deleted, start the connector again, which "
                f"registers it; then `{reload_command(table)}`",
            )
        if self.keyless_rows:
            raise TableRefused(
                f"{table.topic} has rows without a key, but the registry has a key for them, the subject {table.topic}-key",
                at_stake="all of these rows except one",
                repair=f"if {table} has no primary key any more, delete that subject; then `{reload_command(table)}`",
            )


def cache_until_closed(frame: DataFrame, caches: ExitStack) -> DataFrame:
    """Cache the frame until `caches` is closed.

    Spark compares a new plan with all cached plans, also those of other tables, in a form that it
    computes at the first comparison. Two threads may then evaluate `from_avro`'s options at once,
    which fails (`DUPLICATED_MAP_KEY`, seen once in some thousand batches). So the form is computed
    here, before any other thread can see the plan.
    """
    query: Any = frame._jdf.queryExecution()
    query.normalized().canonicalized()
    caches.callback(frame.unpersist)
    return frame.persist()


def table_columns(subject: Subject, row: StructType, *added: StructField) -> StructType:
    """Return the table's columns: the row's with their comments, and those that the mirror adds."""
    comments = read_comments(subject.latest).columns
    own = (
        StructField(field.name, field.dataType, field.nullable, {"comment": text} if text else None)
        for field, text in ((field, comments.get(field.name)) for field in row)
    )
    columns = StructType([*own, *added])
    counts = Counter(name.lower() for name in (*columns.names, OP, UNCHANGED, KEY))
    if twice := sorted(name for name, count in counts.items() if count > 1):
        raise TableRefused(
            f"{subject.name} has columns that would exist twice in the mirror's table: {', '.join(twice)}. The mirror ignores "
            f"case, and adds `{COPIES}` to a table without a key and `{KEY_TEXT}<column of the key>` to others",
            at_stake="the values of one of the two",
            repair=f"if it is `{COPIES}`, give the table a primary key; else rename the column and delete that subject, whose "
            "versions have it. Then start connector and mirror again, and run `twofold backfill start`",
        )
    return columns


def no_unchanged() -> Column:
    """An empty `UNCHANGED`."""
    return f.array().cast("array<string>").alias(UNCHANGED)
