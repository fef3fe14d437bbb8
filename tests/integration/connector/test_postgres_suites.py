"""PostgreSQL's own regression suite goes through the connector: what its topics tell is what its tables hold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fixtures.stack import Kafka, Registry
from suites.__main__ import report
from suites.archive import suite
from suites.trial import Servers, Trial
from twofold.stack import PostgresServer

SHORT = ("test_setup", "insert", "update", "numeric", "arrays", "prepared_xacts", "truncate", "alter_table")


@pytest.fixture
def trial(
    own_postgres: Callable[..., PostgresServer], kafka: Kafka, registry: Registry, open_folder: Path, prefix: str
) -> Trial:
    """The suite of the server's own major version."""
    server = own_postgres()
    return Trial(
        suite(server.version), Servers(server.dsn(), kafka.bootstrap, registry.url), open_folder / "trial", prefix
    )


@pytest.mark.timeout(240)
def test_what_some_files_leave_is_loaded(trial: Trial) -> None:
    ran = trial.run(SHORT)
    outcome = trial.load()
    print(report("", ran, {"load": outcome}))
    assert outcome.states()["equal"] > 40
    assert not outcome.different
    assert not outcome.refusals


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_what_the_whole_schedule_leaves_is_loaded(trial: Trial) -> None:
    ran = trial.run(trial.schedule.files())
    outcome = trial.load()
    print(report("", ran, {"load": outcome}))
    assert outcome.states()["equal"] > 500
    assert not outcome.different
    assert not outcome.refusals
