"""A standby is promoted with the failover slot that it has kept: the connector goes on from there,
or refuses where the new primary lacks what was published.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from fixtures.connector import Maker, wait_until
from helpers.connector.workload import Workload
from helpers.source.standby import SLOT, ServerPair, ask, standby_of
from integration.ops.test_watching import get, port_of, status
from twofold.errors import Refused
from twofold.stack import PostgresServer
from twofold_reader import wait

pytestmark = pytest.mark.timeout(600)


class Pair(ServerPair):
    """The source of the connector is the primary."""

    def wait_for_slot(self) -> None:
        """Until the standby has the connector's slot, to keep: not before the primary's slot has
        moved beyond where the standby could begin.
        """
        synced = f"SELECT synced AND NOT temporary FROM pg_replication_slots WHERE slot_name = '{self.here.prefix}'"

        def has_it() -> object:
            ask(self.primary, "SELECT pg_log_standby_snapshot()")
            return ask(self.standby, synced)

        wait_until(has_it, 120, "the standby has the slot")

    def fail_over(self) -> None:
        super().fail_over()
        self.here.configure({"source": {"dsn": self.standby.dsn()}})


@pytest.fixture
def make_pair(connector: Maker, own_postgres: Callable[..., PostgresServer], open_folder: Path):  # type: ignore[no-untyped-def]
    with ExitStack() as ending:

        def make(version: str, **settings: str) -> Pair:
            primary = own_postgres(version=version, settings=settings)
            standby = standby_of(primary, open_folder / "standby")
            ending.callback(standby.stop)
            return Pair(primary, standby, connector(conninfo=primary.dsn(), source={"failover": True}))

        yield make


MakePair = Callable[..., Pair]


@pytest.mark.parametrize(
    "version", [pytest.param("17", marks=pytest.mark.slow), pytest.param("18", marks=pytest.mark.core)]
)
def test_goes_on_with_prepared_transactions_open_across_the_promotion(version: str, make_pair: MakePair) -> None:
    """The primary sends the connector nothing that the standby lacks
    (synchronized_standby_slots).
    """
    pair = make_pair(version, synchronized_standby_slots=SLOT)
    here = pair.here
    work = Workload(here, seed=12)
    work.running = run = here.start()
    work.run()
    work.settle()
    here.caught_up()
    pair.wait_for_slot()
    work.run()
    gids = work.four_in_doubt()
    work.plain()
    here.caught_up()
    pair.wait_for_replay()
    run.kill9()
    pair.fail_over()
    work.connect()
    work.running = run = here.start()
    assert "; 0 in doubt" not in run.said()
    work.check_promoted(gids)
    run.kill9()
    work.running = here.start()
    work.check()


def is_visible(port: int, position: str) -> bool:
    return bool(json.loads(get(port, f"/api/wait?position={position}")[1])["visible"])


@pytest.mark.core
def test_refuses_a_promoted_standby_that_lacks_published_transactions(make_pair: MakePair) -> None:
    pair = make_pair("18")
    here = pair.here
    here.configure({"status": {"listen": "127.0.0.1:0"}})
    run = here.start()
    port = port_of(run.said)
    here.sql("INSERT INTO account VALUES (1, 1, 'both have it')")
    here.caught_up()
    pair.wait_for_slot()
    pair.wait_for_replay()
    pair.standby.stop()
    here.sql("INSERT INTO account VALUES (2, 1, 'the standby never had it')")
    here.caught_up()
    assert is_visible(port, "0/1")
    pair.primary.kill()
    wait_until(lambda: status(port)["phase"] != "running")
    assert not is_visible(port, "0/1"), "whose position it is, nobody knows"
    run.kill9()
    pair.standby.start()
    pair.fail_over()
    # The source alone tells it while no connector has started there; then Kafka tells it too.
    asked = here.twofold("wait", "0/1")
    assert (asked.returncode, "the server is on timeline 2; timeline 1," in asked.stderr) == (5, True)
    error = here.refusal()
    assert type(error) is Refused
    assert "the server is on timeline 2; timeline 1, on which changes up to" in str(error)
    assert "left it at" in str(error)
    kafka = {"bootstrap.servers": here.reader.bootstrap}
    with pytest.raises(Refused, match="the connector has refused to go on: the server is on timeline 2"):
        wait("0/1", here.prefix, kafka, here.config.registry.url)
