"""Folds what the members changed in a sharded table.

The ranges of all members come by one read and are folded at once, because each job of Spark costs
more to plan than its few rows do. That is for rows that need no more than their last state. Each
member's shard is folded by itself where a truncate, a value that PostgreSQL did not send or a
record that cannot be decoded is among the rows, where the members' columns differ, or where a
reload is waited for. A refusal is then that member's alone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import cast

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StringType, StructField, StructType

from twofold_spark.errors import SPARK_ERRORS, TableRefused
from twofold_spark.mirror.folded_rows import cache_until_closed, no_unchanged, table_columns
from twofold_spark.mirror.folding import LastRecords, join_equal_keys, last_positions
from twofold_spark.mirror.table_merge import TableMerger, differing_counts, find_later_rows
from twofold_spark.row_columns import KEY_TEXT, MEMBER, OP
from twofold_spark.sinks.interface import MirrorTable, Sink
from twofold_spark.sinks.table_errors import refusing_errors
from twofold_spark.sources import decoding, kafka_reader
from twofold_spark.sources.commit_records import OffsetRange
from twofold_spark.sources.kafka_client import KafkaAdmin
from twofold_spark.sources.registry import Subject

_RESTS = 20
"""Behind a batch with values that PostgreSQL did not send, so many are folded shard by shard at
once: most batches of such a table have one."""

ReadShard = Callable[[str, MirrorTable, StructType, ExitStack], DataFrame | None]
"""Reads a member's rows of a sharded table as they are before the cut, with these columns, which
nobody changes until the last argument is closed."""


@dataclass(frozen=True, slots=True)
class DueShard:
    """What a member's batch has of a sharded table."""

    prefix: str
    table: MirrorTable
    ranges: list[OffsetRange]
    merger: TableMerger
    sink: Sink
    """The member's: its place has what cannot be decoded."""
    from_truncate: bool
    """The shard misses changes, and only a reload repairs it."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Folded rows of one member, or of several; they are cached until they are merged."""

    prefixes: tuple[str, ...]
    table: MirrorTable
    """With the comment; its key is a member's."""
    rows: DataFrame
    """With the member."""
    columns: tuple[StructType, ...]
    """Each member's, without it; all have the same, except for comments."""
    keys: int | None
    unchanged: tuple[str, ...] = ()
    emptied: tuple[str, ...] = ()
    """The members whose rows come after a truncate."""


@dataclass(slots=True)
class FoldedTable:
    """The result for one table; the owner closes `caches` behind the merge."""

    caches: ExitStack
    shards: list[Shard] = field(default_factory=list)
    refusals: list[TableRefused] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    """Members whose shard waits for a truncate that did not come."""
    changes: dict[str, int] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)
    """By member: what was read."""


class ShardFolder:
    """Folds; several threads may use it, each for a table of its own. The owner closes it."""

    def __init__(self, admin: KafkaAdmin, members_at_once: int) -> None:
        self._admin = admin
        self._pool = ThreadPoolExecutor(members_at_once, thread_name_prefix="shard")
        self._last_records: dict[str, LastRecords] = {}
        """By table, for the subjects of all members that changed it and are alike."""
        self._rests: Counter[str] = Counter()
        """How many folds of a table are not tried together: its rows want more."""
        self._caches: dict[str, ExitStack] = {}
        """By table, those of its last fold: a job that fails behind it may begin again."""

    def fold(self, spark: SparkSession, dues: Sequence[DueShard], read_shard: ReadShard) -> FoldedTable:
        dues, name = sorted(dues, key=lambda due: due.table.topic), str(dues[0].table)
        folded = FoldedTable(ExitStack())
        self._caches[name] = folded.caches
        if len(dues) > 1 and not self._rests[name]:
            if self._fold_together(spark, dues, folded):
                return folded
            folded = FoldedTable(folded.caches)
            folded.caches.close()
        else:
            self._rests[name] = max(0, self._rests[name] - 1)
        jobs = [self._pool.submit(_fold_alone, spark, due, read_shard, folded) for due in dues]
        for job in jobs:
            job.result()
        folded.shards.sort(key=lambda shard: shard.prefixes)  # the order of the columns is the members'
        return folded

    def close(self) -> None:
        self._pool.shutdown()
        for caches in self._caches.values():
            caches.close()

    def _fold_together(self, spark: SparkSession, dues: Sequence[DueShard], folded: FoldedTable) -> bool:
        """Fold the shards at once. Return False if each has to be folded by itself."""
        subjects = _find_subjects(dues)
        if not subjects or (last := self._find_last_records(str(dues[0].table), subjects)) is None:
            return False
        try:
            ranges = [each for due in dues for each in due.ranges]
            decided = kafka_reader.are_decided(self._admin, ranges)
            raw = kafka_reader.read_ranges(spark, self._admin.kafka, ranges, decided=decided, over_markers=True)
            cached = cache_until_closed(last.select(raw), folded.caches)
            found = last.count_partitions(cached)
            row = cast("StructType", cached.schema["image"].dataType)
            columns = tuple(table_columns(each, row) for each in subjects)
        except (TableRefused, *SPARK_ERRORS):  # the shard that it belongs to meets it again
            return False
        if any(row["partial"] for row in found):
            self._rests[str(dues[0].table)] = _RESTS
        if _is_special(found) or _has_member(row) or not _note_counts(dues, found, folded):
            return False
        prefixes, table = tuple(due.prefix for due in dues), dues[0].merger.add_comment(dues[0].table)
        number = f.shiftright("partition", kafka_reader.PARTITION_BITS)
        member = f.element_at(f.array(*map(f.lit, prefixes)), number + 1).alias(MEMBER)
        rows = decoding.drop_truncated(cached, {}).select("image.*", f.col("op").alias(OP), no_unchanged(), member)
        rows = join_equal_keys(rows, (*table.key, MEMBER), add_member(row))
        folded.shards.append(Shard(prefixes, table, rows, columns, sum(row["keys"] for row in found)))
        return True

    def _find_last_records(self, table: str, subjects: Sequence[Subject]) -> LastRecords | None:
        """Return the expressions for these subjects, and for those of other members; None if their
        rows are not read into the same columns.
        """
        kept = self._last_records.get(table)
        if kept is not None and all(each in kept.subjects for each in subjects):
            return kept
        row, *others = map(_describe_row, subjects)
        if any(other != row for other in others):
            return None
        alike = (each for each in (kept.subjects if kept else ()) if _describe_row(each) == row)
        of_name = {each.name: each for each in (*alike, *subjects)}
        self._last_records[table] = LastRecords(*of_name.values(), decode_all=False)
        return self._last_records[table]


def _find_subjects(dues: Sequence[DueShard]) -> list[Subject]:
    """Return the subjects of the rows, if all tables have the same key, which is their rows'; else
    none.
    """
    if any(due.from_truncate for due in dues):
        return []
    found = [due.merger.find_subjects(due.table) for due in dues]
    rows = [each[0] for each in found if each is not None]
    key = dues[0].table.key
    is_alike = (
        len(rows) == len(dues)
        and all(due.table.key == key for due in dues)
        and not any(name.startswith(KEY_TEXT) for name in key)
    )
    return rows if is_alike else []


def add_member(columns: StructType) -> StructType:
    return StructType([*columns, StructField(MEMBER, StringType(), nullable=False)])


def _has_member(columns: StructType) -> bool:
    return MEMBER in (name.lower() for name in columns.names)


def _is_special(found: Iterable[Row]) -> bool:
    """Whether some record wants more than its last state."""
    return any(row["partial"] or row["keyless"] or row["unreadable"] or row["truncate"] is not None for row in found)


def _note_counts(dues: Sequence[DueShard], found: Iterable[Row], folded: FoldedTable) -> bool:
    """Note what was read of each member; whether it is what the commit records declare."""
    of_member: dict[int, list[Row]] = defaultdict(list)
    for row in found:
        of_member[row["partition"] >> kafka_reader.PARTITION_BITS].append(row)
    for number, due in enumerate(dues):
        own = of_member[number]
        counts = {row["partition"] % (1 << kafka_reader.PARTITION_BITS): row["n"] for row in own}
        folded.changes[due.prefix] = sum(row["changes"] for row in own)
        folded.bytes[due.prefix] = sum(row["bytes"] or 0 for row in own)
        positions = {p % (1 << kafka_reader.PARTITION_BITS): at for p, at in last_positions(own).items()}
        if differing_counts(due.ranges, counts) or find_later_rows(due.ranges, positions):
            return False
    return True


def _describe_row(subject: Subject) -> str:
    """Describe the columns that rows of all versions are read into."""
    fields = decoding.find_row_schema(decoding.build_reader_schema(subject))["fields"]
    return repr([(each["name"], each["type"]) for each in fields])


def _fold_alone(spark: SparkSession, due: DueShard, read_shard: ReadShard, folded: FoldedTable) -> None:
    """Fold one member's shard. A refusal is the member's, and the others go on."""
    caches = ExitStack()
    folded.caches.push(caches)
    try:
        with refusing_errors(due.table), ExitStack() as locks:
            shard = _make_shard(spark, due, read_shard, folded, caches, locks)
    except TableRefused as refused:
        refused.prefix, refused.table = due.prefix, str(due.table)
        folded.refusals.append(refused)
        return
    if shard is None:
        folded.waiting.append(due.prefix)
    else:
        folded.shards.append(shard)


def _make_shard(
    spark: SparkSession, due: DueShard, read_shard: ReadShard, folded: FoldedTable, caches: ExitStack, locks: ExitStack
) -> Shard | None:
    is_read = False

    def read_current(columns: StructType) -> DataFrame | None:
        nonlocal is_read
        is_read = True
        return read_shard(due.prefix, due.table, columns, locks)

    read = None if due.from_truncate else read_current
    own = due.merger.fold(spark, due.sink, due.table, due.ranges, caches, read)
    if own is None:
        return None
    if _has_member(own.columns):
        raise TableRefused(
            f"{due.table} has a column {MEMBER}, and the mirror adds one of that name to a sharded table",
            at_stake="the values of one of the two",
            repair=f"rename the column in the source, or leave {due.table} out of --sharded",
        )
    # Before another member changes the columns.
    rows = own.rows.localCheckpoint() if is_read else own.rows
    folded.changes[due.prefix], folded.bytes[due.prefix] = own.changes, own.bytes
    emptied = (due.prefix,) if own.truncated else ()
    rows = rows.withColumn(MEMBER, f.lit(due.prefix))
    table = due.merger.add_comment(due.table)
    return Shard((due.prefix,), table, rows, (own.columns,), own.keys, own.unchanged, emptied)
