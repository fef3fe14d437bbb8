"""What is left of a run that has ended."""

from __future__ import annotations

import threading
import weakref
from typing import Any, NoReturn, cast

import pytest

from twofold.config import Config
from twofold.errors import EndedElsewhere, RunEnded, Unreachable
from twofold.run import supervisor
from twofold.run.lookback import SINCE_LAST_COMMIT, LookbackWindow
from twofold.run.next_run import NextRun


class Client:
    """Of Kafka, say: with threads and connections for as long as something holds it."""


def test_nothing_of_a_run_is_held_though_something_holds_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    stop, held = threading.Event(), list[BaseException]()
    clients: list[weakref.ref[Client]] = []

    def fail(client: Client) -> NoReturn:
        clients.append(weakref.ref(client))
        raise ConnectionError("reset")

    def recover(*_: object, **__: object) -> NoReturn:
        if len(clients) == 3:
            stop.set()
        client = Client()
        try:
            fail(client)
        except ConnectionError as error:
            held.append(error)
            held.append(ended := RunEnded("the run has ended"))
            raise ended from error

    monkeypatch.setattr(supervisor, "recover", recover)
    monkeypatch.setattr(supervisor, "BACKOFF_S_MAX", 0.0)
    supervisor.supervise(cast("Any", None), stop)
    assert len(clients) == 4
    assert len(held) == 8
    assert [client() for client in clients] == [None] * 4


ENDED = (RunEnded("an error"), EndedElsewhere("ended"), Unreachable("away"), RunEnded("an error"))
WIDE = LookbackWindow(before_s=90, to_the_end=True)


@pytest.mark.parametrize(
    ("comes_through", "expected"),
    [(False, [SINCE_LAST_COMMIT, SINCE_LAST_COMMIT, WIDE, WIDE]), (True, [SINCE_LAST_COMMIT, None, WIDE, None])],
)
def test_how_far_recoveries_look_back(
    comes_through: bool, expected: list[LookbackWindow | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of a process, and after somebody ended a transaction: each until a recovery has
    come through.
    """
    stop, looked = threading.Event(), list[LookbackWindow | None]()
    kafka = {"bootstrap": "x:1", "transaction_timeout": 90}
    config = Config.model_validate(
        {"name": "x", "source": {"dsn": "dbname=x"}, "kafka": kafka, "registry": {"url": "http://x"}}
    )

    class Run:
        state, stream_id = None, ""

        def go(self, _observer: object) -> NoReturn:
            raise ENDED[len(looked) - 1]

    def recover(next_run: NextRun, *_: object) -> Run:
        looked.append(next_run.lookback)
        if len(looked) == len(ENDED):
            stop.set()
        if not comes_through:
            raise ENDED[len(looked) - 1]
        return Run()

    monkeypatch.setattr(supervisor, "recover", recover)
    monkeypatch.setattr(supervisor, "BACKOFF_S_MAX", 0.0)
    supervisor.supervise(config, stop)
    assert looked == expected
