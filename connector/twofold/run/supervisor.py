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
from contextlib import ExitStack

from twofold.config import Config
from twofold.errors import (
    AccessDenied,
    Fenced,
    RunEnded,
    TwofoldError,
    UncertainEnd,
    Unreachable,
)
from twofold.run import last_refusal
from twofold.run.next_run import NextRun
from twofold.run.observer import Observer
from twofold.run.recovery import recover
from twofold.run.run import RefusedBehind, StopRequested
from twofold.source.diagnosis import SlotBusy
from twofold.source.provisioning import end_holder
from twofold.tables.topic_mismatch import TopicRestart

_log = logging.getLogger(__name__)

BACKOFF_S_MIN = 0.2
BACKOFF_S_MAX = 15.0
STANDBY_POLL_S = 0.5
LONG_ENOUGH_S = 30.0
"""After a run of this length the next error begins with a short wait again."""


def supervise(
    config: Config, stop: threading.Event, observer: Observer | None = None, *, take_over: bool = False
) -> None:
    """Recover and run until a stop, or until a person has to act.

    `take_over` first ends the slot's holder.
    """
    observer = observer or Observer()
    backoff_s = BACKOFF_S_MIN
    standing_by: str | None = None
    next_run = NextRun(config)
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


def _run(next_run: NextRun, stop: threading.Event, observer: Observer, recovered: threading.Event) -> None:
    """Recover, and run until a stop; or up to the refused change, which is refused then."""
    with ExitStack() as opened:
        run = recover(next_run, stop, opened)
        recovered.set()
        last_refusal.forget_where_kafka_does_not_know(next_run.config)
        observer.recovered(run.state, run.stream_id)
        run.go(observer)
    if next_run.refused is not None and not stop.is_set():
        raise next_run.refused.refusal


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
