"""A row filter that fails on a row: the table's load and the stream are refused, and do not recover
again and again.
"""

from __future__ import annotations

import pytest

from fixtures.connector import Installation, Maker, wait_until
from helpers.connector.ledger import SCHEMA
from twofold.errors import Refused

pytestmark = pytest.mark.core
FILTER = "CREATE PUBLICATION {} FOR TABLE account, part WHERE (10 / share > 0)"


def installed(connector: Maker, *rows: int) -> Installation:
    here = connector(init=False, source={"tables": []})
    here.sql(SCHEMA, "CREATE TABLE part (share int PRIMARY KEY)")
    here.sql(*(f"INSERT INTO part VALUES ({row})" for row in rows), FILTER.format(here.prefix))
    here.initialise()
    return here


def test_a_row_that_the_table_has(connector: Maker) -> None:
    here = installed(connector, 0, 1)
    error = here.refusal()
    assert isinstance(error, Refused), error
    assert "table public.part cannot be loaded: division by zero" in str(error)
    here.sql(f"ALTER PUBLICATION {here.prefix} SET TABLE account, part")
    with here.carrying():
        here.caught_up()
        wait_until(lambda: shares(here) == [0, 1])


def shares(here: Installation) -> list[int]:
    """A load that begins once more begins with a truncate, which has no row."""
    return sorted(each.value["after"]["share"] for each in here.read("part") if each.value and each.value["after"])


def test_a_row_that_comes(connector: Maker) -> None:
    here = installed(connector, 1)
    with here.carrying():
        here.caught_up()
    here.sql("INSERT INTO part VALUES (0)")
    here.sql(f"ALTER PUBLICATION {here.prefix} SET TABLE account, part")
    error = here.refusal()
    assert isinstance(error, Refused), error
    assert "cannot decode slot" in str(error)
    assert "division by zero" in str(error)
