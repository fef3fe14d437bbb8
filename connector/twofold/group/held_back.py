"""Finds which members of the source group wait for a branch that is in doubt here. Pure.

A global cut shows no part of a global transaction. So while one branch is in doubt, a member that
has committed another is shown up to before it, and its later commit records wait. Others may wait
too, because that hides a branch of theirs: the group's mirror knows all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from twofold.group.ledgers import Branch


@dataclass(frozen=True, slots=True)
class HeldBack:
    """A member that has committed a branch of the same global transaction."""

    prefix: str
    sequence: int
    """The commit record with that branch."""
    commits: int
    """How many of the member's commit records wait: this one and those behind it."""
    since: float | None
    """When the branch was committed, by that server's clock; None if it is not known."""

    def __str__(self) -> str:
        return f"{self.commits} commit record{'s' * (self.commits != 1)} of {self.prefix} from {self.sequence} on"


def held_back_by(siblings: Iterable[Branch], members: Collection[str], last: Mapping[str, int]) -> tuple[HeldBack, ...]:
    """Return the members that wait for these siblings' global transaction, by prefix.

    `last`: the last commit record of each connector.
    """
    first: dict[str, Branch] = {}
    for each in siblings:
        if each.state == "committed" and each.sequence is not None and each.prefix in members:
            known = first.get(each.prefix)
            if known is None or each.sequence < (known.sequence or 0):
                first[each.prefix] = each
    return tuple(
        HeldBack(prefix, each.sequence, max(1, last.get(prefix, 0) - each.sequence + 1), each.committed_at)
        for prefix, each in sorted(first.items())
        if each.sequence is not None
    )


def count_held_back(held_back: Iterable[HeldBack]) -> int:
    """Return how many commit records wait for any of these: one that waits for two counts once."""
    most: dict[str, int] = {}
    for each in held_back:
        most[each.prefix] = max(each.commits, most.get(each.prefix, 0))
    return sum(most.values())
