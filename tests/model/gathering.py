"""What the collector does with a prepared transaction whose outcome may follow soon: nobody hears
of its prepare, until its outcome has come or until it is announced at any moment.
"""

from __future__ import annotations

from model.logs import Record
from twofold.bridge import State, events
from twofold.bridge.events import NO_PREPARE


def may_hold(bridge: State, record: Record) -> bool:
    """The rule: neither Kafka nor the ledger can know of it."""
    return record.kind in "PE" and not bridge.is_applied(record.start) and record.identity not in bridge.ledger


def unannounced(held: tuple[Record, ...]) -> events.Unannounced:
    return events.Unannounced(held[0].start if held else NO_PREPARE)


def resolved(prepare: Record, outcome: Record) -> events.PlainRead:
    """The run's event. Several outcomes in one event are as several events without anything
    between them.
    """
    commits = outcome.kind == "K"
    rows = len(prepare.rows) if commits else 0
    return events.PlainRead(
        int(rows > 0),
        rows,
        outcome.end,
        oldest_prepare=prepare.start,
        committed=int(commits),
        rolled_back=int(not commits),
    )
