"""A coordinator of global transactions over the databases of a group. It can be killed at any
moment.

    python -m chaos.group.coordinator --seed 1 --log FILE --late 60 DSN DSN ...
    python -m chaos.group.coordinator --seed 1 --log FILE --settle DSN DSN ...

A transfer is prepared in each of its databases. The decision is a line of the log. Then its
branches are ended in any order, some of them late. One transfer at a time is very late: the log
says until when some of its branches are left, also by those that recover it.

Recovery is that of XA managers. What is prepared and belongs to no transfer of this life is
committed if its decision is in the log, and rolled back otherwise. `--settle` does that alone,
until nothing is prepared any more.
"""

from __future__ import annotations

import argparse
import contextlib
import heapq
import itertools
import os
import random
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import psycopg

from chaos.group import bank
from chaos.group.bank import Branch

WORKERS: Final = 4
ENDERS: Final = 3
THINK_S: Final = 1.0
PLAIN: Final = 0.3
"""So many transfers stay within one database, and are not prepared."""
ROLLED_BACK: Final = 0.15
NONE_VERY_LATE_S: Final = 45.0
"""On average so long after one very late transfer comes the next. While one waits, all transfers
behind it wait as well.
"""
LATE_SPREAD: Final = 15
"""The latest of the very late ones against the least."""
STRETCH_S: Final = 30.0
"""So long transfers go between all databases, and then so long within each half of them: what waits
in one half does not hold back the other.
"""
RECOVERY_EVERY_S: Final = 2.0
ANSWER_S: Final = 5.0
"""A server without an answer for so long is lost: a network may forget a connection."""
_SESSION: Final = "SET lock_timeout = '300ms'"


class Sessions:
    """One thread's, one for each database, a new one whenever the old one is lost."""

    def __init__(self, dsns: Sequence[str]) -> None:
        self._dsns = dsns
        self._open: dict[int, psycopg.Connection[Any]] = {}

    def run(self, database: int, *statements: str) -> list[Any]:
        """The rows of the last statement. An error leaves no transaction open."""
        session = self._open.get(database)
        if session is None or session.closed:
            session = psycopg.connect(self._dsns[database], autocommit=True)
            self._open[database] = session
            statements = (_SESSION, *statements)
        patience = threading.Timer(ANSWER_S, _cut_off, (session.fileno(),))
        patience.start()
        try:
            for statement in statements:
                cursor = session.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []
        except psycopg.Error:
            session.close()
            raise
        finally:
            patience.cancel()


def _cut_off(descriptor: int) -> None:
    """Let whoever waits for an answer on this connection find it closed."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
        connection.shutdown(socket.SHUT_RDWR)


class Log:
    """The decisions to commit: a name, and of a very late transfer a time and the gids of the
    branches that are left until then. A line is in the file when `decide` returns.
    """

    def __init__(self, file: Path) -> None:
        self._decided: set[str] = set()
        self._left_until: dict[str, float] = {}
        self._file = file
        self._lock = threading.Lock()
        for line in file.read_text().splitlines() if file.exists() else ():
            self._note(*line.split())

    def decide(self, name: str, until: float = 0.0, gids: Iterable[str] = ()) -> None:
        words = (name, str(until), *gids)
        with self._lock:
            with self._file.open("a") as file:
                file.write(" ".join(words) + "\n")
            self._note(*words)

    def _note(self, name: str, until: str, *gids: str) -> None:
        self._decided.add(name)
        self._left_until |= dict.fromkeys(gids, float(until))

    def outcome(self, name: str) -> str:
        return "COMMIT" if name in self._decided else "ROLLBACK"

    def left_until(self, gid: str) -> float:
        return self._left_until.get(gid, 0.0)

    @property
    def all_left_until(self) -> float:
        """When no transfer is very late any more."""
        return max(self._left_until.values(), default=0.0)


class Coordinator:
    """Workers prepare, enders end what is due, and the caller's thread recovers."""

    def __init__(self, dsns: Sequence[str], log: Log, seed: int, late_s: float) -> None:
        self._dsns = dsns
        self._log = log
        self._late_s = late_s
        self._life = time.time_ns() // 10**8
        self._rng = random.Random(f"{seed} coordinator {self._life}")
        self._numbers = itertools.count()
        self._lock = threading.Condition()
        self._left: Counter[str] = Counter()
        """Branches of this life's transfers without an outcome; while there are any, recovery
        leaves the transfer alone.
        """
        self._due: list[tuple[float, int, str, int, str]] = []
        """When, a number, the transfer, the database, the statement."""
        self._very_late_from = max(time.time(), log.all_left_until) + self._rng.expovariate(1 / NONE_VERY_LATE_S)

    def run(self) -> None:
        for work, times in ((self._work, WORKERS), (self._end, ENDERS)):
            for _ in range(times):
                threading.Thread(target=work, daemon=True).start()
        sessions = Sessions(self._dsns)
        while True:
            self.recover(sessions, hurry=False)
            time.sleep(RECOVERY_EVERY_S)

    def recover(self, sessions: Sessions, *, hurry: bool) -> int:
        """End what no transfer of this life owns, some of it in the next pass; return how many
        branches and databases are left.
        """
        left = 0
        for database in self._rng.sample(range(len(self._dsns)), len(self._dsns)):
            try:
                listed = sessions.run(database, "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()")
            except psycopg.Error:
                left += 1
                continue
            for (gid,) in listed:
                name = bank.name_of(gid)
                with self._lock:
                    owned = name in self._left
                due = time.time() > self._log.left_until(gid) and self._rng.random() < 0.5
                if not owned and (hurry or due):
                    self._carry_out(sessions, database, f"{self._log.outcome(name)} PREPARED '{gid}'")
                left += 1
        return left

    def _work(self) -> None:
        sessions, rng = Sessions(self._dsns), random.Random(self._rng.random())
        while True:
            time.sleep(rng.expovariate(1 / THINK_S))
            name = f"{self._life}{next(self._numbers):06}"
            if rng.random() < PLAIN:
                self._transfer_within(sessions, rng, name)
            else:
                self._transfer(sessions, rng, name)

    def _transfer_within(self, sessions: Sessions, rng: random.Random, name: str) -> None:
        amount = rng.randint(1, 100)
        self._carry_out(
            sessions,
            rng.randrange(len(self._dsns)),
            "BEGIN",
            f"UPDATE account SET balance = balance - {amount} WHERE id = {bank.account(rng)}",
            f"UPDATE account SET balance = balance + {amount} WHERE id = {bank.account(rng)}",
            f"INSERT INTO part VALUES ('{name}', 0, 1, 0)",
            "COMMIT",
        )

    def _transfer(self, sessions: Sessions, rng: random.Random, name: str) -> None:
        branches = bank.draw_branches(rng, name, self._draw_databases(rng))
        with self._lock:
            self._left[name] = len(branches)
        prepared = all(self._prepare(sessions, rng, name, len(branches), branch) for branch in branches)
        rng.shuffle(branches)
        if prepared and rng.random() > ROLLED_BACK:
            very_late = branches[rng.randint(1, len(branches)) :]
            late_s = self._draw_lateness(rng) if very_late else 0.0
            self._log.decide(name, time.time() + late_s, (branch.gid for branch in very_late if late_s))
        at = time.monotonic()
        for branch in branches:
            left_s = max(0.0, self._log.left_until(branch.gid) - time.time())
            with self._lock:
                statement = f"{self._log.outcome(name)} PREPARED '{branch.gid}'"
                heapq.heappush(self._due, (at + left_s, next(self._numbers), name, branch.database, statement))
                self._lock.notify()
            at += rng.uniform(0.1, 2.0) if rng.random() < 0.1 else rng.uniform(0.0, 0.03)

    def _draw_databases(self, rng: random.Random) -> Sequence[int]:
        """All, or one half."""
        every = range(len(self._dsns))
        half = len(every) // 2
        if half < 2 or int(time.time() / STRETCH_S) % 2:
            return every
        return rng.choice((every[:half], every[half:]))

    def _prepare(self, sessions: Sessions, rng: random.Random, name: str, of: int, branch: Branch) -> bool:
        return self._carry_out(
            sessions,
            branch.database,
            "BEGIN",
            f"UPDATE account SET balance = balance + {branch.amount} WHERE id = {bank.account(rng)}",
            f"INSERT INTO part VALUES ('{name}', {branch.number}, {of}, {branch.amount})",
            f"PREPARE TRANSACTION '{branch.gid}'",
        )

    def _draw_lateness(self, rng: random.Random) -> float:
        """How long some branches are left: mostly no longer than the others."""
        with self._lock:
            if time.time() < self._very_late_from:
                return 0.0
            seconds = self._late_s / LATE_SPREAD ** rng.random()
            self._very_late_from = time.time() + seconds + rng.expovariate(1 / NONE_VERY_LATE_S)
            return seconds

    def _end(self) -> None:
        sessions = Sessions(self._dsns)
        while True:
            with self._lock:
                while not self._due or self._due[0][0] > time.monotonic():
                    self._lock.wait(max(0.0, self._due[0][0] - time.monotonic()) if self._due else None)
                _, _, name, database, statement = heapq.heappop(self._due)
            self._carry_out(sessions, database, statement)
            with self._lock:
                self._left[name] -= 1
                if not self._left[name]:
                    del self._left[name]

    @staticmethod
    def _carry_out(sessions: Sessions, database: int, *statements: str) -> bool:
        """Whether it was told to be done. A lost server, a lock that was not given, an outcome that
        was there already: recovery finds what is left.
        """
        try:
            sessions.run(database, *statements)
        except psycopg.Error:
            return False
        return True


def settle(coordinator: Coordinator, dsns: Sequence[str]) -> None:
    sessions = Sessions(dsns)
    while coordinator.recover(sessions, hurry=True):
        time.sleep(0.2)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m chaos.group.coordinator")
    parser.add_argument("dsns", nargs="+")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--late", type=float, default=60, help="seconds that a branch may come behind another")
    parser.add_argument("--settle", action="store_true")
    options = parser.parse_args()
    threading.excepthook = _end_process
    coordinator = Coordinator(options.dsns, Log(options.log), options.seed, options.late)
    if options.settle:
        settle(coordinator, options.dsns)
    else:
        coordinator.run()
    return 0


def _end_process(failed: threading.ExceptHookArgs) -> None:
    """Nobody else sees a thread's exception."""
    sys.__excepthook__(failed.exc_type, failed.exc_value or failed.exc_type(), failed.exc_traceback)
    os._exit(70)


if __name__ == "__main__":
    sys.exit(main())
