"""The registry goes away while rows are written: what needs no new schema goes on, what does waits,
nothing is lost, and all is there when it is back. Answers get lost: nobody waits for ever.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fixtures.connector import Maker, wait_until
from helpers.connector.ledger import SCHEMA
from helpers.connector.topics import Reader, Seen
from helpers.security.guards import Door
from twofold.errors import Unreachable
from twofold.inspect.status_report import backfills, read_progress
from twofold.kafka.schema_registry import Registry
from twofold.stack import RegistryServer


@pytest.fixture
def door(registry: Any) -> Iterator[Door]:
    made = Door(registry.url)
    yield made
    made.shut()


def test_a_lost_answer_is_asked_for_again_and_not_for_ever(door: Door, registry: Any, prefix: str) -> None:
    schema = '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}]}'
    client = Registry(door.url, 2.0)
    door.to_lose = 1
    known = client.register(f"{prefix}-value", schema)
    assert door.to_lose == 0
    door.to_lose = 100
    begun = time.monotonic()
    with pytest.raises(Unreachable, match="does not answer: "):
        client.versions(f"{prefix}-value")
    assert time.monotonic() - begun < 20
    door.to_lose = 0
    assert client.known_id(f"{prefix}-value", schema) == known


def test_schema_that_was_registered_or_looked_up_is_not_asked_for(door: Door, registry: Any, prefix: str) -> None:
    schema = '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}]}'
    first, second = Registry(door.url, 1.0), Registry(door.url, 1.0)
    known = first.register(f"{prefix}-value", schema)
    assert second.known_id(f"{prefix}-value", schema) == known
    door.shut()
    assert first.schema(known) == second.schema(known) == schema
    door.reopen()


def has(key: int) -> Callable[[Seen], bool]:
    return lambda s: bool(s.value and s.value["after"]["id"] == key)


@pytest.mark.core
def test_publishing_resumes_where_it_stopped(connector: Maker, door: Door, registry: Any) -> None:
    here = connector(registry_server=door, registry={"timeout": 5.0})
    here.reader = Reader(here.reader.bootstrap, registry.url)  # the test's own eyes stay open
    run = here.start()
    here.sql("INSERT INTO account VALUES (1, 1, 'x')")
    tail = here.tail("account")
    assert tail.wait_for(has(1))

    door.shut()
    here.sql("INSERT INTO account VALUES (2, 1, 'a known schema')")
    assert tail.wait_for(has(2))
    here.prepare("known", "INSERT INTO account VALUES (3, 1, 'a known schema')")
    here.sql("COMMIT PREPARED 'known'")
    assert tail.wait_for(has(3))
    assert "does not answer" not in run.said()

    here.prepare("new", "ALTER TABLE account ADD more int", "INSERT INTO account VALUES (4, 1, 'a new schema', 4)")
    here.sql("COMMIT PREPARED 'new'", "INSERT INTO account VALUES (5, 1, 'behind it', 5)")
    run.wait_for("does not answer: ")
    tail.to_end()
    assert not [s for s in tail.seen if has(4)(s) or has(5)(s)]

    door.reopen()
    assert tail.wait_for(has(5))
    assert not run.dead
    here.check()


def test_rows_of_a_table_in_backfill_ask_for_no_schema_that_is_known(
    connector: Maker, door: Door, registry: Any
) -> None:
    """The worker reads them on the row path: what this process has registered is known to it."""
    here = connector(registry_server=door, init=False)
    here.reader = Reader(here.reader.bootstrap, registry.url)
    here.sql(SCHEMA, "INSERT INTO account VALUES (1, 1, 'x')")
    assert here.init().returncode == 0
    here.twofold("backfill", "pause", "public.account", ok=True)
    with here.carrying():
        config = here.config
        wait_until(lambda: backfills(config, read_progress(config))[0].state == "paused", 90, "the load is paused")
        door.requests.clear()
        here.sql("ALTER TABLE account ADD more int", "INSERT INTO account VALUES (2, 1, 'a new schema', 2)")
        assert here.tail("account").wait_for(has(2))
        requests = [*door.requests]
    assert [line for line in requests if line.startswith(b"POST") and b"account-value/versions" in line]
    asked = [line for line in requests if line.startswith(b"GET") and b"/schemas/ids/" in line]
    assert len(asked) == 1, "whether the pinned one is still there; it was known ahead of the first row"


@pytest.mark.parametrize("changed", ["account (id, version) VALUES (5, 1)", "other (id) VALUES (5)"])
def test_a_registry_that_is_set_back_while_the_connector_runs_is_refused(
    connector: Maker, own_registry: Callable[[], RegistryServer], tmp_path: Path, changed: str
) -> None:
    """It gives the ids of schemas that it has lost again, to the same table's next version or to
    another table's, and rows with these ids are in Kafka.
    """
    registry = own_registry()
    here = connector(registry_server=registry, init=False, source={"tables": ["public.account", "public.other"]})
    here.sql(SCHEMA, "CREATE TABLE other (id int PRIMARY KEY)")
    here.initialise()
    run = here.start()
    here.sql("INSERT INTO account VALUES (1, 1, 'x')", "INSERT INTO other VALUES (1)")
    here.caught_up()
    registry.stop()
    shutil.copytree(registry.folder, tmp_path / "backup")
    registry.start()
    here.sql("ALTER TABLE account ADD COLUMN more int", "INSERT INTO account VALUES (2, 1, 'y', 3)")
    tail = here.tail("account")
    assert tail.wait_for(has(2))
    registry.stop()
    shutil.rmtree(registry.folder)
    shutil.copytree(tmp_path / "backup", registry.folder)
    registry.start()
    here.sql(f"ALTER TABLE {changed.split(maxsplit=1)[0]} ADD COLUMN later text", f"INSERT INTO {changed}")
    run.wait_for("readers would read them by")
    assert "restore the registry with its former ids" in run.said()
    tail.to_end()
    assert not [seen for seen in tail.seen if has(5)(seen)]
