"""A live load with a clock: sessions that commit at a given rate and note when each commit was
asked for and answered.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

import psycopg

SESSIONS = 4


@dataclass(frozen=True, slots=True)
class Committed:
    """One transaction: its row's key, and when its COMMIT or COMMIT PREPARED was sent and had
    returned.
    """

    key: int
    asked: float
    answered: float
    xid: int


class Load:
    """So many transactions of one row at so many a second, shared by a few sessions; prepared ones
    are in doubt for a while.
    """

    def __init__(self, dsn: str, first: int, count: int, rate: float, *, in_doubt_s: float = 0) -> None:
        self._dsn = dsn
        self._keys = range(first, first + count)
        self._rate = rate
        self._in_doubt_s = in_doubt_s
        self.done: list[Committed] = []
        self._xids: dict[int, int] = {}
        """By key."""
        self._failures: list[Exception] = []

    def run(self) -> list[Committed]:
        begun = time.monotonic() + 0.2
        threads = [threading.Thread(target=self._session, args=(n, begun)) for n in range(SESSIONS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._failures:
            raise self._failures[0]
        return self.done

    def _session(self, number: int, begun: float) -> None:
        """Its share of the transactions; while one is in doubt the session goes on with others."""
        due = []
        for place in range(number, len(self._keys), SESSIONS):
            moment = begun + place / self._rate
            due += [(moment, self._begin, self._keys[place]), (moment + self._in_doubt_s, self._end, self._keys[place])]
        due.sort(key=lambda step: step[0])
        try:
            with psycopg.connect(self._dsn, autocommit=True) as connection:
                for moment, act, key in due:
                    sleep_until(moment)
                    act(connection, key)
        except Exception as error:
            self._failures.append(error)

    def _begin(self, connection: psycopg.Connection, key: int) -> None:
        if self._in_doubt_s:
            self._insert(connection, key, f"; PREPARE TRANSACTION 'live-{key}'")

    def _end(self, connection: psycopg.Connection, key: int) -> None:
        if not self._in_doubt_s:
            self._insert(connection, key)
        outcome = f"COMMIT PREPARED 'live-{key}'" if self._in_doubt_s else "COMMIT"
        asked = time.monotonic()
        connection.execute(outcome.encode())
        self.done.append(Committed(key, asked, time.monotonic(), self._xids.pop(key)))

    def _insert(self, connection: psycopg.Connection, key: int, behind: str = "") -> None:
        """Begin a transaction, and insert its row."""
        row = f"INSERT INTO live VALUES ({key}, 'a row of a live transaction', now()) RETURNING xmin::text::bigint"
        cursor = connection.execute(f"BEGIN; {row}{behind}".encode())
        cursor.nextset()
        found = cursor.fetchone()
        assert found is not None, "an INSERT returns its row"
        self._xids[key] = found[0]


def sleep_until(moment: float) -> None:
    if (left := moment - time.monotonic()) > 0:
        time.sleep(left)
