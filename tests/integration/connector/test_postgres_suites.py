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
@pytest.mark.parametrize(
    ("files", "publishers", "equal"),
    [
        pytest.param(SHORT, False, 40, marks=pytest.mark.timeout(300), id="some files"),
        pytest.param((), True, 500, marks=pytest.mark.timeout(3600), id="the whole schedule"),
    ],
)
def test_what_files_leave_is_streamed_and_loaded(
    trial: Trial, files: tuple[str, ...], publishers: bool, equal: int
) -> None:
    ran, streamed = trial.stream(files or trial.schedule.files(), publishers=publishers)
    outcomes = {"stream": streamed, "load": trial.load()}
    print(report("", ran, outcomes))
    for outcome in outcomes.values():
        assert not outcome.different
        assert outcome.states()["equal"] > equal
    assert not outcomes["load"].refusals
    assert publishers or not streamed.refusals
