"""What the chaos suite has found, as tests of their own. docs/chaos.md tells the story of each."""

from __future__ import annotations

from connector_ledger import SCHEMA
from fix_backfill import ready
from fix_connector import Maker
from twofold.config import load
from twofold.runner.setup import initialise


def test_a_chunk_may_be_empty(connector: Maker) -> None:
    """The last one of a table that ends with a full chunk; then COPY's head and end come in one message, which was taken for a row: the connector ended, at every start again."""
    here = connector(init=False, backfill={"chunk_rows": 50})
    here.sql(SCHEMA)
    here.sql("INSERT INTO account SELECT n, 1, 'before' FROM generate_series(1, 100) n", "TRUNCATE ledger")
    initialise(load(here.file), print)
    with here.carrying():
        ready(here)
    assert sorted(seen.value["after"]["id"] for seen in here.read("account")) == list(range(1, 101))
