"""Positions in PostgreSQL's write-ahead log, and the identity of a prepared transaction.

Pure values that all packages share. A position is an `int`, so that it compares and counts at no
cost. Only people see PostgreSQL's form `16/B374D848`.
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
    """The identity of a prepared transaction while it lives.

    A gid alone may be used again at once, and by another source.
    """

    xid: int
    gid: str

    def downstream_id(self, prepare_lsn: Lsn) -> str:
        """Return the name that consumers see; unique for one source for all time."""
        return f"{self.xid}:{format_lsn(prepare_lsn)}"
