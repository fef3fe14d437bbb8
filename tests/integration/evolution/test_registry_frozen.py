"""The registry is frozen in the midst of traffic with a new table: the replication session stays
alive, what lies before the new table is committed, and nothing is lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import psycopg
import pytest

from fixtures.connector import Maker, frozen, wait_until
from helpers.connector.ledger import SCHEMA, TABLES
from twofold.stack import RegistryServer


@pytest.mark.slow
@pytest.mark.parametrize(
    ("timeout_s", "frozen_s"), [(3, 7), pytest.param(20, 180, marks=pytest.mark.slow)], ids=["short", "long"]
)
def test_the_registry_is_frozen_while_a_new_table_is_written(
    connector: Maker, own_registry: Callable[[], RegistryServer], timeout_s: int, frozen_s: int
) -> None:
    registry = own_registry()
    tables = [*(f"public.{table}" for table in TABLES), "e.*"]
    here = connector(registry_server=registry, init=False, source={"tables": tables, "backfill": False})
    here.sql(SCHEMA, "CREATE SCHEMA e")
    impatient = psycopg.conninfo.make_conninfo(here.conninfo, options=f"-c wal_sender_timeout={timeout_s}s")
    here.configure({"source": {"dsn": impatient}})
    assert here.init().returncode == 0
    run = here.start()
    here.sql("INSERT INTO account VALUES (1, 0, 'its schema is known')")
    accounts = here.tail("account")
    assert accounts.wait_for(lambda s: s.key["id"] == 1)
    sender, said = here.slot("active_pid"), len(run.said())
    with frozen(registry.pid), psycopg.connect(here.conninfo, autocommit=True) as connection:
        connection.execute("INSERT INTO account VALUES (2, 0, 'before the new table')")
        connection.execute("CREATE TABLE e.fresh (id int PRIMARY KEY, note text)")
        thaw_at, number = time.monotonic() + frozen_s, 0
        while time.monotonic() < thaw_at:
            number += 1
            with connection.transaction():
                connection.execute("INSERT INTO e.fresh VALUES (%s, 'of a new table')", [number])
                connection.execute("INSERT INTO account VALUES (%s, 0, 'behind it')", [number + 2])
                connection.execute("SELECT pg_sleep(0.1)")
        assert accounts.wait_for(lambda s: s.key["id"] == 2), "it is committed while the stream waits"
        assert {seen.key["id"] for seen in accounts.seen} == {1, 2}
    fresh = f"{here.prefix}.e.fresh"
    assert accounts.wait_for(lambda s: s.key["id"] == number + 2, unless=lambda: run.dead)
    assert here.slot("active_pid") == sender, "no walsender timeout"
    assert sorted(s.key["id"] for s in here.reader.read([fresh])) == [*range(1, number + 1)]
    assert sorted(s.key["id"] for s in here.read("account")) == [*range(1, number + 3)]
    lines = [line for line in run.said()[said:].splitlines() if line]
    assert len(lines) == 1, lines
    assert "the stream waits up to 300 s, because the registry" in lines[0]


def test_a_stop_does_not_wait_for_a_frozen_registry(
    connector: Maker, own_registry: Callable[[], RegistryServer]
) -> None:
    registry = own_registry()
    here = connector(registry_server=registry)
    run = here.start()
    here.sql("INSERT INTO account VALUES (1, 0, 'its schema is known')")
    accounts = here.tail("account")
    assert accounts.wait_for(lambda s: s.key["id"] == 1)
    with frozen(registry.pid):
        here.sql("ALTER TABLE account ADD more int", "INSERT INTO account VALUES (2, 0, 'its schema is new', 2)")
        wait_until(lambda: "the stream waits" in run.said())
        run.stop()
    here.start()
    assert accounts.wait_for(lambda s: s.key["id"] == 2)
    here.check()
