"""From a real source through a real connector into every sink: random work, and `verify` says that
they are equal.

The work is plain transactions and prepared ones that commit, roll back and stay in doubt, small
ones and such as PostgreSQL streams before they end, changes of keys and of TOASTed rows, truncates,
changes of columns, a first load and a reload.
"""

from __future__ import annotations

import re
import subprocess
import threading
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from fixtures.connector import Installation, Maker, wait_until
from fixtures.spark import Lake
from helpers.connector.backfill_traffic import TABLES, fill, traffic
from helpers.source.streaming import streamed
from helpers.spark.verified import verification
from twofold_spark.sinks.sink_choice import SinkChoice
from twofold_spark.sources.registry import Registry
from twofold_spark.verify.last_change import LastChangeFinder
from twofold_spark.verify.verification import TableComparison

pytestmark = pytest.mark.timeout(900)
NAMES = ("public.account", "public.item", "public.line")
_LAST_COMMIT = (
    r"(insert|update|loaded by a backfill) at \w+/\w+,( transaction \d+:\w+/\w+,)?( gid '.*',)? "
    r"(committed|prepared|as of) 20[-0-9]+ [:.0-9]+ UTC, \S+\.public\.item-\d+@\d+"
)


@pytest.fixture
def here(connector: Maker) -> Installation:
    made = connector(
        init=False,
        source={"tables": list(NAMES)},
        backfill={"chunk_rows": 200},
        prepared={"hold": 2, "pool": 2},
    )
    made.configure({"source": {"dsn": make_conninfo(made.conninfo, options="-c logical_decoding_work_mem=64kB")}})
    made.sql(TABLES, "ALTER TABLE line REPLICA IDENTITY FULL")
    return made


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sinks", "items", "per_second"),
    [
        pytest.param(("iceberg",), 300, 50, id="short"),
        pytest.param(("iceberg", "delta", "jdbc"), 1500, 150, id="long"),
    ],
)
def test_random_work_ends_equal_in_every_sink_and_an_altered_row_is_found(
    lake: Lake, here: Installation, database: str, sinks: tuple[str, ...], items: int, per_second: int
) -> None:
    lake.prefix = here.prefix
    addresses = {"delta": str(lake.warehouse / "delta"), "jdbc": database}
    choices = [SinkChoice(name, addresses.get(name, "")) for name in sinks]
    here.sql(*fill(items))
    with ExitStack() as carried:
        with traffic(here, per_second=per_second, items=items):
            here.initialise()
            carried.enter_context(here.carrying())
            wait_until(lambda: here.records("commits"), 90, "the first commit record")
            _mirror(lake, choices)  # while the tables are loaded and changed
        wait_until(lambda: not here.status().backfilling, 120, "all tables are ready")
        here.sql(
            "ALTER TABLE item ADD COLUMN extra text",
            "ALTER TABLE item ALTER COLUMN version TYPE bigint",
            "TRUNCATE account, line",
            "INSERT INTO line SELECT 'large ' || n % 5000 FROM generate_series(1, 10000) n",
            "UPDATE item SET extra = 'e' || id, version = version + 5000000000 WHERE id % 3 = 0",
        )
        _prepare(here)
        with traffic(here, per_second=per_second, items=items):
            subprocess.run(here.command("backfill", "start", "public.item"), check=True, capture_output=True)
            wait_until(lambda: "reload" in {c["kind"] for c in here.records("commits")}, 90, "it starts over")
            _mirror(lake, choices[:1])
        wait_until(lambda: not here.status().backfilling, 120, "the reload is over")
        here.caught_up(120)
        _mirror(lake, choices)
        for choice in choices:
            lake.choice = choice
            compared = _verified(lake, here)
            assert [(c.table, c.buckets, c.is_certain) for c in compared] == [(name, 0, True) for name in NAMES]

        here.sql("COMMIT PREPARED 'in doubt'")
        key = here.ask("SELECT min(id) FROM item")
        for choice in choices:
            lake.choice = choice
            _alter(lake, key)
        here.sql(f"UPDATE item SET version = version + 1 WHERE id = {key + 10} OR id = (SELECT max(id) FROM item)")
        here.caught_up(120)
        for choice in choices:
            lake.choice = choice
            ((name, (altered,)),) = [(c.table, c.different) for c in _verified(lake, here) if c.buckets]
            assert (name, altered.key) == ("public.item", str(key)), choice
            assert re.fullmatch(_LAST_COMMIT, altered.last_commit or ""), altered.last_commit
            assert lake.cut()["public.account"].where("id = -1").count() == 1
    assert streamed(here) >= 4  # the walsender tells it when it ends


def _prepare(here: Installation) -> None:
    """One of each outcome; those that have one are large, and PostgreSQL streams them."""
    here.prepare(
        "to commit",
        "INSERT INTO account SELECT n, 0, repeat('n', 100) FROM generate_series(1, 3000) n",
        "UPDATE account SET id = -1000 - id WHERE id % 10 = 0",
        "INSERT INTO line SELECT 'prepared ' || n % 3 FROM generate_series(1, 1000) n",
        "DELETE FROM line WHERE said = 'large 7'",
    )
    here.prepare(
        "to roll back",
        "INSERT INTO account SELECT n, 0, repeat('n', 100) FROM generate_series(5001, 8000) n",
        "DELETE FROM line WHERE said = 'large 8'",
    )
    here.prepare("in doubt", "INSERT INTO account VALUES (-1, 1, 'n')", "DELETE FROM line WHERE said = 'large 9'")
    here.sql("COMMIT PREPARED 'to commit'", "ROLLBACK PREPARED 'to roll back'")


def _mirror(lake: Lake, choices: list[SinkChoice]) -> None:
    for choice in choices:
        lake.choice, lake.checkpoint = choice, choice.name
        lake.mirror()


def _verified(lake: Lake, here: Installation) -> list[TableComparison]:
    """`verify`, while the mirror goes on: it waits for a cut beyond its marker."""
    lake.checkpoint = lake.choice.name
    lake.mirror()
    results: list[TableComparison] = []

    def compare() -> None:
        touches = LastChangeFinder(lake.spark, lake.kafka, Registry(lake.writer.registry))
        with verification(lake, lake.prefix, here.conninfo, patience=120, last_changes=touches) as verify:
            results.extend(verify.run())

    comparing = threading.Thread(target=compare, name="verify")
    comparing.start()
    while comparing.is_alive():
        lake.mirror()
        comparing.join(0.5)
    return results


def _alter(lake: Lake, key: int) -> None:
    """One row of the mirror, by hand."""
    match lake.choice.name:
        case "iceberg":
            lake.spark.sql(f"UPDATE {lake.catalog}.public.item SET big = 'altered' WHERE id = {key}")
        case "delta":
            folder = Path(lake.choice.address) / "public" / "item"
            lake.spark.sql(f"UPDATE delta.`{folder}` SET big = 'altered' WHERE id = {key}")
        case "jdbc":
            with psycopg.connect(lake.choice.address) as connection:
                connection.execute("UPDATE item SET big = 'altered' WHERE id = %s", (key,))
