"""A step of recovery on another thread: what it gives, what it raises, and what becomes of it when
we are told to stop.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack

import pytest

from twofold.errors import Refused
from twofold.run.recovery import InterruptibleStep
from twofold.run.run import StopRequested


def test_gives_what_the_step_gives_and_tends_meanwhile() -> None:
    interruptible, tended = InterruptibleStep(threading.Event(), ExitStack()), threading.Event()
    interruptible.tend = tended.set
    assert interruptible(lambda: tended.wait(20)) is True


@pytest.mark.parametrize("error", [Refused("this", at_stake="that", repair="those"), TimeoutError("its own")])
def test_raises_what_the_step_raises(error: Exception) -> None:
    def step() -> None:
        raise error

    with pytest.raises(type(error)) as raised:
        InterruptibleStep(threading.Event(), ExitStack())(step)
    assert raised.value is error


def test_a_refusal_is_heard_although_we_were_told_to_stop() -> None:
    stop = threading.Event()
    stop.set()

    def step() -> None:
        raise Refused("this", at_stake="that", repair="those")

    with pytest.raises(Refused):
        InterruptibleStep(stop, ExitStack())(step)


def test_a_step_that_is_left_closes_what_it_opens_later() -> None:
    stop, answered, closed, opened = threading.Event(), threading.Event(), threading.Event(), ExitStack()

    def step() -> None:
        answered.wait()
        opened.callback(closed.set)

    stop.set()
    with pytest.raises(StopRequested), opened:
        InterruptibleStep(stop, opened)(step)
    answered.set()
    assert closed.wait(20)
