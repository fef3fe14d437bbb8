"""What /api/status answers: one JSON object that the page draws. No row values, no secrets; positions are texts as PostgreSQL prints them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from twofold import __version__
from twofold.config import Config
from twofold.gids import describe
from twofold.ops.chronicle import View
from twofold.ops.health import Health
from twofold.ops.marks import Mark
from twofold.ops.sampler import INTERVAL_S, Sampler
from twofold_common.positions import Lsn, format_lsn


def snapshot(
    config: Config, view: View, health: Health, sampler: Sampler, *, now: float, after: float
) -> dict[str, Any]:
    """`after`: samples that the asker has already."""
    return {
        "name": config.name,
        "version": __version__,
        "now": now,
        "started_at": view.started_at,
        "phase": view.phase,
        "since": view.since,
        "detail": view.detail,
        "healthy": health.healthy,
        "ready": health.ready,
        "why": health.why,
        "path": _path(config, view, sampler, now),
        "mirror": _mirror(view, sampler, now),
        "mirror_error": sampler.mirror_error,
        "totals": {
            "rows": view.totals.rows,
            "transactions": view.totals.transactions,
            "commits": sum(view.totals.commits.values()),
            "recoveries": view.totals.recoveries,
            "latency_ms": _mean_ms(view),
        },
        "every_s": INTERVAL_S,
        "samples": [list(asdict(sample).values()) for sample in list(sampler.samples) if sample.at > after],
        "hold_s": config.prepared.hold,
        "doubt_s": config.prepared.doubt_warning,
        "in_doubt": in_doubt(view, sampler),
        "settled": [_mark(mark) for mark in reversed(view.marks.past)],
        "backfills": [asdict(backfill) for backfill in view.backfills],
        "holders": [
            {**asdict(each), "confirmed_lsn": _lsn(each.confirmed_lsn), "own": each.slot == config.slot}
            for each in (sampler.source.holders if sampler.source else ())
        ],
        "journal": [asdict(entry) for entry in reversed(view.journal)],
    }


def in_doubt(view: View, sampler: Sampler) -> list[dict[str, Any]]:
    """What the stream brought, with what PostgreSQL knows of it; and what PostgreSQL has and the stream has not brought yet."""
    there = {(each.xid, each.gid): each for each in (sampler.source.prepared if sampler.source else ())}
    found = []
    for identity, mark in view.marks.live.items():
        known = there.pop((identity.xid, identity.gid), None)
        found.append(
            {
                **_mark(mark),
                "owner": known.owner if known else "",
                "prepared_at": known.prepared_at if known else mark.read_at,
            }
        )
    ended = {(mark.identity.xid, mark.identity.gid) for mark in view.marks.past}
    found += [
        {
            "gid": each.gid,
            "shown": describe(each.gid),
            "xid": each.xid,
            "rows": None,
            "state": "not yet read",
            "owner": each.owner,
            "prepared_at": each.prepared_at,
        }
        for key, each in there.items()
        if key not in ended
    ]
    return sorted(found, key=lambda each: float(each["prepared_at"]))


def _path(config: Config, view: View, sampler: Sampler, now: float) -> dict[str, Any]:
    at, source = view.positions, sampler.source
    behind_bytes, behind_s = sampler.behind(view, now)
    return {
        "server": f"PostgreSQL {source.version}" if source else "PostgreSQL",
        "slot": config.slot,
        "bootstrap": config.kafka.bootstrap,
        "prefix": config.prefix,
        "source_error": sampler.source_error,
        "source_lsn": _lsn(source.wal_lsn if source else None),
        "read_lsn": _lsn(at.read),
        "applied_lsn": _lsn(at.applied),
        "confirmed_lsn": _lsn(at.flushed),
        "sequence": at.sequence,
        "unread_bytes": max(0, source.wal_lsn - at.read) if source and at.read else None,
        "behind_bytes": behind_bytes,
        "behind_s": behind_s,
        "waiting": at.waiting,
    }


def _mirror(view: View, sampler: Sampler, now: float) -> dict[str, Any] | None:
    place, lag = sampler.mirror, sampler.mirror_lag(view, now)
    if place is None or lag is None:
        return None
    return {
        "sequence": place.sequence,
        "applied_lsn": _lsn(place.applied_lsn),
        "committed_at": place.committed_us / 1e6,
        **asdict(lag),
    }


def _mark(mark: Mark) -> dict[str, Any]:
    return {
        "gid": mark.identity.gid,
        "shown": describe(mark.identity.gid),
        "xid": mark.identity.xid,
        "rows": mark.rows,
        "state": mark.state,
        "read_at": mark.read_at,
        "opened_at": mark.opened_at,
        "parked_at": mark.parked_at,
        "park_reason": mark.park_reason,
        "ended_at": mark.ended_at,
        "outcome": mark.outcome,
    }


def _mean_ms(view: View) -> float | None:
    count = sum(view.totals.latencies)
    return round(view.totals.latency_s / count * 1000, 1) if count else None


def _lsn(position: Lsn | None) -> str | None:
    return format_lsn(position) if position else None
