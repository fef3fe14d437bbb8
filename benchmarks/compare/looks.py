"""The one reader: looks at a copy of the bank by plain SQL, each time in one snapshot.

It knows the tables and nothing of the systems that fill them. A transfer is whole if all its lines
are there, in every database that it is in.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from compare.bank import COLUMNS, DATABASES, TOTAL

Ask = Callable[[str], Sequence[Sequence[Any]]]
"""The rows of a query, in the snapshot that is open."""
Rows = dict[tuple[str, str], Counter[tuple[Any, ...]]]
"""By database and table."""
TRANSFERS: Final = "SELECT transfer, count(*), max(lines), max(branches) FROM {entry} GROUP BY transfer"
APART: Final = """
SELECT a.id, a.version, e.version FROM {account} a
  LEFT JOIN (SELECT account, max(version) AS version FROM {entry} GROUP BY account) e ON e.account = a.id
 WHERE a.version <> coalesce(e.version, 0)
"""
"""Accounts of which the one table shows a change that the other does not show."""
DOUBLED: Final = "SELECT id FROM {account} GROUP BY id HAVING count(*) > 1"
TOTAL_OF: Final = "SELECT sum(balance) FROM {account}"
EXAMPLES: Final = 5
SHARE: Final = 0.2
"""Of the time at most is spent looking."""
EVERY_S: Final = 0.2


class Copy(Protocol):
    """Where a system writes to."""

    @property
    def names(self) -> Mapping[str, Mapping[str, str]]:
        """The tables' names in SQL, by database and table."""

    @property
    def away(self) -> tuple[type[Exception], ...]:
        """A look fails with one of these while the copy is away, or lacks a table."""

    def snapshot(self) -> AbstractContextManager[Ask]: ...


@dataclass(slots=True)
class Look:
    """What one snapshot shows."""

    at: float = 0.0
    """The snapshot was taken before this time, by one query at most."""
    seen: set[int] = field(default_factory=set)
    """Transfers of which there is any row."""
    whole: set[int] = field(default_factory=set)
    torn: set[str] = field(default_factory=set)
    """Transfers that one database has in part; changes that one of its tables lacks."""
    split: set[int] = field(default_factory=set)
    """Transfers that one database shows and the other one does not."""
    doubled: set[str] = field(default_factory=set)
    total: int = 0


def look_at(ask: Ask, names: Mapping[str, Mapping[str, str]]) -> Look:
    look = Look()
    seen_in: dict[int, int] = defaultdict(int)
    branches_of: dict[int, int] = {}
    partial: set[int] = set()
    for database in DATABASES:
        tables = names[database]
        transfers = ask(TRANSFERS.format(**tables))
        look.at = look.at or time.monotonic()
        for transfer, count, lines, branches in transfers:
            seen_in[transfer] += 1
            branches_of[transfer] = branches
            if count < lines:
                partial.add(transfer)
                look.torn.add(f"{database}: transfer {transfer}")
            elif count > lines:
                look.doubled.add(f"{database}: transfer {transfer}")
        for account, version, other in ask(APART.format(**tables)):
            look.torn.add(f"{database}: change {max(version, other or 0)} of account {account}")
        look.doubled |= {f"{database}: account {account}" for (account,) in ask(DOUBLED.format(**tables))}
        ((balance,),) = ask(TOTAL_OF.format(**tables))
        look.total += int(balance or 0)
    look.seen = set(seen_in)
    look.split = {transfer for transfer, count in seen_in.items() if count < branches_of[transfer]}
    look.whole = look.seen - look.split - partial
    return look


def read_rows(ask: Ask, names: Mapping[str, Mapping[str, str]]) -> Rows:
    """All rows, however often each is there."""
    return {
        (database, table): Counter(
            tuple(None if value is None else int(value) for value in row)
            for row in ask(f"SELECT {', '.join(COLUMNS[table])} FROM {name}")
        )
        for database, tables in names.items()
        for table, name in tables.items()
    }


@dataclass(slots=True)
class Sightings:
    """What all looks together have shown."""

    looks: int = 0
    first_seen: dict[int, float] = field(default_factory=dict)
    """A transfer was visible at this time, if not before."""
    first_whole: dict[int, float] = field(default_factory=dict)
    torn: set[str] = field(default_factory=set)
    split: set[int] = field(default_factory=set)
    doubled: set[str] = field(default_factory=set)
    looks_torn: int = 0
    looks_split: int = 0
    wrong_totals: int = 0
    """Looks whose total over both databases never was."""
    examples: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def add(self, look: Look) -> None:
        self.looks += 1
        for transfer in look.seen - self.first_seen.keys():
            self.first_seen[transfer] = look.at
        for transfer in look.whole - self.first_whole.keys():
            self.first_whole[transfer] = look.at
        self._give_examples("torn", sorted(look.torn - self.torn))
        self._give_examples("split", sorted(look.split - self.split))
        self._give_examples("doubled", sorted(look.doubled - self.doubled))
        self.torn |= look.torn
        self.split |= look.split
        self.doubled |= look.doubled
        self.looks_torn += bool(look.torn)
        self.looks_split += bool(look.split)
        if look.total != TOTAL:
            self.wrong_totals += 1
            self._give_examples("total", [f"{look.total - TOTAL:+}"])

    def _give_examples(self, kind: str, found: Sequence[object]) -> None:
        room = EXAMPLES - len(self.examples[kind])
        self.examples[kind] += [f"look {self.looks}: {each}" for each in found[: max(0, room)]]


class Watch(threading.Thread):
    """Looks again and again until it is closed."""

    def __init__(self, copy: Copy) -> None:
        super().__init__(daemon=True)
        self.sightings = Sightings()
        self.look_s: list[float] = []
        """How long each look took."""
        self.failure: BaseException | None = None
        self._copy = copy
        self._over = threading.Event()

    def run(self) -> None:
        pause_s = EVERY_S
        while not self._over.wait(pause_s):
            began = time.monotonic()
            try:
                with self._copy.snapshot() as ask:
                    look = look_at(ask, self._copy.names)
            except self._copy.away:
                continue
            except BaseException as error:  # the trial asks for it: nobody else sees a thread's exception
                self.failure = error
                return
            self.sightings.add(look)
            self.look_s.append(time.monotonic() - began)
            pause_s = max(EVERY_S, self.look_s[-1] * (1 / SHARE - 1))

    def close(self) -> None:
        self._over.set()
        self.join()
        if self.failure is not None:
            raise self.failure
