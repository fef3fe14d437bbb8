"""PostgreSQL's own subscriptions, one for each database."""

from __future__ import annotations

import time
from collections.abc import Mapping

import psycopg

from compare import bank
from compare.faults import Part
from compare.ground import Ground, PostgresCopy
from compare.looks import Copy

_READY_S = 120.0


class Subscription:
    """With two-phase commit: what is prepared at the source is prepared at the destination."""

    name = "subscription"
    kafka = False
    documentation = (
        ("two_phase = true, streaming = parallel", "https://www.postgresql.org/docs/18/sql-createsubscription.html"),
        (
            "max_prepared_transactions of the subscriber",
            "https://www.postgresql.org/docs/18/runtime-config-resource.html#GUC-MAX-PREPARED-TRANSACTIONS",
        ),
    )

    @property
    def parts(self) -> Mapping[str, Part]:
        return {}

    def start(self, ground: Ground) -> Copy:
        with psycopg.connect(ground.copies, autocommit=True) as copies:
            for database, dsn in ground.dsns.items():
                publish(dsn, database)
                bank.create_tables(copies, database)
                copies.execute(
                    f"CREATE SUBSCRIPTION {database} CONNECTION '{dsn}' PUBLICATION {database} WITH (two_phase = true, streaming = parallel)".encode()
                )
            # Two-phase commit begins when the first rows are copied.
            ready = b"SELECT bool_and(subtwophasestate = 'e') FROM pg_subscription"
            deadline = time.monotonic() + _READY_S
            while copies.execute(ready).fetchone() != (True,):
                if time.monotonic() > deadline:
                    raise TimeoutError("two-phase commit is not on")
                time.sleep(0.2)
        return PostgresCopy(ground.copies)

    def tend(self) -> None:
        """The server starts its workers again."""

    def stop(self) -> None:
        """They end with the server."""


def publish(dsn: str, database: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as session:
        session.execute(f"CREATE PUBLICATION {database} FOR TABLES IN SCHEMA {database}".encode())
