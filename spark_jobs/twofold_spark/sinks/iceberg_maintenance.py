"""Maintenance of Iceberg's tables: versions that are too old, small files.

It works on the branch that merges go to, between two batches, and publishes what compaction wrote.
Versions that a kept cut, a branch or a tag names stay. So does a version that was replaced less
than `keep` ago: a reader may have loaded it just before, however old it was then.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from twofold_spark.sinks import iceberg_tables
from twofold_spark.sinks.iceberg_branches import CutPublisher
from twofold_spark.sinks.iceberg_tables import MAIN, IcebergTables
from twofold_spark.sinks.merge_sql import escape_literal


def maintain(
    own: IcebergTables,
    branch: str,
    publisher: CutPublisher | None,
    tables: Mapping[str, set[int]],
    keep: dt.timedelta,
) -> None:
    """Compact the tables, and expire versions but those that cuts need, which `tables` has.

    The publisher shows what compaction wrote; there is none while the last cut is not whole.
    """
    heads: dict[str, int] = {}
    for table in tables:
        listed = f"table => '{escape_literal(own.name(table))}', branch => '{branch}'"
        own.spark.sql(f"CALL {own.catalog}.system.rewrite_data_files({listed})")
        if (head := iceberg_tables.current_snapshot(own.load(table), branch)) is not None:
            heads[table] = head
    if publisher is not None and branch != MAIN:
        publisher.publish(heads, {})
    for table in heads:
        _expire_snapshots(own, table, tables[table], keep)


def _expire_snapshots(own: IcebergTables, table: str, wanted: set[int], keep: dt.timedelta) -> None:
    """Expire snapshots by their ids.

    A recent cut may name an old snapshot, if the table did not change since.
    """
    spark, name = own.spark, own.name(table)
    snapshots = [
        Snapshot(*row)
        for row in spark.sql(
            f"SELECT snapshot_id, parent_id, unix_micros(committed_at) FROM {name}.snapshots ORDER BY committed_at DESC"
        ).collect()
    ]
    moves = spark.sql(f"SELECT snapshot_id, unix_micros(made_current_at) FROM {name}.history ORDER BY made_current_at")
    named = {row[0] for row in spark.sql(f"SELECT snapshot_id FROM {name}.refs").collect()}
    replaced = find_replaced(snapshots, [(row[0], row[1]) for row in moves.collect()])
    before = time.time_ns() // 1000 - keep // dt.timedelta(microseconds=1)
    # The last two stay: one of them has the sequence number, and the other may be compaction's.
    old = [s.id for s in snapshots[2:] if replaced[s.id] < before and s.id not in wanted | named]
    if old:
        spark.sql(
            f"CALL {own.catalog}.system.expire_snapshots(table => '{escape_literal(name)}', "
            f"older_than => TIMESTAMP '1970-01-01 00:00:00', snapshot_ids => array({', '.join(map(str, old))}))"
        )


class Snapshot(NamedTuple):
    """A version of a table, and when it was committed, in microseconds since 1970."""

    id: int
    parent: int | None
    committed_us: int


def find_replaced(snapshots: Iterable[Snapshot], moves: Sequence[tuple[int, int]]) -> dict[int, int]:
    """Return when each snapshot was replaced for readers.

    `moves` are those of `main`, in their order: to which snapshot, and when. A snapshot ends with
    the move behind its own last one. One that `main` never had, or whose move Iceberg has forgotten
    with an expired snapshot, ends with the first snapshot that was made of it, or with itself. The
    present one has not ended; `main` names it.
    """
    known = list(snapshots)
    replaced = {each.id: each.committed_us for each in known}
    made_of_it: dict[int, int] = {}
    for each in known:
        if each.parent in replaced:
            made_of_it[each.parent] = min(each.committed_us, made_of_it.get(each.parent, each.committed_us))
    replaced |= made_of_it
    return replaced | {left: at for (left, _), (_, at) in pairwise(moves)}
