"""Keeps late requests for the end of a Kafka transaction away from later transactions.

Kafka's older transaction protocol, which librdkafka speaks, has one epoch for a producer's life. A
request for an end (EndTxn) names that epoch and no transaction. If its connection is lost,
librdkafka repeats it on another one. The first request may reach the coordinator later, and then it
ends whatever this producer has open. The broker processes the requests of one connection in order,
so only an abandoned request can be late.

The duration of a call shows whether there was a second request. librdkafka pauses for at least 0.8
of `retry.backoff.ms` before it repeats any request. This holds for every cause: a lost connection,
a timeout, a coordinator that moved or is loading. A call that was answered within 0.75 of that
pause therefore had one request, with however many brokers. The flush before is not part of the
call. Both clocks are the monotonic one. A process that was stopped during the call has taken too
long, which costs a recovery.

Otherwise the id must be initialised again, which raises the epoch and fences every late request.
The producer must not do that itself: a replaced connector would take the epoch back from its
successor. Recovery does it, after it has taken the replication slot.

A client with transaction version 2 (KIP-890) has an epoch for each transaction, and needs nothing
of this module. Ends that somebody else makes are found all the same: by `open_check` before a
commit, and by `run.lookback` at recovery. `lost_ends` finds those that Kafka forgets.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from twofold.errors import QuickAgain, UncertainEnd

RETRY_BACKOFF_MS: Final = 1000
"""The setting `retry.backoff.ms`. librdkafka repeats no request before 0.8 of this time has passed:
it draws the pause from 80 to 120 per cent.
"""
SENT_ONCE_S = 0.75 * RETRY_BACKOFF_MS / 1000
"""A transaction's end that was answered within this time was sent once."""
RETRY_FACTOR_MAX: Final = 16
"""The greatest factor. Ends of up to 12 s are then no reason to recover, and a lost request is
repeated after 16 s.
"""
SLOW_AGAIN_S: Final = 300.0
"""Two uncertain ends within this time mean slow brokers, and no lost connection."""
QUICK_S = 600.0
"""The time for which every end must have been quick before a run that waits for slow ends stops."""


def retry_options(retry_factor: int) -> dict[str, int]:
    """Return librdkafka's pause before it repeats a request."""
    return dict.fromkeys(("retry.backoff.ms", "retry.backoff.max.ms"), RETRY_BACKOFF_MS * retry_factor)


class EndRule:
    """The rule for the ends of one producer."""

    def __init__(self, retry_factor: int) -> None:
        self._retry_factor = retry_factor
        self.slow_at = time.monotonic()
        """When an end last took longer than the usual bound, by the monotonic clock."""

    @property
    def is_patient(self) -> bool:
        """Whether an end may take longer than usual."""
        return self._retry_factor > 1

    def judge(self, doing: str, took_s: float, *, retried: bool) -> UncertainEnd | None:
        """Return an error unless the request of this end was surely sent once. After such an error
        nothing more may happen under this epoch.
        """
        bound_s = SENT_ONCE_S * self._retry_factor
        if took_s > SENT_ONCE_S:
            self.slow_at = time.monotonic()
        if not retried and took_s <= bound_s:
            return None
        return UncertainEnd(
            f"Kafka: {doing} succeeded after {took_s:.2f} s, but only within {bound_s:g} s was its request surely sent once: a second one may arrive late;"
            " the run recovers with a new epoch, which fences it (the connection to the coordinator was lost, or the brokers are slow)"
        )


def leave_patience(rules: Iterable[EndRule]) -> None:
    """End a run that waits longer than necessary, when slow brokers are quick again."""
    everyone = list(rules)
    quick_s = time.monotonic() - max(rule.slow_at for rule in everyone)
    if any(rule.is_patient for rule in everyone) and quick_s > QUICK_S:
        raise QuickAgain(
            f"Kafka: every end was quick for {quick_s:.0f} s: the run recovers, so that a lost request is repeated sooner again"
        )


@dataclass(frozen=True, slots=True)
class EndPatience:
    """The factor on the time of the next run's ends: above 1 for brokers that stay slow."""

    retry_factor: int = 1
    uncertain_at: float | None = None

    def after(self, error: UncertainEnd) -> EndPatience:
        """Learn from the end of a run."""
        if isinstance(error, QuickAgain):
            return EndPatience()
        now = time.monotonic()
        is_slow = self.uncertain_at is not None and now - self.uncertain_at < SLOW_AGAIN_S
        return EndPatience(min(self.retry_factor * 2, RETRY_FACTOR_MAX) if is_slow else self.retry_factor, now)
