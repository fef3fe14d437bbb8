"""What is left of a run that has ended."""

from __future__ import annotations

import threading
import weakref
from typing import Any, NoReturn, cast

import pytest

from twofold.errors import RunEnded
from twofold.runner import supervisor


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
