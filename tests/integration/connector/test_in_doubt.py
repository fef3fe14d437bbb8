"""Transactions that stay in doubt for long, and hundreds of them: nobody else waits for more than
the time for which one may hold readers up.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from statistics import quantiles

import psycopg
import pytest

from fixtures.connector import Installation, Maker
from helpers.connector.topics import Tail, gid_of
from twofold.stack import PostgresServer

SLACK_S = 30
"""What a machine that is busy with other tests may add."""


class Others:
    """Plain transactions beside those in doubt, and how long each took to be visible to a
    read_committed reader.
    """

    def __init__(self, here: Installation) -> None:
        self._here = here
        self._visible: Tail = here.tail("transfer")
        self._given = 0
        self.took: list[float] = []

    def one(self, within_s: float) -> None:
        self._given += 1
        name = f"other {self._given}"
        began = time.monotonic()
        self._here.sql(f"INSERT INTO transfer VALUES ('{name}', 0, 1)")
        assert self._visible.wait_for(lambda s: s.value["after"]["id"] == name, within_s)
        self.took.append(time.monotonic() - began)

    def say(self, when: str) -> None:
        cut = quantiles(self.took, n=20, method="inclusive")
        print(
            f"{when}: {len(self.took)} transactions of others, visible after {cut[9]:.2f} s (median), {cut[18]:.2f} s (95 %), {max(self.took):.2f} s (longest)"
        )


def live_through(here: Installation, others: Others, minutes: float, hold_s: float, kills: int) -> None:
    """Others go on for so long; the connector is killed at even distances, and started again."""
    began, killed = time.monotonic(), 0
    while killed < kills or time.monotonic() - began < minutes * 60:
        if killed < kills and time.monotonic() - began > minutes * 60 * (killed + 1) / (kills + 1):
            here.runs[-1].kill9()
            here.start()
            killed += 1
        others.one(hold_s + SLACK_S)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("minutes", "hold_s", "kills"),
    [(0.05, 1, 1), pytest.param(10, 5, 0, marks=pytest.mark.slow), pytest.param(10, 5, 2, marks=pytest.mark.slow)],
)
def test_one_in_doubt_for_long(minutes: float, hold_s: float, kills: int, connector: Maker) -> None:
    here = connector(prepared={"hold": hold_s})
    here.start()
    others = Others(here)
    here.prepare("doubt", "INSERT INTO transfer SELECT 'doubt ' || n, n, 1 FROM generate_series(1, 50) n")
    live_through(here, others, minutes, hold_s, kills)
    others.say(f"one in doubt for {minutes:g} minutes, hold {hold_s:g} s, killed {kills} times")
    assert not [s for s in here.read("transfer") if gid_of(s) == "doubt"]
    here.sql("COMMIT PREPARED 'doubt'")
    topics = here.check()
    assert len([s for s in topics.rows if gid_of(s) == "doubt"]) == 50


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("number", "minutes", "hold_s"), [(100, 0.05, 1), pytest.param(500, 10, 5, marks=pytest.mark.slow)]
)
def test_hundreds_in_doubt_and_a_pool_of_eight(
    number: int, minutes: float, hold_s: float, connector: Maker, own_postgres: Callable[..., PostgresServer]
) -> None:
    server = own_postgres(settings={"max_prepared_transactions": "600", "fsync": "off"})
    here = connector(conninfo=server.dsn(), prepared={"hold": hold_s, "pool": 8})
    here.start()
    others = Others(here)
    gids = [f"g{n}" for n in range(1, number + 1)]
    with psycopg.connect(here.conninfo, autocommit=True) as session:
        for n, gid in enumerate(gids, 1):
            session.execute("BEGIN")
            session.execute("INSERT INTO account VALUES (%s, 1, 'in doubt')", (n,))
            session.execute("INSERT INTO transfer VALUES (%s, %s, 1)", (gid, n))
            session.execute(f"PREPARE TRANSACTION '{gid}'".encode())
    live_through(here, others, minutes, hold_s, kills=1)
    others.say(f"{number} in doubt for {minutes:g} minutes, pool 8, hold {hold_s:g} s, killed once")
    random.Random(6).shuffle(gids)
    committed = {gid for n, gid in enumerate(gids) if n % 3}
    with psycopg.connect(here.conninfo, autocommit=True) as session:
        for gid in gids:
            session.execute(f"{'COMMIT' if gid in committed else 'ROLLBACK'} PREPARED '{gid}'".encode())
    topics = here.check()
    assert {gid_of(s) for s in topics.rows} - {None} == committed
