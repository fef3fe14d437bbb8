"""Positions in PostgreSQL's write-ahead log, the identity of a prepared transaction, and the order
of changes in the source.

Pure values that all packages share. A position is an `int`, so that it compares and counts at no
cost. Only people see PostgreSQL's form `16/B374D848`.
"""

from __future__ import annotations

from collections.abc import Mapping
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


def source_place(
    identity: str | None, number: int, lsn: int, commit_lsn: int | None, outcomes: Mapping[str, int]
) -> tuple[int, int, str]:
    """Return a change's place in the source's order: where its transaction's commit begins, the
    change's ordinal in the transaction, and the transaction.

    `identity` and `number` are of the envelope's transaction, `lsn` and `commit_lsn` of its source.
    `outcomes` has the positions where the outcomes of the commit record's prepared transactions
    begin, by transaction id. A change without a transaction, such as a loaded row or a
    non-transactional message, has its own position.

    The rows of a commit record lie in this order in each partition. So the merged rows of all
    partitions are the source's transactions, one after the other.
    """
    if identity is None:
        return lsn, 0, ""
    at = outcomes.get(identity) if outcomes else None
    return (commit_lsn or 0) if at is None else at, number, identity
