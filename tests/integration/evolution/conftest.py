"""One connector for a module's tests, and a table each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fixtures.connector import Installation, Maker
from helpers.connector.evolving import Evolving


@pytest.fixture(scope="module")
def shared(module_connector: Maker) -> Iterator[Installation]:
    """A connector that runs while the module's tests do."""
    here = module_connector(init=False, source={"tables": ["public.account", "e.*"], "backfill": False})
    here.sql("CREATE TABLE account (id int PRIMARY KEY, version int NOT NULL, note text)", "CREATE SCHEMA e")
    assert here.init().returncode == 0
    with here.carrying():
        yield here


@pytest.fixture
def evolving(shared: Installation, request: pytest.FixtureRequest) -> Evolving:
    name = "".join(c if c.isalnum() else "_" for c in request.node.name.lower())
    return Evolving(shared, name.removeprefix("test_")[:50])
