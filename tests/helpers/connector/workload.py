"""A workload that has everything that a connector must carry: plain transactions, prepared ones of
all outcomes, many in doubt at once, key changes, deletes, messages, gids used again.

It goes on while the connector is dead: the source does not wait. Only where a prepared transaction
is meant to be open before its outcome comes does it look at the topics, as long as there is
somebody who writes into them.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import psycopg

from fixtures.connector import Installation, Running
from helpers.connector.ledger import Topics
from helpers.connector.topics import UNCOMMITTED, Seen, gid_of


class Workload:
    """One session that writes, and the keys that prepared transactions have locked."""

    def __init__(self, here: Installation, seed: int, keys: range = range(1, 25)) -> None:
        self._here = here
        self.connect()
        self._random = random.Random(seed)
        self._keys = keys
        self._seen = here.reader.tail([here.table("account"), f"{here.prefix}.prepared"], UNCOMMITTED)
        here.at_end(self._seen.close)
        self._locked: dict[str, set[int]] = {}
        self._given = 0
        self.running: Running | None = None
        """Who carries the changes now, if anybody."""

    def connect(self) -> None:
        """Also once more, when the server was away. Prepared transactions do not depend on it."""
        self._connection: psycopg.Connection[Any] = psycopg.connect(self._here.conninfo, autocommit=True)
        self._here.at_end(self._connection.close)
        self._connection.execute("SET lock_timeout = '10s'")

    def settle(self) -> None:
        """End what is in doubt."""
        self.finish(self._locked)

    def run(self) -> None:
        """One round of everything."""
        self.settle()  # what the round before left in doubt, over a restart perhaps
        for _ in range(3):
            self.plain()
        first, second = self.prepare(open_it=True), self.prepare()
        self.plain()
        self.commit(second)
        self.rollback(self.prepare())
        self.commit(self.prepare(rows=0))
        self.rollback(self.prepare(open_it=True))
        self.commit(self.prepare(keyless=True))
        self.plain()
        self.commit(first)
        self.messages()
        self.same_gid()
        many = [self.prepare(open_it=n == 1) for n in range(5)]
        self.plain()
        self._random.shuffle(many)
        self.finish(many[:4])  # the fifth stays in doubt
        self.plain()

    def check(self) -> Topics:
        """One more round, then compare all that there was."""
        self.run()
        self.settle()
        return self._here.check()

    def four_in_doubt(self) -> list[str]:
        """Three that shall be open, and a parked one behind them."""
        return [*(self.prepare(open_it=True) for _ in range(3)), self.prepare(keyless=True)]

    def check_promoted(self, in_doubt: list[str]) -> None:
        """Behind a promotion the second is rolled back, the others are committed."""
        undone = in_doubt[1]
        for gid in in_doubt:
            (self.rollback if gid == undone else self.commit)(gid)
        topics = self.check()
        assert {gid_of(s) for s in topics.rows} & {*in_doubt} == {*in_doubt} - {undone}
        assert topics.progress[-1].value["timeline"] == 2

    def plain(self) -> None:
        with self._connection.transaction():
            self._changes(self._random.randint(1, 4))

    def prepare(self, *, open_it: bool = False, rows: int = 3, keyless: bool = False, gid: str = "") -> str:
        """Returns the gid.

        `open_it`: its rows shall be in Kafka when this returns, unless the pool was full.
        """
        self._given += 1
        gid = gid or f"g {self._keys.start} {self._given} é'"
        self._connection.execute("BEGIN")
        self._locked[gid] = self._changes(rows) if rows else set()
        self._connection.execute("INSERT INTO unpublished (filler) VALUES ('x')")
        if keyless:
            self._connection.execute("INSERT INTO journal VALUES ('a line')")
        self._connection.execute(f"PREPARE TRANSACTION {_quoted(gid)}")
        running = self.running
        if open_it and running is not None:
            self._seen.wait_for(lambda s: gid_of(s) == gid or _parked(s, gid), unless=lambda: running.still)
        return gid

    def commit(self, gid: str) -> None:
        self._connection.execute(f"COMMIT PREPARED {_quoted(gid)}")
        del self._locked[gid]

    def rollback(self, gid: str) -> None:
        self._connection.execute(f"ROLLBACK PREPARED {_quoted(gid)}")
        del self._locked[gid]

    def finish(self, gids: Iterable[str]) -> None:
        """Most commit."""
        for gid in list(gids):
            (self.rollback if self._random.random() < 0.3 else self.commit)(gid)

    def same_gid(self) -> None:
        """A gid may be used again at once."""
        for outcome in (self.commit, self.rollback, self.commit):
            outcome(self.prepare(gid=f"again {self._keys.start}"))

    def messages(self) -> None:
        """A message in a transaction is one of its changes."""
        with self._connection.transaction():
            self._changes(1)
            self._connection.execute(
                "WITH said AS (SELECT pg_logical_emit_message(true, 'p', 'inside'))"
                " INSERT INTO ledger (xid, tbl, op, after)"
                " SELECT pg_current_xact_id()::text::bigint, 'messages', 'm', '{\"content\": \"inside\"}' FROM said"
            )

    def _changes(self, count: int) -> set[int]:
        """Changes of free keys, with a savepoint that is rolled back among them.

        Returns the keys.
        """
        locked = set().union(*self._locked.values())
        keys = set(self._random.sample([k for k in self._keys if k not in locked], count))
        for key in keys:
            self._change(key)
        self._connection.execute("SAVEPOINT a")
        self._change(min(keys))
        self._connection.execute("ROLLBACK TO a")
        self._connection.execute("INSERT INTO transfer VALUES (gen_random_uuid(), %s, 5)", (min(keys),))
        return keys

    def _change(self, key: int) -> None:
        """What happens to a key: it is made or updated, deleted, or exchanged for another and
        back.
        """
        execute = self._connection.execute
        match self._random.random():
            case chance if chance < 0.15:
                execute("DELETE FROM account WHERE id = %s", (key,))
            case chance if chance < 0.3:
                execute("UPDATE account SET id = -id, version = version + 1 WHERE id = %s", (key,))
                execute("UPDATE account SET id = -id, note = 'back' WHERE id = %s", (-key,))
            case _:
                execute(
                    "INSERT INTO account VALUES (%s, 1, %s) ON CONFLICT (id) DO UPDATE SET version = account.version + 1",
                    (key, "n" * self._random.randint(0, 40)),
                )


def _parked(seen: Seen, gid: str) -> bool:
    """Whether the in-doubt ledger says so."""
    return seen.topic.endswith(".prepared") and (seen.value["gid"], seen.value["state"]) == (gid, "parked")


def _quoted(gid: str) -> str:
    return "'" + gid.replace("'", "''") + "'"
