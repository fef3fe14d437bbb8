"""Positions in PostgreSQL's write-ahead log, and the name of a prepared transaction.

Pure values that every room shares. A position is an `int` so that it compares and counts at no cost; only people see PostgreSQL's `16/B374D848` form.
"""

from __future__ import annotations

from typing import NamedTuple, NewType

Lsn = NewType("Lsn", int)

NO_LSN = Lsn(0)


def parse_lsn(text: str) -> Lsn:
    """Read PostgreSQL's text form, `16/B374D848`; anything else is a ValueError."""
    high, slash, low = text.partition("/")
    if not slash or not 0 < len(high) <= 8 or not 0 < len(low) <= 8:
        raise ValueError(f"not a position in the write-ahead log: {text!r}")
    return Lsn(int(high, 16) << 32 | int(low, 16))


def format_lsn(lsn: int) -> str:
    """Write a position as PostgreSQL does."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


class PreparedIdentity(NamedTuple):
    """What a prepared transaction is called while it lives: a gid alone may be used again at once, and by another source."""

    xid: int
    gid: str

    def downstream_id(self, prepare_lsn: Lsn) -> str:
        """The name that consumers see; unique for one source for all time."""
        return f"{self.xid}:{format_lsn(prepare_lsn)}"
