"""The order of changes in the source: that of the commits, then that of a transaction's changes.

A commit record declares whole source transactions. In each partition their rows lie in this order,
so that the sorted or merged rows of all its partitions are the transactions, one after the other.
Pure.
"""

from __future__ import annotations

from collections.abc import Mapping


def source_place(
    identity: str | None, number: int, lsn: int, commit_lsn: int | None, outcomes: Mapping[str, int]
) -> tuple[int, int, str]:
    """Return a change's place: where its transaction's commit begins, its ordinal there, and the
    transaction.

    `identity` and `number` are of the envelope's transaction, `lsn` and `commit_lsn` of its source.
    `outcomes` has where the outcomes begin of the commit record's prepared transactions, by their
    ids. What belongs to no transaction, a loaded row or a non-transactional message, has its own
    position.
    """
    if identity is None:
        return lsn, 0, ""
    at = outcomes.get(identity) if outcomes else None
    return (commit_lsn or 0) if at is None else at, number, identity
