"""The answer of /api/status, which the page draws; without row values and secrets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from twofold import __version__
from twofold.config import Config
from twofold.row_path import slowness
from twofold.run.observer import BackfillProgress
from twofold.watch.activity import Activity
from twofold.watch.activity_view import ActivityView
from twofold.watch.cause import find_cause
from twofold.watch.history import INTERVAL_S, Sample
from twofold.watch.in_doubt_answers import InDoubtAnswers, list_ended
from twofold.watch.sampler import Sampler
from twofold.watch.server import Health
from twofold.watch.table_counts import TableCount
from twofold_common.positions import Lsn, format_lsn

LISTED_MAX = 300
"""A database may have tens of thousands, and the page asks every two seconds."""


def list_tables(counts: Sequence[TableCount], backfills: Sequence[BackfillProgress]) -> dict[str, Any]:
    """The list, how many tables there are, and how many of them are in which state."""
    loads = {each.table: each for each in backfills}
    tables = [_table(each, loads.pop(each.table, None)) for each in counts]
    tables += [_table(TableCount("", load.table, "running"), load) for load in loads.values()]
    tables.sort(
        key=lambda each: (
            not each["errors"],
            each["state"] == "ready" and not each["lacks"],
            -(each["changed_at"] or 0),
            each["table"],
        )
    )
    return {
        "tables": tables[:LISTED_MAX],
        "tables_total": len(tables),
        "tables_loading": sum(each["state"] in {"loading", "waiting", "paused"} for each in tables),
        "tables_stale": sum(each["state"] == "stale" for each in tables),
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
        "lacks": count.lacks,
        "repair": count.repair,
    }


def _state(count: TableCount, load: BackfillProgress | None) -> str:
    if load is not None:
        return {"reading": "loading", "paused": "paused", "waiting for locks": "waiting"}[load.state]
    if count.gone:
        return "not published"
    if count.stale and count.load == "ready":
        return "stale"
    return {"ready": "ready", "waiting": "waiting", "running": "loading", "paused": "paused"}[count.load]


def take_snapshot(
    config: Config,
    activity: Activity,
    health: Health,
    sampler: Sampler,
    in_doubt: InDoubtAnswers,
    *,
    now: float,
    after: float,
) -> dict[str, Any]:
    """`after`: samples up to then are known to whoever asks."""
    view = activity.view()
    count = sum(view.totals.latencies)
    cause = find_cause(
        view,
        now=now,
        behind_s=sampler.source_lag(view, now)[1],
        source_error=sampler.source_error,
        source_away_since=sampler.source_away_since,
    )
    return {
        "name": config.name,
        "version": __version__,
        "slow": slowness(),
        "now": now,
        "started_at": view.started_at,
        "phase": view.phase,
        "since": view.since,
        "detail": view.detail,
        "healthy": health.healthy,
        "ready": health.ready,
        "why": health.why,
        "cause": cause and asdict(cause),
        "path": _path(config, view, sampler, now),
        "mirror": _mirror(view, sampler, now),
        "mirror_error": sampler.mirror_error,
        "totals": {
            "rows": view.totals.rows,
            "transactions": view.totals.transactions,
            "commits": sum(view.totals.commits.values()),
            "recoveries": view.totals.recoveries,
            "latency_ms": round(view.totals.latency_s / count * 1000, 1) if count else None,
        },
        "every_s": INTERVAL_S,
        "samples": [_values(sample) for sample in tuple(sampler.history.samples) if sample.at > after],
        "minutes": [_values(sample) for sample in tuple(sampler.history.minutes) if sample.at > after],
        **list_tables(activity.tables(), view.backfills),
        "hold_s": config.prepared.hold,
        "doubt_s": config.prepared.doubt_warning,
        "in_doubt": in_doubt.list_all(view, sampler.source, now),
        "branches_unread": list(in_doubt.unread),
        "ended": list_ended(view),
        "holders": [
            {**asdict(each), "confirmed_lsn": _lsn(each.confirmed_lsn), "own": each.slot == config.slot}
            for each in (sampler.source.holders if sampler.source else ())
        ],
        "journal": [asdict(line) for line in reversed(view.journal)],
    }


def _path(config: Config, view: ActivityView, sampler: Sampler, now: float) -> dict[str, Any]:
    at, source = view.positions, sampler.source
    behind_bytes, behind_s = sampler.source_lag(view, now)
    return {
        "server": f"PostgreSQL {source.version}" if source else "PostgreSQL",
        "slot": config.slot,
        "bootstrap": config.kafka.bootstrap,
        "prefix": config.prefix,
        "source_error": sampler.source_error,
        "source_away_since": sampler.source_away_since,
        "source_lsn": _lsn(source.wal_lsn if source else None),
        "read_lsn": _lsn(at.read),
        "applied_lsn": _lsn(at.applied),
        "confirmed_lsn": _lsn(at.flushed),
        "sequence": at.sequence,
        "unread_bytes": max(0, source.wal_lsn - at.read) if source and at.read else None,
        "unread_s": sampler.unread_s(view, now),
        "behind_bytes": behind_bytes,
        "behind_s": behind_s,
        "waiting": at.waiting,
    }


def _mirror(view: ActivityView, sampler: Sampler, now: float) -> dict[str, Any] | None:
    place, lag = sampler.mirror, sampler.mirror_lag(view, now)
    if place is None or lag is None:
        return None
    return {
        "sequence": place.sequence,
        "applied_lsn": _lsn(place.applied_lsn),
        "committed_at": place.committed_us / 1e6,
        "former": place.reads_former(view.positions.stream_id),
        "gone_since": sampler.mirror_gone_since(now),
        **asdict(lag),
    }


def _values(sample: Sample) -> list[float | int | None]:
    return [sample.at, sample.rows_s, sample.transactions_s, sample.latency_s, sample.behind_bytes, sample.behind_s]


def _lsn(position: Lsn | None) -> str | None:
    return format_lsn(position) if position else None
