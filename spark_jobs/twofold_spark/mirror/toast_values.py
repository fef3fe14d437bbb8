"""Fills in TOASTed values that PostgreSQL did not send because they are unchanged.

Only a batch with such values needs this module. For each such column the value is the first of
these.

1. The last value sent within the batch since the row was inserted.
2. Where a key change made the row: the value of the row under its old key at that moment. That
   value may in turn have come from another key.
3. The table's value. Under the row's own key the sink keeps it; under an old key it is read here.

A change of the key is a delete and an insert at the same place in the write-ahead log. That place,
not an offset, joins the insert to its past, because the two keys may lie in different partitions.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from twofold_spark.errors import TableRefused
from twofold_spark.mirror.folded_rows import cache_until_closed
from twofold_spark.row_columns import KEY, OP, UNCHANGED
from twofold_spark.sources.decoding import row_image

_SENT, _MOVED, _TABLE, _LOST = "sent", "moved", "table", "lost"


def fill_unchanged(
    records: DataFrame, key: tuple[str, ...], read_current: Callable[[], DataFrame | None], caches: ExitStack
) -> tuple[DataFrame, tuple[str, ...]]:
    """Return the last state of every key, filled in, and the columns with unchanged values.

    A row's `UNCHANGED` lists the columns whose value the table keeps.
    """
    columns = sorted(row[0] for row in records.select(f.explode("unchanged")).distinct().collect())
    history = cache_until_closed(_trace_values(records, key, columns), caches)
    last = history.groupBy(KEY).agg(
        f.max(f.struct("_offset", *(c for c in history.columns if c != "_offset"))).alias("l")
    )
    rows = last.select("l.*").where(f.col(OP).isNotNull())
    deletes = history.where(f.col(OP) == "d").select("_this", *(_state(c) for c in columns))
    rows, of_table = _follow_key_changes(rows, deletes, columns)
    for column in of_table:
        rows = _look_up(rows, key, column, read_current)
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


def _trace_values(records: DataFrame, key: tuple[str, ...], columns: list[str]) -> DataFrame:
    """Add to every record where each column's value comes from.

    It was sent, it moved here from another key, or it is the table's (null).
    """
    place = f.struct(f.col("transaction.id").alias("tx"), f.col("source.lsn").alias("lsn")).alias("at")

    def identify(row: str, name: str) -> Column:
        return f.struct(place, f.struct(*(f.col(row)[k].alias(k) for k in key)).alias("key")).alias(name)

    events = records.withColumn("image", row_image()).select(
        f.col("key").alias(KEY),
        f.col("offset").alias("_offset"),
        f.col("op").alias(OP),
        identify("image", "_this"),
        identify("before", "_past"),
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
    # All at once: a plan with one step for each column of a wide table would overflow the stack.
    return events.withColumns(states)


def _follow_key_changes(rows: DataFrame, deletes: DataFrame, columns: list[str]) -> tuple[DataFrame, list[str]]:
    """Give values that moved with a key change the old key's value, until none is left.

    Also return the columns with values that are now the table's under an old key.
    """
    while True:
        # Materialize each step before the next: a chain of key changes is short, but its plan would
        # be long.
        rows = rows.localCheckpoint()
        kinds = {
            (kind, c): f.max(f.col(f"{_state(c)}.kind") == kind) for c in columns for kind in (_MOVED, _TABLE, _LOST)
        }
        found = rows.agg(*(any_.alias(f"{kind} {c}") for (kind, c), any_ in kinds.items())).first()
        assert found is not None, "an aggregate of no rows is a row"
        if lost := [c for c in columns if found[f"{_LOST} {c}"]]:
            raise TableRefused(
                f"a key change has the unchanged columns {lost}, and the old key's delete is not in its batch",
                at_stake="the columns' values",
                repair="reload the table (`twofold backfill start`): Twofold did not write the topic, or the topic lost records",
            )
        moved = [c for c in columns if found[f"{_MOVED} {c}"]]
        if not moved:
            return rows, [c for c in columns if found[f"{_TABLE} {c}"]]
        for column in moved:
            rows = _follow_once(rows, deletes, column)


def _follow_once(rows: DataFrame, deletes: DataFrame, column: str) -> DataFrame:
    """Replace one column's moved values by what the old key's row had when it moved away."""
    state = f.col(_state(column))
    old = deletes.select(f.col("_this").alias("_old"), state.alias("_found"))
    moved = state["kind"] == _MOVED
    met = rows.join(old, moved & (state["past"] == f.col("_old")), "left")

    def with_kind(kind: str) -> Column:
        return f.struct(f.lit(kind).alias("kind"), state["value"].alias("value"), state["past"].alias("past"))

    step = (
        f.when(~f.coalesce(moved, f.lit(False)), state)
        .when(f.col("_old").isNull(), with_kind(_LOST))
        .otherwise(f.coalesce(f.col("_found"), with_kind(_TABLE)))
    )
    return met.withColumn(_state(column), step).drop("_old", "_found")


def _look_up(
    rows: DataFrame, key: tuple[str, ...], column: str, read_current: Callable[[], DataFrame | None]
) -> DataFrame:
    """Read values that are the table's under an old key.

    A value is null if a backfill has not brought its row yet.
    """
    state = _state(column)
    wanted = f.col(f"{state}.kind") == _TABLE
    table = read_current()
    value_type = rows.select(f"{state}.value").schema[0].dataType
    found: Column = f.lit(None).cast(value_type)
    if table is not None and column in table.columns:
        inexpressible = f.lit(False)
        for k in key:
            inexpressible |= f.col(f"{state}.past.key.{k}").isNull()
        if not rows.where(wanted & inexpressible).isEmpty():
            raise TableRefused(
                f"a row changed its key from a special value, and the value of {column} was not sent with it",
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
