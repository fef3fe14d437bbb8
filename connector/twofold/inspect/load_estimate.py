"""`twofold backfill estimate`: what a load of tables reads, how long it takes, and what it leaves
on the brokers' disks.

PostgreSQL estimates rows and bytes. The rate is that of earlier loads, by the commit records of
their chunks: as this machine, these servers and these tables have shown. Reads only.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from twofold.config import Config
from twofold.inspect.status_report import choose_topics
from twofold.kafka.decoding import Decoder
from twofold.kafka.kafka_settings import kafka_settings, names_of, open_registry
from twofold.kafka.metadata import ask_brokers
from twofold.kafka.topic_reader import PartitionId, TopicReader
from twofold.source.load_estimates import TableSize, table_sizes
from twofold.source.provisioning import PublicationContent, as_if_created
from twofold_avro.names import topic_of
from twofold_avro.records import Commit
from twofold_common.table_names import table_argument

RECORDS_MAX = 100_000
"""The number of offsets at the end of the commit records that are searched for chunks."""
PAUSE_MS = 10_000
"""The longest time between two chunks of one load. A longer time is not part of a load."""
ROWS_MIN = 10_000
"""The fewest rows that show a rate: a table of one row takes as long as one of a thousand."""
RECORD_BYTES = 10
"""The approximate bytes of a record beside its row, compressed."""
COMPRESSED = 0.5
"""The approximate size of a row in Kafka, as a part of its bytes in PostgreSQL: measured were 0.65
for digests, 0.5 for numbers, and less for text that repeats itself.
"""


@dataclass(frozen=True, slots=True)
class TableEstimate:
    """A table's load."""

    table: str
    rows: int | None
    """The estimated rows; None: the role may not read the table, or it is locked."""
    bytes: int
    """The size in PostgreSQL, without indexes."""
    kafka_bytes: int
    """The size on the disks of all brokers together."""


@dataclass(frozen=True, slots=True)
class LoadEstimate:
    """The load of several tables."""

    tables: tuple[TableEstimate, ...]
    rows: int
    bytes: int
    kafka_bytes: int
    per_second: float | None
    """Rows a second that earlier loads have shown; None: they had too few rows."""
    seconds: float | None


def estimate(config: Config, published: PublicationContent | None, tables: Collection[str]) -> LoadEstimate:
    """Estimate the load of these tables; of all, if none is named. `published`: the content of a
    publication that `init` would create.
    """
    per_second = _shown_rate(config)
    with as_if_created(config.conninfo, config.publication, published) as (connection, _):
        sizes = table_sizes(connection, config.publication)
    outboxes = {rule.name for rule in config.outbox}
    known = {name: topic_of(config.prefix, *name) for each in sizes if (name := _name(each)) not in outboxes}
    chosen = choose_topics(tables, known, config.publication) if tables else known.values()
    found = []
    for size in sizes:
        name = _name(size)
        if known.get(name) in chosen:
            kafka_bytes = (COMPRESSED * size.bytes + RECORD_BYTES * (size.rows or 0)) * config.kafka.replication
            found.append(TableEstimate(table_argument(*name), size.rows, size.bytes, round(kafka_bytes)))
    rows = sum(each.rows or 0 for each in found)
    return LoadEstimate(
        tuple(found),
        rows,
        sum(each.bytes for each in found),
        sum(each.kafka_bytes for each in found),
        per_second,
        _seconds(config, found, rows, per_second),
    )


def _name(size: TableSize) -> tuple[str, str]:
    return size.relation.schema, size.relation.table


def _seconds(config: Config, tables: Collection[TableEstimate], rows: int, per_second: float | None) -> float | None:
    """Return the time at the shown rate, and at the limit that is set."""
    if per_second is None:
        return None
    limit = config.backfill.rows_per_second
    largest = max((each.rows or 0 for each in tables), default=0)
    at_limit = max(largest / limit, rows / limit / config.backfill.readers) if limit else 0.0
    return max(rows / per_second, at_limit)


def _shown_rate(config: Config) -> float | None:
    """Return the rows a second of the last loads, while they read."""
    settings, commits = kafka_settings(config), PartitionId(names_of(config).commits, 0)
    ask_brokers(settings)
    reader, decoder = TopicReader(settings), Decoder(open_registry(config))
    if not reader.partitions_of({commits.topic}):
        return None
    low, end = reader.visible([commits])[commits]
    rows, ms, before = 0, 0, None
    for message in reader.read({commits: (max(low, end - RECORDS_MAX), end)}):
        at = message.timestamp()[1]
        commit = decoder.decode_message(Commit, message)
        if commit.kind != "backfill":
            continue
        if before is not None and at - before < PAUSE_MS:
            rows, ms = rows + commit.rows, ms + at - before
        before = at
    return rows * 1000 / ms if rows >= ROWS_MIN and ms else None
