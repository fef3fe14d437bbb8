"""The interfaces of a sink: for the mirror, and for a reader of the mirror."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from twofold_spark.sinks.cuts import NO_LIMIT, CutLimit, GlobalCut
from twofold_spark.sinks.sharding import Sharding

_FEW_ROWS = 10_000
SMALL_TABLE_ROWS = 200_000
"""A table with fewer rows is small; a MERGE reads all of it."""
_FOR_FEW_ROWS = {"spark.sql.shuffle.partitions": "1", "spark.sql.adaptive.enabled": "false"}


class BatchPlan:
    """Sets how the batches of one session are planned. Not used while one runs."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._usual = {key: spark.conf.get(key) or "" for key in _FOR_FEW_ROWS}
        self._is_small = False

    def choose(self, rows: int, table_rows: Iterable[int | None]) -> None:
        """Choose by the rows of the batch and of its tables; None is a table of unknown size."""
        is_small = rows <= _FEW_ROWS and all(n is not None and n < SMALL_TABLE_ROWS for n in table_rows)
        if is_small != self._is_small:
            for key, value in (_FOR_FEW_ROWS if is_small else self._usual).items():
                self._spark.conf.set(key, value)
            self._is_small = is_small


@dataclass(frozen=True, slots=True)
class MirrorTable:
    """A mirrored table: its topic, its name in PostgreSQL, the columns of its key, its comment."""

    topic: str
    schema: str
    name: str
    key: tuple[str, ...]
    comment: str | None = field(default=None, compare=False)
    stream_id: str = field(default="", compare=False)
    """That of its rows' commit records; none of a sharded table, and of one known by name alone."""

    @classmethod
    def by_name(cls, name: str) -> MirrorTable:
        """Return a table by its name (`schema.name`) alone."""
        schema, _, table = name.partition(".")
        return cls("", schema, table, ())

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


@dataclass(frozen=True, slots=True)
class TableBatch:
    """A table's folded rows, for one merge."""

    rows: DataFrame
    count: int | None
    """How many there are, at most; None if nobody knows."""
    replace: bool
    """They come after a truncate."""
    unchanged: tuple[str, ...]
    """The columns whose value some row lacks; the table keeps its own value then."""
    emptied: tuple[str, ...] = ()
    """Of a sharded table: the members whose rows come after a truncate of their shard."""


class Sink(Protocol):
    """The place that the mirror writes to."""

    def read_applied(self, table: MirrorTable) -> int:
        """Return the sequence number up to which the table has all changes; 0 if it does not exist.

        The next merge into the table must find it at this number.
        """

    def plan_batch(self, tables: Collection[MirrorTable], rows: int) -> None:
        """Set how Spark plans a batch of so many rows for these tables.

        `read_applied` was called for each of them, and no merge runs.
        """

    def prepare(self, table: MirrorTable, columns: StructType) -> None:
        """Create the table or change its columns, before rows that need them.

        The columns' comments are in their metadata, under `comment`.
        """

    def read_current(self, table: MirrorTable) -> DataFrame | None:
        """Read the table as this job left it: a row that changed its key may need its values."""

    def merge(self, table: MirrorTable, batch: TableBatch, *, sequence: int) -> None:
        """Apply a batch in one commit, which also records `sequence`."""

    def read_key(self, table: MirrorTable) -> tuple[str, ...]:
        """Return the columns that identify the rows of a table, once it was read; none if it is
        keyless.
        """

    def find_repeated(self, table: MirrorTable, batch: TableBatch | None, *, everywhere: bool) -> str | None:
        """Return a key of a sharded table that several members have behind this batch, with them.

        It is looked for among the batch's keys, or everywhere; without a batch in the table as it
        is.
        """

    def quarantine(self, records: DataFrame) -> None:
        """Keep records that cannot be decoded, each once."""

    def version_of(self, table: MirrorTable) -> str | None:
        """Return the table's version as this job left it; None while it has none."""

    def maintain(self, tables: Collection[str], keep: dt.timedelta) -> None:
        """Compact the small files of these tables, and remove versions that were replaced more than
        `keep` ago and that no cut needs.
        """


class Reader(Protocol):
    """The place that a mirror is read from."""

    @property
    def is_lasting(self) -> bool:
        """Whether tables that are read one after the other are of one cut."""

    def pin(self) -> AbstractContextManager[Reader]:
        """Open a reader for which the last cut and its tables stay as they are."""

    def find_cut(self, limit: CutLimit = NO_LIMIT, *, first: bool = False) -> GlobalCut | None:
        """Return the last whole cut within the limit, or the first."""

    def is_of_group(self) -> bool:
        """Whether it is a source group's mirror; once a cut is published."""

    def read_sharding(self) -> Sharding:
        """Return which tables are sharded; once a cut is published."""

    def read_table(self, prefix: str, name: str, version: str) -> DataFrame:
        """Read a table (`schema.name`) as of a version that a cut names.

        The prefix of a sharded table is `SHARED`.
        """

    def read_key(self, prefix: str, name: str) -> tuple[str, ...]:
        """Return the columns that identify a table's rows; none of a keyless table."""
