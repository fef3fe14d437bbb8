"""When a job begins again after a server was away, and when it ends."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Sequence

import pytest
from pyspark.errors import PySparkException

from twofold_spark.errors import Refused, ServerAway, SetupError, explain_away
from twofold_spark.job import running

AWAY = ServerAway("the server is away")
OF_SPARK = PySparkException("org.postgresql.util.PSQLException: Connection to 127.0.0.1:5 refused.")


class Job:
    """Fails with these, then ends. It has worked before, and works in each try if it `works`."""

    def __init__(self, *errors: Exception, works: bool = True) -> None:
        self._errors = list(errors)
        self._works = works
        self.runs = 0
        self.worked_at: float | None = time.monotonic()

    def __call__(self, ending: threading.Event) -> None:
        self.runs += 1
        if self._works:
            self.worked_at = time.monotonic()
        if self._errors:
            raise self._errors.pop(0)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "PAUSES_S", (0.0, 0.0))


def run(job: Job) -> None:
    running.run_while_servers_return("mirror", "kafka:9092", job, lambda: job.worked_at)


@pytest.mark.parametrize("errors", [(AWAY,), (OF_SPARK,), (AWAY, OF_SPARK)])
def test_a_job_begins_again_while_a_server_is_away(
    errors: Sequence[Exception], capsys: pytest.CaptureFixture[str]
) -> None:
    run(job := Job(*errors))
    assert job.runs == len(errors) + 1
    assert capsys.readouterr().err.count("it begins again in 0 s") == len(errors)


def test_it_ends_when_the_server_stays_away() -> None:
    job = Job(*[AWAY] * 3)
    with pytest.raises(ServerAway):
        run(job)
    assert job.runs == 3


def test_what_ran_for_long_has_all_tries_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_STEADY_S", -1.0)
    run(job := Job(*[AWAY] * 5))
    assert job.runs == 6


def test_tries_that_only_wait_for_long_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka's client waits for a minute and more before it fails."""
    monkeypatch.setattr(running, "_STEADY_S", -1.0)
    job = Job(*[AWAY] * 5, works=False)
    with pytest.raises(ServerAway):
        run(job)
    assert job.runs == 3


@pytest.mark.parametrize(
    "error",
    [
        SetupError("no"),
        Refused("no", at_stake="", repair=""),
        PySparkException("no"),
        PySparkException("java.net.SocketException: x\nCaused by: java.io.IOException: No space left on device"),
    ],
)
def test_every_other_error_ends_it(error: Exception) -> None:
    job = Job(error)
    with pytest.raises(type(error)):
        run(job)
    assert job.runs == 1


def test_a_job_that_has_done_nothing_ends() -> None:
    job = Job(AWAY, works=False)
    job.worked_at = None
    with pytest.raises(ServerAway):
        run(job)


def test_a_job_that_was_asked_to_end_does_not_begin_again() -> None:
    """A signal came in its batch, which then failed."""

    class Asked(Job):
        def __call__(self, ending: threading.Event) -> None:
            ending.set()
            super().__call__(ending)

    job = Asked(AWAY)
    with pytest.raises(ServerAway):
        run(job)
    assert job.runs == 1


def test_a_signal_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "PAUSES_S", (60.0,))

    def tell(_: str) -> None:
        threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGTERM]).start()

    monkeypatch.setattr(running, "print_progress", tell)
    run(job := Job(AWAY))
    assert job.runs == 1


@pytest.mark.parametrize(
    "cause",
    [
        "java.net.ConnectException: Connection refused",
        "org.apache.kafka.common.errors.TimeoutException: Call(callName=listOffsets) timed out",
        "org.postgresql.util.PSQLException: FATAL: the database system is starting up",
        "org.postgresql.util.PSQLException: An I/O error occurred while sending to the backend.",
        "org.apache.iceberg.exceptions.ServiceUnavailableException: Service unavailable: 503",
        "SQLSTATE 57P01",
        "SQLSTATE 08001",
        "SQLSTATE 53300",
    ],
)
def test_the_message_has_the_cause(cause: str) -> None:
    found = explain_away(
        f"An error occurred while calling o42.save.\n: java.lang.RuntimeException\nCaused by: {cause}\n\tat a.B.c"
    )
    assert found is not None
    assert cause in str(found)
    assert "\n" not in str(found)


def test_a_wrong_statement_is_no_server_that_is_away() -> None:
    assert explain_away("org.postgresql.util.PSQLException: ERROR: permission denied for schema public") is None
