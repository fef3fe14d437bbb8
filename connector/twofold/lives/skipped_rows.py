"""Decides which row a person's skip command names, and for how long its topic lacks the row.

Pure. A row is named by topic, WAL position and a short name of its own, because several rows may
have one position. The name is a digest of the message key, which a log must not show. A row without
a readable key is named by its bytes, or by the size of its record.

A topic lacks a skipped row until the topic has a later whole row of that key, a delete of the key,
a truncate or a reload. An update without the unchanged values does not repair it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

_NAME_DIGITS = 8


class SkipCommand(NamedTuple):
    """A person's command to skip one row."""

    topic: str
    lsn: int
    """The row's position in the source's write-ahead log."""
    row: str
    """The name of the row among those of this position."""


class MissingRow(NamedTuple):
    """A skipped row that its topic still lacks."""

    lsn: int
    key: bytes | None
    """The message key without the schema's id; None without a key that could be read."""


def name_by_key(lsn: int, key: bytes) -> str:
    """Return the row's name by its key without the schema's id.

    A key has another name at each position, so that nobody can follow a key through logs.
    """
    return _digest(lsn, key)


def name_by_bytes(lsn: int, row: bytes) -> str:
    """Return the name of a row without a readable key. `row`: the columns as PostgreSQL
    sent them.
    """
    return f"raw-{_digest(lsn, row)}"


def name_by_size(size: int) -> str:
    """Return the name of a keyless row whose record is too large, by the record's size."""
    return f"bytes-{size}"


def _digest(lsn: int, data: bytes) -> str:
    return hashlib.sha256(lsn.to_bytes(8, "big") + data).hexdigest()[:_NAME_DIGITS]


class SkipCommands:
    """The commands that a run begins with, in the form in which rows are compared with them."""

    def __init__(self, commands: Iterable[SkipCommand] = (), lacking: Iterable[str] = ()) -> None:
        """`lacking`: topics that lack a skipped row already."""
        self._commands = frozenset(commands)
        self.positions = frozenset(each.lsn for each in self._commands)
        self.last = max(self.positions, default=-1)
        """No row behind this position is named."""
        self.topics = frozenset(lacking) | {each.topic for each in self._commands}
        """The topics whose rows must all pass the merger, which knows what they lack."""

    def find(self, topic: str, lsn: int, names: Iterable[str]) -> SkipCommand | None:
        """Return the command that names the row by one of its names."""
        if lsn not in self.positions:
            return None
        return next((each for name in names if (each := SkipCommand(topic, lsn, name)) in self._commands), None)


NO_COMMANDS = SkipCommands()


@dataclass(frozen=True, slots=True)
class MissingRows:
    """The rows that one topic lacks. A value: each event gives the next value."""

    rows: frozenset[MissingRow] = frozenset()

    def skip(self, row: MissingRow) -> MissingRows:
        """Note a skipped row. It replaces an earlier skipped row of the same key, which the later
        one had changed.
        """
        left = {each for each in self.rows if each.key is None or each.key != row.key or each.lsn > row.lsn}
        superseded = row.key is not None and any(each.key == row.key for each in left)
        return MissingRows(frozenset(left if superseded else left | {row}))

    def publish(self, lsn: int, key: bytes | None, *, partial: bool) -> MissingRows:
        """Note a published row; `partial`: unchanged values were left out of it."""
        if partial or key is None:
            return self
        return MissingRows(frozenset(each for each in self.rows if each.key != key or each.lsn > lsn))

    def truncate(self, lsn: int | None) -> MissingRows:
        """Note a truncate at a position; None: the truncate of a reload, which brings all rows
        again.
        """
        if lsn is None:
            return NOTHING_MISSING
        return MissingRows(frozenset(each for each in self.rows if each.lsn > lsn))

    @property
    def keys(self) -> frozenset[bytes]:
        """The keys whose rows matter."""
        return frozenset(each.key for each in self.rows if each.key is not None)


NOTHING_MISSING = MissingRows()
