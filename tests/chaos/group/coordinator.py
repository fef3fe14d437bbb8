"""A coordinator of global transactions over the databases of a group. It can be killed at any
moment.

    python -m chaos.group.coordinator --seed 1 --log FILE --late 60 DSN DSN ...
    python -m chaos.group.coordinator --seed 1 --log FILE --settle DSN DSN ...

A transfer is prepared in each of its databases. The decision is a line of the log. Then its
branches are ended in any order, some of them late.

Recovery is that of XA managers. What is prepared and belongs to no transfer of this life is
committed if its decision is in the log, and rolled back otherwise. `--settle` does that alone,
until nothing is prepared any more.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import psycopg

from chaos.group import bank
from chaos.group.bank import Branch

WORKERS: Final = 4
ENDERS: Final = 3
THINK_S: Final = 0.4
PLAIN: Final = 0.3
"""So many transfers stay within one database, and are not prepared."""
ROLLED_BACK: Final = 0.15
A_VERY_LATE_ONE_EVERY_S: Final = 20.0
RECOVERY_EVERY_S: Final = 2.0
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
            session.execute(_SESSION)
            self._open[database] = session
        try:
            for statement in statements:
                cursor = session.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []
        except psycopg.Error:
            session.close()
            raise


class Log:
    """The decisions to commit. A line is in the file when `decide` returns."""

    def __init__(self, file: Path) -> None:
        self._decided = set(file.read_text().split()) if file.exists() else set()
        self._file = file
        self._lock = threading.Lock()

    def decide(self, name: str) -> None:
        with self._lock:
            with self._file.open("a") as file:
                file.write(name + "\n")
            self._decided.add(name)

    def outcome(self, name: str) -> str:
        return "COMMIT" if name in self._decided else "ROLLBACK"


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
        self._very_late_from = time.monotonic() + self._rng.expovariate(1 / A_VERY_LATE_ONE_EVERY_S)

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
                if not owned and (hurry or self._rng.random() < 0.5):
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
        branches = bank.draw_branches(rng, name, len(self._dsns))
        with self._lock:
            self._left[name] = len(branches)
        prepared = all(self._prepare(sessions, rng, name, len(branches), branch) for branch in branches)
        if prepared and rng.random() > ROLLED_BACK:
            self._log.decide(name)
        rng.shuffle(branches)
        at = time.monotonic()
        for branch in branches:
            with self._lock:
                statement = f"{self._log.outcome(name)} PREPARED '{branch.gid}'"
                heapq.heappush(self._due, (at, next(self._numbers), name, branch.database, statement))
                self._lock.notify()
            at += self._delay(rng)

    def _prepare(self, sessions: Sessions, rng: random.Random, name: str, of: int, branch: Branch) -> bool:
        return self._carry_out(
            sessions,
            branch.database,
            "BEGIN",
            f"UPDATE account SET balance = balance + {branch.amount} WHERE id = {bank.account(rng)}",
            f"INSERT INTO part VALUES ('{name}', {branch.number}, {of}, {branch.amount})",
            f"PREPARE TRANSACTION '{branch.gid}'",
        )

    def _delay(self, rng: random.Random) -> float:
        """Between two branches: mostly none, at times seconds, every now and then very long."""
        with self._lock:
            if time.monotonic() > self._very_late_from:
                self._very_late_from = time.monotonic() + rng.expovariate(1 / A_VERY_LATE_ONE_EVERY_S)
                return rng.uniform(self._late_s / 4, self._late_s)
        return rng.uniform(0.1, 2.0) if rng.random() < 0.1 else rng.uniform(0.0, 0.03)

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
