"""A PostgreSQL that is told to shut down waits for its walsenders: until a client has confirmed all
that was sent, which none can while a prepared transaction is in doubt.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from fixtures.connector import Maker, wait_until
from helpers.connector.topics import gid_of
from twofold.stack import PostgresServer

FAST = signal.SIGINT
"""What `pg_ctl stop -m fast` sends."""


@pytest.mark.parametrize(
    ("version", "hold"),
    [
        pytest.param("18", 30.0, id="open", marks=pytest.mark.core),
        pytest.param("15", 0.5, id="parked", marks=pytest.mark.slow),
        pytest.param("15", 30.0, id="open-15", marks=pytest.mark.slow),
        pytest.param("18", 0.5, id="parked-18", marks=pytest.mark.slow),
    ],
)
def test_a_transaction_in_doubt_does_not_keep_postgresql_from_shutting_down(
    version: str, hold: float, connector: Maker, own_postgres: Callable[..., PostgresServer]
) -> None:
    server = own_postgres(version=version)
    here = connector(conninfo=server.dsn(), prepared={"hold": hold})
    run = here.start()
    here.prepare("doubt", "INSERT INTO transfer VALUES ('doubt', 1, 1)")
    here.caught_up()
    state = "parked" if hold < 1 else "open"
    wait_until(lambda: [s for s in here.records("prepared") if s and s["state"] == state])
    os.kill(server.pid, FAST)
    wait_until(lambda: not Path(f"/proc/{server.pid}").exists(), 90, "PostgreSQL has ended")
    server.stop()
    server.start()
    here.sql("COMMIT PREPARED 'doubt'")
    topics = here.check()
    assert [s.value["after"]["id"] for s in topics.rows if gid_of(s) == "doubt"] == ["doubt"]
    run.stop()
