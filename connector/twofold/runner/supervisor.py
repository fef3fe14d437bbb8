"""`twofold run`: recover, run, and after every error that a new start can mend, recover again.

A refusal, a wrong configuration, missing ground and bytes that make no sense (they would come again) end the process with their own status: a person has to act. Everything else (a server that is away, a connection lost, a fence, a Kafka error)
drops what is in memory, waits, and takes the one path again. A slot that another instance holds is waited for: that is the hot standby (`source.standby`).
"""

from __future__ import annotations

import gc
import logging
import random
import threading
import time
from contextlib import ExitStack

from twofold.config import Config
from twofold.errors import Fenced, Outlasted, RunEnded, Unreachable
from twofold.runner.aside import Stopped
from twofold.runner.observer import Observer, Silent
from twofold.runner.recovery import recover
from twofold.runner.run import RefusedBehind
from twofold.runner.streamed import StreamUnclear
from twofold.source.setup import end_holder
from twofold.source.trouble import SlotBusy

_log = logging.getLogger(__name__)

BACKOFF_S_MIN = 0.2
BACKOFF_S_MAX = 15.0
STANDBY_POLL_S = 0.5
LONG_ENOUGH_S = 30.0
"""A run that lasted this long was a good one: the next error starts with a short wait again."""
PATIENCE_MAX = 1024
"""The brokers' own limit is met before."""


def supervise(
    config: Config, stop: threading.Event, observer: Observer | None = None, *, take_over: bool = False
) -> None:
    """Until told to stop, or until a person has to act. `take_over`: whoever holds the slot now is ended first."""
    observer = observer or Silent()
    backoff_s = BACKOFF_S_MIN
    standing_by: str | None = None
    patience = 1
    refused: RefusedBehind | None = None
    while not stop.is_set():
        begun, wait_s = time.monotonic(), 0.0
        if standing_by is None:
            observer.recovering()
        try:
            if take_over:
                _end_holder(config)
                take_over = False
            _run(config, stop, observer, patience, refused)
        except Stopped:
            _log.info("stopped in the middle of recovery")
        except SlotBusy as busy:
            if not config.source.standby:
                raise Fenced(f"{busy}; not waited for, as source.standby says") from busy
            if standing_by != str(busy):
                _log.info("standing by: %s", busy)
                observer.standing_by(str(busy))
                standing_by = str(busy)
            stop.wait(STANDBY_POLL_S)
            continue
        except (RunEnded, Unreachable, Fenced) as error:
            if time.monotonic() - begun > LONG_ENOUGH_S:
                backoff_s = BACKOFF_S_MIN
            wait_s = backoff_s * random.uniform(0.5, 1.5)  # noqa: S311  (jitter)
            _log.warning("the run has ended (%s: %s); recovering in %.1f s", type(error).__name__, error, wait_s)
            standing_by = None
            observer.ended(error, wait_s)
            _cut_tracebacks(error)
            if isinstance(error, Outlasted):
                patience = min(patience * 4, PATIENCE_MAX)
            refused = error if isinstance(error, RefusedBehind) else refused
            if isinstance(error, StreamUnclear):
                source = config.source.model_copy(update={"streaming": "off"})
                config = config.model_copy(update={"source": source})
        # A client of Kafka that hangs in a cycle keeps its threads and connections until there is so much garbage that Python looks for it: through a long outage one an attempt.
        gc.collect()
        stop.wait(wait_s)
        backoff_s = min(backoff_s * 2, BACKOFF_S_MAX)


def _run(
    config: Config, stop: threading.Event, observer: Observer, patience: int, refused: RefusedBehind | None
) -> None:
    """Recover, and run until told to stop; or up to what was `refused`, which is refused then."""
    with ExitStack() as opened:
        run = recover(config, stop, opened, patience=patience, upto=refused.at if refused else None)
        observer.recovered(run.state)
        run.go(observer)
    if refused is not None and not stop.is_set():
        raise refused.refusal


def _cut_tracebacks(error: BaseException) -> None:
    """Let go of the run: its frames hold its clients of Kafka. And the error stays: confluent-kafka 2.16.0 loses a reference to it with each error that it raises while this one is handled, as when the clients are closed."""
    left: list[BaseException | None] = [error]
    while left:
        each = left.pop()
        if each is not None and each.__traceback__ is not None:
            each.__traceback__ = None
            left += [each.__cause__, each.__context__]


def _end_holder(config: Config) -> None:
    """Once: who comes after that is a rival that lives, and is waited for."""
    pid = end_holder(config.conninfo, config.slot)
    if pid is not None:
        _log.warning("taking over: process %d, which held slot %s, is ended", pid, config.slot)
