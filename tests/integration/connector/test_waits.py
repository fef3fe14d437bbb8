"""A running connector whose sessions wait for a prepared transaction that holds a catalog: status
says for whom, and all rows come when it is gone.
"""

from __future__ import annotations

import re

from fixtures.connector import Installation, Maker, wait_until
from twofold.source.readiness import version_advice


def status(here: Installation) -> str:
    return here.twofold("status", ok=True).stdout


def test_status_says_for_whom_the_start_waits(connector: Maker) -> None:
    here = connector()
    here.sql("INSERT INTO account VALUES (1, 1, 'before')")
    here.prepare(
        "shuts",
        "LOCK TABLE pg_catalog.pg_publication_rel IN ACCESS EXCLUSIVE MODE",
        "INSERT INTO account VALUES (2, 1, 'x')",
    )
    run = here.start(ready=False)
    wait_until(
        lambda: re.search("waits for   prepared transaction 'shuts' .* on table pg_publication_rel", status(here)), 60
    )
    here.sql("ROLLBACK PREPARED 'shuts'")
    run.wait_for("recovered:")
    here.check()
    assert "waits for" not in status(here)

    version = here.ask("SELECT current_setting('server_version_num')::int")
    assert run.said().count("has known bugs in two-phase decoding") == len(version_advice(version))
