"""The sink's thread: one job after the other, and answers that come later."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from twofold.bridge import Event, events
from twofold.errors import RunEnded
from twofold.run.worker import Pending, Worker
from twofold_common.positions import Lsn, PreparedIdentity

OPENED = events.PreparedOpened(PreparedIdentity(1, "a"))
COMMITTED = events.MainCommitted(Lsn(7))


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker()
    yield worker
    assert worker.close(10)


def submit(worker: Worker, answer: Event | Pending | None) -> None:
    worker.submit(lambda: answer, meanwhile=lambda: None)


def take(worker: Worker, number: int) -> list[Event]:
    found: list[Event] = []
    while len(found) < number:
        found += worker.answers(wait_s=0.1)
    return found


def test_the_next_job_does_not_wait_for_an_answer_that_comes_later(worker: Worker) -> None:
    acknowledged = threading.Event()
    submit(worker, Pending(acknowledged.is_set, OPENED))
    submit(worker, COMMITTED)
    assert take(worker, 1) == [COMMITTED]
    assert worker.busy
    acknowledged.set()
    assert take(worker, 1) == [OPENED]


def test_such_an_answer_comes_before_that_of_the_job_that_has_waited_for_it(worker: Worker) -> None:
    acknowledged = threading.Event()

    def commit() -> Event:
        acknowledged.set()
        return COMMITTED

    submit(worker, Pending(acknowledged.is_set, OPENED))
    worker.submit(commit, meanwhile=lambda: None)
    assert take(worker, 2) == [OPENED, COMMITTED]


def test_an_answer_that_cannot_come_ends_the_run(worker: Worker) -> None:
    def fails() -> bool:
        raise RunEnded("fenced")

    submit(worker, Pending(fails, OPENED))
    with pytest.raises(RunEnded, match="fenced"):
        take(worker, 1)
    with pytest.raises(RunEnded, match="fenced"):
        submit(worker, COMMITTED)
