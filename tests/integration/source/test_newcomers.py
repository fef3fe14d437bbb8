"""The look for tables that have joined the publication goes on after a look that failed."""

from __future__ import annotations

from contextlib import closing

import psycopg

from fixtures.connector import wait_until
from twofold.source.table_descriptions import JoinedTables

CANCEL = """SELECT pg_cancel_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%pg_publication%'"""


def test_a_look_that_is_cancelled_is_followed_by_another(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as holder, psycopg.connect(database, autocommit=True) as other:
        other.execute("CREATE TABLE joined (id int PRIMARY KEY)")
        other.execute("CREATE PUBLICATION bank FOR TABLE joined")
        with closing(JoinedTables(database, "bank", 0.05)) as newcomers:
            with holder.transaction():
                holder.execute("LOCK TABLE pg_catalog.pg_publication")
                newcomers.take_result()
                wait_until(lambda: other.execute(CANCEL).fetchone() == (True,))
            found = wait_until(newcomers.take_result)
            assert [relation.table for relation in found.relations] == ["joined"]
