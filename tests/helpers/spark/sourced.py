"""A mirror of a real source, through a real connector, and the command `verify` of both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Final

from fixtures.connector import Installation, Maker, wait_until
from fixtures.spark import Lake
from helpers.connector.backfill_traffic import TABLES, fill, traffic
from helpers.spark import process as spark_process

NAMES: Final = ("account", "item", "line")
ITEMS: Final = 300


@contextmanager
def changing(lake: Lake, connector: Maker) -> Iterator[tuple[Installation, ExitStack]]:
    """The connector of a source that is changed until the stack is closed, or this ends."""
    here = connector(
        init=False,
        source={"tables": [f"public.{name}" for name in NAMES]},
        backfill={"chunk_rows": 200},
        prepared={"hold": 2, "pool": 2},
    )
    here.sql(TABLES, "ALTER TABLE line REPLICA IDENTITY FULL", *fill(ITEMS))
    here.sql("INSERT INTO account VALUES (1, 0, 'so that it is in the mirror from its first cut')")
    lake.prefix = here.prefix
    with ExitStack() as carried, ExitStack() as load_of_it:
        here.initialise()
        carried.enter_context(here.carrying())
        load_of_it.enter_context(traffic(here, per_second=60, items=ITEMS))
        wait_until(lambda: here.records("commits"), 60, "the first commit record")
        yield here, load_of_it


def verify(lake: Lake, here: Installation, environment: Mapping[str, str] | None = None) -> None:
    """Run the command beside the mirror: it must find that they are equal."""
    source = ("--source", here.conninfo, "--patience", "120")
    spark_process.run(lake, *source, command="verify", environment=environment)


def read_items(here: Installation) -> dict[int, int]:
    """Return each item's version, in the source."""
    found: dict[str, int] = here.ask("SELECT json_object_agg(id, version) FROM item")
    return {int(key): version for key, version in found.items()}
