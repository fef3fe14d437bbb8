"""PostgreSQL as the model of lives has it: a script of what happens, rows, snapshots.

A commit is in the log, and may be streamed and published, before any snapshot sees it; until then
its locks hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from twofold.bridge import Policy
from twofold.lives.chunk_rule import Snapshot
from twofold_common.positions import NO_LSN, Lsn, PreparedIdentity

LENGTH = 10
FIRST_XID = 100
OPENED_AT_ONCE = Policy(open_at_once=True)


class Row(NamedTuple):
    """A version, and the version of a TOASTed value, which an update may leave as it is."""

    version: int
    big: int


class Change(NamedTuple):
    """A change of one row. The row's former key, where the stream leaves the TOASTed value out."""

    table: str
    key: str
    deletes: bool = False
    left_out: str | None = None

    @property
    def truncates(self) -> bool:
        return self.key == "*"


Rows = tuple[tuple[str, str, Row], ...]
"""Table, key, row: sorted."""


def parse_changes(text: str) -> tuple[Change, ...]:
    """Read `a1` (written whole), `a1~` (a value left out), `a1>3` (gets the key 3, a value left
    out), `a1-` (deleted), `a*` (truncated).
    """
    changes: list[Change] = []
    for word in text.split():
        table, rest = word[0], word[1:]
        match rest.partition(">"):
            case was, ">", key:
                changes += [Change(table, was, deletes=True), Change(table, key, left_out=was)]
            case _ if rest.endswith("~"):
                changes.append(Change(table, rest[:-1], left_out=rest[:-1]))
            case _:
                changes.append(Change(table, rest.rstrip("-"), deletes=rest.endswith("-")))
    return tuple(changes)


@dataclass(frozen=True)
class Item:
    """One thing that happens in the source.

    B a transaction begins and writes; T it commits; P, K, R it is prepared, committed, rolled back;
    J a table joins the publication. T without a B before it is both.
    """

    kind: str
    number: int = 0
    table: str = ""
    end: Lsn = NO_LSN

    @property
    def start(self) -> Lsn:
        return Lsn(self.end - LENGTH)

    @property
    def identity(self) -> PreparedIdentity:
        return PreparedIdentity(xid_of(self.number), str(self.number))


def xid_of(number: int) -> int:
    return FIRST_XID + number


@dataclass(frozen=True)
class Scenario:
    """What happens, in the source and by people; how often the connector crashes."""

    name: str
    rows: str
    writes: dict[int, str]
    script: str
    commands: tuple[tuple[str, str], ...] = ()
    """Tables and commands, given in this order at any moment."""
    late: str = ""
    """Tables that join during the script."""
    keyless: str = ""
    ready: str = ""
    """Tables whose rows are in their topics already."""
    crashes: int = 1
    ahead: bool = False
    """A chunk is read while the one before is published."""
    policy: Policy = OPENED_AT_ONCE

    @property
    def tables(self) -> tuple[str, ...]:
        written = (change.table for text in self.writes.values() for change in parse_changes(text))
        return tuple(sorted({*(word[0] for word in self.rows.split()), *written}))

    def items(self) -> tuple[Item, ...]:
        """Return the script with its positions."""
        items, end = [], Lsn(0)
        for word in self.script.split():
            kind, rest = word[0], word[1:]
            if kind in "TPKR":
                end = Lsn(end + LENGTH)
            items.append(Item(kind, 0, rest, end) if kind == "J" else Item(kind, int(rest), end=end))
        return tuple(items)


class Source(NamedTuple):
    """The source's present."""

    place: int  # the next item of the script
    begun: int  # the greatest number of a transaction
    active: frozenset[int]  # begun or prepared
    invisible: frozenset[int]  # committed; no snapshot sees it yet
    rows: Rows

    @property
    def locking(self) -> frozenset[int]:
        return self.active | self.invisible

    def snapshot(self) -> Snapshot:
        return Snapshot(xid_of(self.begun + 1), frozenset(map(xid_of, self.locking)))


class Script:
    """A scenario's script, carried out."""

    def __init__(self, scenario: Scenario) -> None:
        self.items = scenario.items()
        self.log = tuple(item for item in self.items if item.kind in "TPKR")
        self.changes = {number: parse_changes(text) for number, text in scenario.writes.items()}
        self.tables = scenario.tables
        self.late = scenario.late
        self._begins = {number: self._begin_of(number) for number in self.changes}
        self.rows: Rows = tuple(sorted((word[0], word[1:], Row(0, 0)) for word in scenario.rows.split()))

    def _begin_of(self, number: int) -> int:
        return next(place for place, item in enumerate(self.items) if item.kind in "BT" and item.number == number)

    def first(self) -> Source:
        return Source(0, 0, frozenset(), frozenset(), self.rows)

    def joined(self, table: str, place: int) -> bool:
        """Whether the publication has the table, at this place of the script."""
        return table not in self.late or any(i.kind == "J" and i.table == table for i in self.items[:place])

    def sent(self, number: int) -> tuple[Change, ...]:
        """Return what the stream brings of the transaction."""
        return tuple(change for change in self.changes[number] if self.joined(change.table, self._begins[number]))

    def written(self, source: Source) -> Lsn:
        """Return the end of the log."""
        return source_end(self.items[: source.place])

    def next(self, source: Source) -> Source | None:
        """Return the source behind the next item of its script; None while a lock forbids it."""
        if source.place == len(self.items):
            return None
        item, number = self.items[source.place], self.items[source.place].number
        on = source._replace(place=source.place + 1)
        if item.kind == "B" or (item.kind == "T" and number not in source.active):
            if self._conflicts(number, source):
                return None
            assert number == source.begun + 1
            on = on._replace(begun=number, active=source.active | {number})
        match item.kind:
            case "T" | "K":
                return on._replace(active=on.active - {number}, invisible=on.invisible | {number})
            case "R":
                return on._replace(active=on.active - {number})
            case _:
                return on

    def _conflicts(self, number: int, source: Source) -> bool:
        mine = {(change.table, change.key) for change in self.changes[number]}
        theirs = {(change.table, change.key) for other in source.locking for change in self.changes[other]}
        truncated = {table for table, key in mine if key == "*"}
        return bool(mine & theirs) or any(
            table in truncated or (table, "*") in theirs for table, _ in mine if any(t == table for t, _ in theirs)
        )

    def appear(self, source: Source, number: int) -> Source:
        """Snapshots see the transaction from here on."""
        rows = {(table, key): row for table, key, row in source.rows}
        for table, key, deletes, left_out in self.changes[number]:
            if key == "*":
                rows = {place: row for place, row in rows.items() if place[0] != table}
            elif deletes:
                moved = next((c for c in self.changes[number] if (c.table, c.left_out) == (table, key)), None)
                row = rows.pop((table, key), None)
                if moved and row:
                    rows[table, moved.key] = Row(number, row.big)
            elif left_out in {None, key}:
                big = number if left_out is None else rows[table, key].big
                rows[table, key] = Row(number, big)
        return source._replace(
            invisible=source.invisible - {number}, rows=tuple(sorted((t, k, r) for (t, k), r in rows.items()))
        )

    def holders(self, source: Source, table: str) -> dict[str, tuple[int, str]]:
        """Return who holds a lock on the table: a name, and for a prepared one its identity."""
        prepared = {item.number for item in self.items[: source.place] if item.kind == "P"}
        return {
            str(number): (xid_of(number), str(number)) if number in prepared & source.active else (0, "")
            for number in source.locking
            if any(change.table == table for change in self.changes[number])
        }


def source_end(items: tuple[Item, ...]) -> Lsn:
    return items[-1].end if items else Lsn(0)
