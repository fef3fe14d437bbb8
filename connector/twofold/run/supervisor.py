"""`twofold run`: recover, run, and recover again after every error that a restart can remedy.

Four errors end the process with their own status, because a person has to act: a refusal, a wrong
configuration, a missing requirement, and bytes that make no sense. After every other error the
process drops the memory, waits, and recovers: an absent server, a lost connection, a fence, a Kafka
error, an expired password where a command gives passwords. A slot that another instance holds is
waited for: this is the hot standby (`source.standby`).
"""

from __future__ import annotations

import gc
import logging
import random
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from twofold.config import Config
from twofold.errors import (
    AccessDenied,
    EndedElsewhere,
    Fenced,
    RunEnded,
    TransactionTimedOut,
    TwofoldError,
    UncertainEnd,
    Unreachable,
)
from twofold.kafka.late_ends import EndPatience
from twofold.run import last_refusal
from twofold.run.lookback import SINCE_LAST_COMMIT, LookbackWindow, since_oldest_open
from twofold.run.observer import NullObserver, Observer
from twofold.run.recovery import recover
from twofold.run.run import RefusedBehind, StopRequested
from twofold.source.diagnosis import SlotBusy
from twofold.source.provisioning import end_holder
from twofold.stream.streamed import StreamUnclear
from twofold.tables.topic_mismatch import TopicRestart
from twofold_avro.records import Pin

_log = logging.getLogger(__name__)

BACKOFF_S_MIN = 0.2
BACKOFF_S_MAX = 15.0
STANDBY_POLL_S = 0.5
LONG_ENOUGH_S = 30.0
"""After a run of this length the next error begins with a short wait again."""
OFTEN, OFTEN_WITHIN_S = 5, 600.0
"""The limit of a topic's restarts for the same table, each this soon after the one before. Beyond
it the topic is refused.
"""
PATIENCE_MAX = 1024
"""The greatest factor. The brokers' own limit comes first."""


def supervise(
    config: Config, stop: threading.Event, observer: Observer | None = None, *, take_over: bool = False
) -> None:
    """Recover and run until a stop, or until a person has to act.

    `take_over` first ends the slot's holder.
    """
    observer = observer or NullObserver()
    backoff_s = BACKOFF_S_MIN
    standing_by: str | None = None
    next_run = _NextRun(config)
    while not stop.is_set():
        begun, wait_s, recovered = time.monotonic(), 0.0, threading.Event()
        if standing_by is None:
            observer.recovering()
        try:
            if take_over:
                _end_holder(config)
                take_over = False
            _run(next_run, stop, observer, recovered)
        except StopRequested:
            _log.info("stopped during recovery")
        except SlotBusy as busy:
            if not config.source.standby:
                raise Fenced(f"source.standby is off, and {busy}") from busy
            if standing_by != busy.what:
                _log.info("standing by: %s", busy.what)
                observer.standing_by(busy.what)
                standing_by = busy.what
            stop.wait(STANDBY_POLL_S)
            continue
        except TwofoldError as error:
            if not _is_retried(error, config):
                last_refusal.remember(config, error)
                raise
            # After an uncertain end the transaction is committed: on a slow broker each run makes
            # progress. The other two are no failures.
            harmless = isinstance(error, UncertainEnd | TopicRestart | RefusedBehind)
            if harmless or time.monotonic() - begun > LONG_ENOUGH_S:
                backoff_s = BACKOFF_S_MIN
            wait_s = backoff_s * random.uniform(0.5, 1.5)  # noqa: S311  (jitter)
            _log.warning("the run has ended (%s: %s); recovering in %.1f s", type(error).__name__, error, wait_s)
            standing_by = None
            observer.ended(error, wait_s)
            _cut_tracebacks(error)
            next_run = next_run.after(error, recovered=recovered.is_set())
        # A Kafka client in a reference cycle keeps its threads and connections until Python
        # collects garbage by itself: in a long outage that is one client an attempt.
        gc.collect()
        stop.wait(wait_s)
        backoff_s = min(backoff_s * 2, BACKOFF_S_MAX)


class TopicsToRestart:
    """The topics that the next run restarts, and the runs after it until Kafka has the restart.

    The next run may end before that, because another table's topic must restart too. A later run
    without the first topic would meet that topic's rows again, and the two topics would alternate.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._times: dict[tuple[str, int], list[float]] = {}
        self._topics: dict[str, tuple[Pin | None, ...]] = {}
        """The topics, each with its pin before the restart; an empty tuple: no run has begun with
        the topic.
        """

    def add(self, met: TopicRestart) -> None:
        """Add a topic; refuse it if the same table causes this again and again.

        Stream and catalog then disagree on the table's key, or someone changes it all the time.
        """
        now = self._clock()
        recent = {which: times for which, times in self._times.items() if now - times[-1] < OFTEN_WITHIN_S}
        recent.setdefault((met.topic, met.oid), []).append(now)
        self._times = recent
        if len(recent[met.topic, met.oid]) > OFTEN and met.refusal is not None:
            raise met.refusal
        self._topics[met.topic] = ()

    def choose(self, pins: Mapping[str, Pin]) -> Collection[str]:
        """Return the topics that Kafka's pins do not show as restarted yet."""
        self._topics = {
            topic: (pins.get(topic),) for topic, before in self._topics.items() if before in {(), (pins.get(topic),)}
        }
        return self._topics.keys()


@dataclass(frozen=True, slots=True)
class _NextRun:
    """The changes to the next recovery that errors of earlier runs in this process cause."""

    config: Config
    patience: int = 1
    ends: EndPatience = field(default_factory=EndPatience)
    refused: RefusedBehind | None = None
    lookback: LookbackWindow | None = SINCE_LAST_COMMIT
    restart: TopicsToRestart = field(default_factory=TopicsToRestart)

    def after(self, error: TwofoldError, *, recovered: bool) -> _NextRun:  # noqa: PLR0911  (one flat dispatch)
        """Learn from an error.

        `recovered`: the run's recovery had finished, so its check was done.
        """
        known = replace(self, lookback=None) if recovered else self
        match error:
            case UncertainEnd():
                return replace(known, ends=self.ends.after(error))
            case TransactionTimedOut():
                return replace(known, patience=min(self.patience * 4, PATIENCE_MAX))
            case RefusedBehind():
                return replace(known, refused=error)
            case TopicRestart():
                self.restart.add(error)
                return replace(known, refused=None)
            case StreamUnclear():
                source = self.config.source.model_copy(update={"streaming": "off"})
                return replace(known, config=self.config.model_copy(update={"source": source}))
            case EndedElsewhere():
                return replace(known, lookback=since_oldest_open(self.config, self.patience))
        return known


def _run(next_run: _NextRun, stop: threading.Event, observer: Observer, recovered: threading.Event) -> None:
    """Recover, and run until a stop; or up to the refused change, which is refused then."""
    refused = next_run.refused
    upto = refused.at if refused else None
    with ExitStack() as opened:
        run = recover(
            next_run.config,
            stop,
            opened,
            patience=next_run.patience,
            retry_factor=next_run.ends.retry_factor,
            upto=upto,
            lookback=next_run.lookback,
            choose_restarts=next_run.restart.choose,
        )
        recovered.set()
        last_refusal.forget_where_kafka_does_not_know(next_run.config)
        observer.recovered(run.state, run.stream_id)
        run.go(observer)
    if refused is not None and not stop.is_set():
        raise refused.refusal


def _is_retried(error: TwofoldError, config: Config) -> bool:
    """Whether a restart can repair the error. A secret that expires may have expired on its way."""
    return isinstance(error, RunEnded | Unreachable | Fenced) or (
        isinstance(error, AccessDenied) and config.kafka.secrets_expire
    )


def _cut_tracebacks(error: BaseException) -> None:
    """Drop the error's frames, which hold the run's clients of Kafka.

    The error itself stays alive: confluent-kafka 2.16.0 loses a reference to it with each error
    that it raises while this one is handled, as when the clients are closed.
    """
    left: list[BaseException | None] = [error]
    while left:
        each = left.pop()
        if each is not None and each.__traceback__ is not None:
            each.__traceback__ = None
            left += [each.__cause__, each.__context__]


def _end_holder(config: Config) -> None:
    """End the slot's holder once. A later holder is a live rival, and is waited for."""
    pid = end_holder(config.conninfo, config.slot)
    if pid is not None:
        _log.warning("taking over: ended process %d, which held slot %s", pid, config.slot)
