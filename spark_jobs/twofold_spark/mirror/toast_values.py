"""Carries TOASTed values that PostgreSQL did not send over to the row's last state.

Only a batch that has such values comes here. For each such column the value is, in this order: the last one sent within
the batch since the row was inserted; or, where the row came by a change of its key, what the row had under its old key
at that moment, which may in turn have come from another key; or what the table has (under the row's own key: then the
sink keeps it; under an old one: read here).

A change of the key is a delete and an insert with one and the same place in the write-ahead log; that pair, and not an
offset, joins the insert to its past: the two keys may lie in different partitions.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from twofold_spark.errors import TableRefused

OP, UNCHANGED, KEY = "_twofold_op", "_twofold_unchanged", "_twofold_key"
"""Beside a row's columns, which may have any name; never a table's."""
COPIES = "_copies"
"""A keyless table's column: how often the row is there."""
KEY_TEXT = "_key_"
"""Before a key column's name: the text that the message key has of it."""
_SENT, _MOVED, _TABLE, _LOST = "sent", "moved", "table", "lost"


def persisted(frame: DataFrame, held: ExitStack) -> DataFrame:
    """The frame, cached until `held` is closed. Its plan is brought into the form that Spark compares first, before any other thread can see it.

    Spark compares a new plan with all cached ones, other tables' too, and computes that form at the first comparison. `from_avro`'s
    options are then evaluated by two threads at once, which they do not bear: `DUPLICATED_MAP_KEY`, seen once in some thousand batches.
    """
    query: Any = frame._jdf.queryExecution()
    query.normalized().canonicalized()
    held.callback(frame.unpersist)
    return frame.persist()


def carried(
    records: DataFrame, key: tuple[str, ...], current: Callable[[], DataFrame | None], held: ExitStack
) -> tuple[DataFrame, tuple[str, ...]]:
    """The last state of every key with its carried values, and in `UNCHANGED` the columns that the table keeps.

    Also which columns those are; the frame behind is cached until `held` is closed.
    """
    columns = sorted(row[0] for row in records.select(f.explode("unchanged")).distinct().collect())
    history = persisted(_history(records, key, columns), held)
    last = history.groupBy(KEY).agg(
        f.max(f.struct("_offset", *(c for c in history.columns if c != "_offset"))).alias("l")
    )
    rows = last.select("l.*").where(f.col(OP).isNotNull())
    deletes = history.where(f.col(OP) == "d").select("_this", *(_state(c) for c in columns))
    rows, of_table = _followed(rows, deletes, columns)
    for column in of_table:
        rows = _looked_up(rows, key, column, current)
    values = {c: f.when(f.col(f"{_state(c)}.kind") == _SENT, f.col(f"{_state(c)}.value")) for c in columns}
    names = list(rows.select("image.*").columns)
    kept = f.array(*(f.when(f.col(_state(c)).isNull(), f.lit(c)) for c in columns))
    folded = rows.select(
        *(values.get(name, f.col("image")[name]).alias(name) for name in names),
        f.col(OP),
        f.filter(kept, lambda name: name.isNotNull()).alias(UNCHANGED),
        KEY,
    )
    return folded, tuple(columns)


def image(envelope: str = "") -> Column:
    """The row that a record speaks of: of a delete, what it was."""
    op, before, after = (f.col(envelope + name) for name in ("op", "before", "after"))
    return f.when(op == "d", before).otherwise(after)


def _history(records: DataFrame, key: tuple[str, ...], columns: list[str]) -> DataFrame:
    """Every record with, per column, what its value then was: sent, moved here from another key, or null: the table's."""
    place = f.struct(f.col("transaction.id").alias("tx"), f.col("source.lsn").alias("lsn")).alias("at")

    def known_by(row: str, name: str) -> Column:
        return f.struct(place, f.struct(*(f.col(row)[k].alias(k) for k in key)).alias("key")).alias(name)

    events = records.withColumn("image", image()).select(
        f.col("key").alias(KEY),
        f.col("offset").alias("_offset"),
        f.col("op").alias(OP),
        known_by("image", "_this"),
        known_by("before", "_past"),
        "image",
        "unchanged",
    )
    so_far = Window.partitionBy(KEY).orderBy("_offset").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    place_type = events.schema["_past"].dataType
    states = {}
    for column in columns:
        sent = f.struct(
            f.lit(_SENT).alias("kind"),
            f.col("image")[column].alias("value"),
            f.lit(None).cast(place_type).alias("past"),
        )
        moved = f.struct(
            f.lit(_MOVED).alias("kind"),
            f.lit(None).cast(events.select(f.col("image")[column]).schema[0].dataType).alias("value"),
            f.col("_past").alias("past"),
        )
        here = (
            f.when(f.col(OP) == "d", None)
            .when(~f.array_contains("unchanged", column), sent)
            .when(f.col(OP).isin("c", "r"), moved)
        )
        states[_state(column)] = f.last(here, ignorenulls=True).over(so_far)
    # At once: a plan as deep as a wide table has columns would overflow the stack.
    return events.withColumns(states)


def _followed(rows: DataFrame, deletes: DataFrame, columns: list[str]) -> tuple[DataFrame, list[str]]:
    """Rows whose value moved with a key change get what the old key had, step by step until none points to a change.

    Also says in which columns values are now the table's under an old key.
    """
    while True:
        # Each step is made before the next is looked at: a chain is short, its plan would not be.
        rows = rows.localCheckpoint()
        kinds = {
            (kind, c): f.max(f.col(f"{_state(c)}.kind") == kind) for c in columns for kind in (_MOVED, _TABLE, _LOST)
        }
        found = rows.agg(*(any_.alias(f"{kind} {c}") for (kind, c), any_ in kinds.items())).first()
        assert found is not None, "an aggregate of no rows is a row"
        if lost := [c for c in columns if found[f"{_LOST} {c}"]]:
            raise TableRefused(
                f"a key change carries the unchanged columns {lost} and the old key's delete is not in its batch",
                at_stake="the columns' values",
                repair="reload the table: the topic was not written by Twofold, or lost records",
            )
        moved = [c for c in columns if found[f"{_MOVED} {c}"]]
        if not moved:
            return rows, [c for c in columns if found[f"{_TABLE} {c}"]]
        for column in moved:
            rows = _step(rows, deletes, column)


def _step(rows: DataFrame, deletes: DataFrame, column: str) -> DataFrame:
    """One column's values that moved here become what the old key's row was when it moved away."""
    state = f.col(_state(column))
    there = deletes.select(f.col("_this").alias("_there"), state.alias("_found"))
    moved = state["kind"] == _MOVED
    met = rows.join(there, moved & (state["past"] == f.col("_there")), "left")

    def now(kind: str) -> Column:
        return f.struct(f.lit(kind).alias("kind"), state["value"].alias("value"), state["past"].alias("past"))

    step = (
        f.when(~f.coalesce(moved, f.lit(False)), state)
        .when(f.col("_there").isNull(), now(_LOST))
        .otherwise(f.coalesce(f.col("_found"), now(_TABLE)))
    )
    return met.withColumn(_state(column), step).drop("_there", "_found")


def _looked_up(
    rows: DataFrame, key: tuple[str, ...], column: str, current: Callable[[], DataFrame | None]
) -> DataFrame:
    """Rows whose value is the table's under an old key get it; a row in backfill may not be there yet, then null."""
    state = _state(column)
    wanted = f.col(f"{state}.kind") == _TABLE
    table = current()
    value_type = rows.select(f"{state}.value").schema[0].dataType
    found: Column = f.lit(None).cast(value_type)
    if table is not None and column in table.columns:
        speechless = f.lit(False)
        for k in key:
            speechless |= f.col(f"{state}.past.key.{k}").isNull()
        if not rows.where(wanted & speechless).isEmpty():
            raise TableRefused(
                f"a row whose key had a special value got another key, and {column} was not sent again",
                at_stake="that column's value",
                repair="reload the table: `twofold backfill start`",
            )
        old = [f.col(f"{state}.past.key.{k}") == f.col(f"_old_{k}") for k in key]
        values = table.select(*(f.col(k).alias(f"_old_{k}") for k in key), f.col(column).alias("_value"))
        rows = rows.join(values, [wanted, *old], "left")
        found = f.col("_value")
    past = f.col(f"{state}.past").alias("past")
    resolved = f.struct(f.lit(_SENT).alias("kind"), found.alias("value"), past)
    rows = rows.withColumn(state, f.when(wanted, resolved).otherwise(f.col(state)))
    return rows.drop("_value", *(f"_old_{k}" for k in key))


def _state(column: str) -> str:
    return f"_state_{column}"
