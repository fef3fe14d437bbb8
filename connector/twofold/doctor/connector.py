"""Checks what the connector itself left behind: its last refusal, topics without their slot, and
tables without their topics.
"""

from __future__ import annotations

from collections.abc import Iterator

from twofold.config import Config
from twofold.doctor.finding import SHOWN_MAX, Finder, Finding, start_over
from twofold.errors import TwofoldError
from twofold.inspect.checks import slot_gone
from twofold.inspect.status_report import find_lost_topics, read_progress_if_any
from twofold.kafka.progress import RecoveredState
from twofold.run.last_refusal import recall
from twofold.source import identity
from twofold_common.positions import Lsn

_finding = Finder("connector")


def examine(config: Config) -> Iterator[Finding]:
    """Look at the slot and at Kafka's records. A server that is away has findings of its own."""
    try:
        slot, is_known = identity.slot_state(config.conninfo, config.slot), True
    except TwofoldError:
        slot, is_known = None, False
    try:
        recovered = read_progress_if_any(config)
    except TwofoldError:
        recovered = None
    if slot is None or slot.active_pid is None:
        yield from _stopped(config, recovered, is_gone=is_known and slot is None)
    if slot is not None and recovered is not None:
        for _, refusal in find_lost_topics(config, recovered)[:SHOWN_MAX]:
            yield _finding.must("topic_lost", refusal.what, refusal.at_stake, refusal.repair)


def _stopped(config: Config, recovered: RecoveredState | None, *, is_gone: bool) -> Iterator[Finding]:
    applied = Lsn(recovered.progress.applied_lsn) if recovered and recovered.progress else None
    if is_gone:
        if applied:
            gone = slot_gone(config.slot, config.prefix, applied)
            yield _finding.must("slot_gone", gone.what, gone.at_stake, *start_over(config.prefix))
            return
        yield _finding.note(
            "slot", f"slot {config.slot} does not exist", "nothing is published before it exists", "twofold init"
        )
    if refusal := recall(config, recovered):
        yield _finding.must(
            "refused",
            f"twofold run ended {refusal}",
            refusal.at_stake,
            refusal.repair,
            "twofold run  # which forgets this with its first commit",
        )
