"""The registrar waits for a server on the thread that reads: what cannot wait goes on meanwhile,
and a stop ends the wait.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any, cast

import pytest

from fixtures.connector import wait_until
from twofold.errors import Refused, Unreachable
from twofold.kafka import registrar as module
from twofold.kafka.registrar import Registrar
from twofold.run.run import StopRequested
from twofold.thread_owner import ThreadOwner
from twofold_avro.records import Pin

AWAY = Unreachable("the registry does not answer: it is frozen")


class Registry:
    """Answers when it may, from the thread that asks; before that with these errors."""

    def __init__(self) -> None:
        self.may_answer = threading.Event()
        self.errors: list[Exception] = []
        self.asked_by: list[str] = []
        self.together = threading.Barrier(4)
        self.asked: list[int] = []
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def has_latest(self, _subject: str, schema_id: int) -> bool:
        self.together.wait(20)
        self.asked.append(schema_id)
        if schema_id == 0:
            raise AWAY
        assert self.may_go_on.wait(20)
        return True

    def known_id(self, _subject: str, _schema: str) -> int:
        return 7

    def register(self, _subject: str, _schema: str) -> int:
        self.asked_by.append(threading.current_thread().name)
        if self.errors:
            raise self.errors.pop(0)
        assert self.may_answer.wait(20)
        return 7


@pytest.fixture
def registry() -> Registry:
    return Registry()


@pytest.fixture
def registrar(registry: Registry) -> Iterator[Registrar]:
    with closing(Registrar(cast("Any", registry), cast("Any", None), "p")) as made:
        yield made
    registry.may_answer.set()


def test_meanwhile_is_called_on_the_asking_thread_until_the_answer_is_there(
    registry: Registry, registrar: Registrar
) -> None:
    calls: list[str] = []

    def meanwhile() -> None:
        calls.append(threading.current_thread().name)
        if len(calls) == 3:
            registry.may_answer.set()

    registrar.begin(meanwhile)
    assert registrar.register_message("p.messages") == 7
    assert set(calls) == {threading.current_thread().name}
    assert registry.asked_by == ["registrar"]


def test_server_that_does_not_answer_is_asked_again_with_one_line_in_the_log(
    registry: Registry, registrar: Registrar, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_FIRST_PAUSE_S", 0.01)
    registry.errors = [AWAY, AWAY, AWAY]
    registry.may_answer.set()
    registrar.begin(lambda: None)
    with caplog.at_level(logging.INFO):
        assert registrar.register_message("p.messages") == 7
    assert [record.getMessage() for record in caplog.records] == [f"the stream waits up to 300 s, because {AWAY}"]


def test_patience_ends(registry: Registry, registrar: Registrar, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE_S", 0.0)
    registry.errors = [AWAY]
    registrar.begin(lambda: None)
    with pytest.raises(Unreachable):
        registrar.register_message("p.messages")


def test_refusal_is_raised_at_once(registry: Registry, registrar: Registrar) -> None:
    registry.errors = [Refused("no", at_stake="", repair="")]
    registrar.begin(lambda: None)
    with pytest.raises(Refused):
        registrar.register_message("p.messages")


def test_stop_ends_the_wait(registrar: Registrar) -> None:
    def meanwhile() -> None:
        raise StopRequested

    registrar.begin(meanwhile)
    with pytest.raises(StopRequested):
        registrar.register_message("p.messages")


def test_before_a_run_the_calling_thread_asks(registry: Registry, registrar: Registrar) -> None:
    """Recovery has its own way to tend the session."""
    registry.may_answer.set()
    assert registrar.register_message("p.messages") == 7
    assert registry.asked_by == [threading.current_thread().name]


def test_call_from_another_thread_is_named(registrar: Registrar) -> None:
    registrar.begin(lambda: None)
    found: list[str] = []

    def ask() -> None:
        try:
            registrar.register_message("p.messages")
        except AssertionError as error:
            found.append(str(error))

    other = threading.Thread(target=ask, name="a loader")
    other.start()
    other.join()
    assert found == [f"the registrar belongs to the thread {threading.current_thread().name}; a loader called it"]


def test_first_call_makes_the_owner() -> None:
    owner = ThreadOwner("it")
    other = threading.Thread(target=owner.check_first)
    other.start()
    other.join()
    with pytest.raises(AssertionError, match="it belongs to the thread"):
        owner.check()


def pin(value_schema_id: int) -> Pin:
    return Pin("public", "t", 6, "key", 7, value_schema_id)


def test_schemas_are_asked_for_ahead_four_at_once_without_a_wait(registry: Registry, registrar: Registrar) -> None:
    registrar.ask_ahead((f"p.public.t{number}", pin(number)) for number in range(1, 9))
    wait_until(lambda: len(registry.asked) == 8)


def test_tables_whose_rows_come_next_are_asked_for_first(registry: Registry, registrar: Registrar) -> None:
    registry.may_go_on.clear()
    pins = {f"p.public.t{number}": replace(pin(number), relation=number) for number in range(1, 21)}
    registrar.ask_ahead(pins.items())
    wait_until(lambda: len(registry.asked) == 4)
    assert registrar.is_asking_ahead
    registrar.ask_first([19, 2, 15, 404])
    registry.may_go_on.set()
    wait_until(lambda: len(registry.asked) == 20)
    assert {*registry.asked[4:8]} == {15, 19, 5, 6}
    wait_until(lambda: not registrar.is_asking_ahead)


def test_an_error_ends_what_is_asked_ahead(registry: Registry, registrar: Registrar) -> None:
    """The question at a table's first row meets it again."""
    registrar.ask_ahead((f"p.public.t{number}", pin(0)) for number in range(1, 9))
    wait_until(lambda: len(registry.asked) == 4)
    wait_until(lambda: not any(thread.name.startswith("schemas-") for thread in threading.enumerate()))
    assert registry.asked == [0] * 4
