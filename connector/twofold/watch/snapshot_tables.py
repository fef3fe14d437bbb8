"""The page's list of tables: first those that want attention, then those that changed last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from twofold.run.observer import BackfillProgress
from twofold.watch.table_counts import TableCount

LISTED_MAX = 300
"""A database may have tens of thousands, and the page asks every two seconds."""


def list_tables(counts: Sequence[TableCount], backfills: Sequence[BackfillProgress]) -> dict[str, Any]:
    """The list, how many tables there are, and how many of them are in which state."""
    loads = {each.table: each for each in backfills}
    tables = [_table(each, loads.pop(each.table, None)) for each in counts]
    tables += [_table(TableCount("", load.table, "running"), load) for load in loads.values()]
    tables.sort(
        key=lambda each: (not each["errors"], each["state"] == "ready", -(each["changed_at"] or 0), each["table"])
    )
    return {
        "tables": tables[:LISTED_MAX],
        "tables_total": len(tables),
        "tables_loading": sum(each["state"] in {"loading", "waiting", "paused"} for each in tables),
    }


def _table(count: TableCount, load: BackfillProgress | None) -> dict[str, Any]:
    return {
        "topic": count.topic,
        "table": count.table,
        "rows": count.rows,
        "changed_at": count.changed_at,
        "state": _state(count, load),
        "load": load and asdict(load),
        "errors": count.errors,
        "error": count.error,
        "schema_id": count.schema_id,
        "stale": count.stale,
    }


def _state(count: TableCount, load: BackfillProgress | None) -> str:
    if load is not None:
        return {"reading": "loading", "paused": "paused", "waiting for locks": "waiting"}[load.state]
    if count.gone:
        return "not published"
    if count.stale and count.load == "ready":
        return "stale"
    return {"ready": "ready", "waiting": "waiting", "running": "loading", "paused": "paused"}[count.load]
