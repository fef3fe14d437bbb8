"""librdkafka's log: nothing is said again and again, and nothing new is kept back."""

from __future__ import annotations

import logging

import pytest

from twofold.kafka.client import REPEAT_S, RateLimitedLog

AWAY = "FAIL [rdkafka#{}] [thrd:a:1/0]: a:1/0: Connect to ipv4#a:1 failed: Connection refused (after {}ms in state CONNECT)"


class Log:
    """At any time that the test likes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self._filter = RateLimitedLog()
        monkeypatch.setattr("twofold.kafka.client.time.monotonic", lambda: self.now)

    def says(self, text: str) -> str | None:
        record = logging.LogRecord("twofold.librdkafka", logging.ERROR, "", 0, "%s", (text,), None)
        return record.getMessage() if self._filter.filter(record) else None


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    return Log(monkeypatch)


def test_the_same_of_any_client_is_said_once_in_a_while_and_how_often_it_was(log: Log) -> None:
    first = AWAY.format("producer-1", 0)
    assert log.says(first) == first
    for number in range(2, 9):
        log.now += 1
        assert log.says(AWAY.format(f"consumer-{number}", number)) is None
    log.now += REPEAT_S - 7
    assert log.says(first) == f"{first} (7 similar lines in the last 30 s)"
    assert log.says(first) is None


def test_what_is_new_is_said_at_once(log: Log) -> None:
    assert log.says(AWAY.format("producer-1", 0))
    assert log.says(AWAY.format("producer-1", 0).replace("a:1", "b:2"))
    assert log.says("TXNERR [rdkafka#producer-1]: fenced")
    log.now += REPEAT_S
    assert log.says(AWAY.format("producer-1", 0)) == AWAY.format("producer-1", 0), "none was kept back"


def test_a_broker_that_does_not_answer_is_not_called_old(log: Log) -> None:
    guess = "ApiVersionRequest failed: Local: Timed out: probably due to broker version < 0.10 (see api.version.request configuration)"
    assert log.says(guess) == (
        "ApiVersionRequest failed: Local: Timed out: the broker accepts connections and does not answer: it is frozen or overloaded"
    )
