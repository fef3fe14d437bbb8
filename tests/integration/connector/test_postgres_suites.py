"""PostgreSQL's own regression suite goes through the connector: what its topics tell is what its
tables hold.

All of it is slow: the suite comes from a mirror of Debian, which drops a version when the next one
is there, and what `make test-all` shows must not fall with it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fixtures.stack import Kafka, Registry
from suites.__main__ import report
from suites.archive import suite
from suites.trial import STREAMS_EARLY, Servers, Trial
from twofold.stack import PostgresServer

SHORT = ("test_setup", "insert", "update", "numeric", "arrays", "prepared_xacts", "truncate")


@pytest.fixture
def trial(
    own_postgres: Callable[..., PostgresServer], kafka: Kafka, registry: Registry, open_folder: Path, prefix: str
) -> Trial:
    """The suite of the server's own major version."""
    server = own_postgres(settings=STREAMS_EARLY)
    servers = Servers(server.dsn(), kafka.bootstrap, registry.url)
    return Trial(suite(server.version), servers, open_folder / "trial", prefix)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_some_files_leave_is_streamed_and_loaded(trial: Trial) -> None:
    ran, streamed = trial.stream(SHORT, publishers=False)
    outcomes = {"stream": streamed, "load": trial.load()}
    print(report("", ran, outcomes))
    for outcome in outcomes.values():
        assert not outcome.different
        assert not outcome.refusals
        assert outcome.states()["equal"] > 40


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_what_the_whole_schedule_leaves_is_streamed_and_loaded(trial: Trial) -> None:
    ran, streamed = trial.stream(trial.schedule.files(), publishers=True)
    outcomes = {"stream": streamed, "load": trial.load()}
    print(report("", ran, outcomes))
    for outcome in outcomes.values():
        assert not outcome.different
        assert outcome.states()["equal"] > 500
    assert not outcomes["load"].refusals
