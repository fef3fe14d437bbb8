"""Why a connector is behind or does nothing. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from twofold.watch.activity_view import ActivityView

Party = Literal["kafka", "registry", "postgresql", "slot", "connector"]

SILENT_S = 3.0
"""A call that is not answered for this long is told."""
BEHIND_S = 10.0
"""A smaller lag is normal: a connector commits what a turn has gathered."""
_PARTIES: tuple[tuple[str, Party], ...] = (("Kafka", "kafka"), ("registry", "registry"), ("PostgreSQL", "postgresql"))
_AWAY: dict[Party, str] = {
    "kafka": "Kafka does not answer",
    "registry": "the schema registry does not answer",
    "postgresql": "PostgreSQL does not answer",
}


@dataclass(frozen=True, slots=True)
class Cause:
    """`words` is a sentence without its time, which is `since`."""

    party: Party
    words: str
    since: float | None = None


def find_cause(
    view: ActivityView,
    *,
    now: float,
    behind_s: float | None,
    source_error: str = "",
    source_away_since: float | None = None,
) -> Cause | None:
    """Return why the connector is behind or does nothing; None if nothing is in its way."""
    match view.phase:
        case "refused" | "failed" | "stopped":
            return Cause("connector", "not running", view.since)
        case "standby":
            return Cause("slot", f"waits for the slot: {view.detail}", view.since)
        case "starting" | "recovering" | "waiting":
            if view.outage is not None:
                return Cause(*_name(view.outage.text, view.outage.error), view.outage.since)
            return Cause("connector", "the connector recovers", view.since)
        case "running":
            return _while_running(view, now, behind_s, source_error, source_away_since)


def _while_running(
    view: ActivityView, now: float, behind_s: float | None, source_error: str, source_away_since: float | None
) -> Cause | None:
    if view.unanswered_since is not None and now - view.unanswered_since > SILENT_S:
        return Cause("kafka", "Kafka has not answered a commit", view.unanswered_since)
    if source_error and source_away_since is not None:
        return Cause("postgresql", _AWAY["postgresql"], source_away_since)
    if view.last_turn_s is not None and view.last_turn_s > SILENT_S:
        return Cause("connector", "the connector waits for an answer of a server", now - view.last_turn_s)
    if behind_s is not None and behind_s > BEHIND_S:
        return Cause("connector", "the connector works through what was written meanwhile")
    return None


def _name(text: str, error: str) -> tuple[Party, str]:
    """Return the server that the error's first sentence names first, and the cause in words."""
    head = text.partition("\n")[0]
    found = [(at, party) for name, party in _PARTIES if (at := head.find(name)) >= 0]
    party = min(found)[1] if found else "connector"
    if error == "Unreachable" and party in _AWAY:
        return party, _AWAY[party]
    return party, f"the run ended: {head}"
