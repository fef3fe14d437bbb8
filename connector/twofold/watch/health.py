"""Judge whether the process does its work: the answers of /healthz and /readyz, with the reason."""

from __future__ import annotations

from dataclasses import dataclass

from twofold.watch.activity_view import ActivityView, Phase

_WORDS: dict[Phase, str] = {
    "starting": "starting",
    "recovering": "recovering",
    "standby": "standing by",
    "running": "running, the slot is held",
    "waiting": "waiting before the next recovery",
    "refused": "refused",
    "failed": "failed",
    "stopped": "stopped",
}


@dataclass(frozen=True, slots=True)
class Health:
    """`healthy`: a restart would not help. `ready`: it carries changes now."""

    healthy: bool
    ready: bool
    why: str


def judge_health(view: ActivityView, *, turn_bound_s: float) -> Health:
    """The loop comes round at least twice a second when idle; a call to Kafka may take it
    `turn_bound_s`.
    """
    late_s = view.last_turn_s
    if late_s is not None and late_s > turn_bound_s:
        most = f"{turn_bound_s:.0f} s is the most it may take"
        return Health(healthy=False, ready=False, why=f"stalled: the loop came round {late_s:.0f} s ago, and {most}")
    healthy = view.phase not in {"refused", "failed"}
    return Health(healthy, view.phase == "running", _WORDS[view.phase] + (f": {view.detail}" if view.detail else ""))
