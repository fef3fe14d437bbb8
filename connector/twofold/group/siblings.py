"""Decides which outcome of a branch in doubt keeps its global transaction whole, and which members
wait for that outcome, by the known states of the other branches. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from twofold.gids import describe
from twofold.group.in_doubt_warnings import statements
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


_OUTCOMES = {"committed": "committed", "rolled_back": "rolled back"}
NOT_KNOWN = (
    "no outcome of its other branches is known here, and one may have an outcome all the same: "
    "ask its coordinator, or look in the databases of the other branches"
)
"""Why no statement is offered.

Kafka does not have every outcome: a branch may have ended before its database's connector was set
up, or while that is down, or have been rolled back soon after its PREPARE.
"""


def siblings_of(gid: str, global_id: str, prefix: str, branches: Iterable[Branch]) -> tuple[Branch, ...]:
    """Return the other branches of the same global transaction."""
    return tuple(each for each in branches if each.global_id == global_id and (each.prefix, each.gid) != (prefix, gid))


def describe_sibling(branch: Branch) -> str:
    return f"{describe(branch.gid)} of {branch.prefix} is {_OUTCOMES.get(branch.state, 'in doubt as well')}"


def statements_left(gid: str, global_id: str | None, siblings: Iterable[Branch]) -> tuple[str, ...]:
    """Return the statements that tear no global transaction.

    None while no sibling's outcome is known (`NOT_KNOWN`). Both for what belongs to no global
    transaction, and where siblings have different outcomes: the transaction is torn, and its
    coordinator must judge.
    """
    commit, rollback = statements(gid)
    states = {each.state for each in siblings} & _OUTCOMES.keys()
    if states == {"committed"}:
        return (commit,)
    if states == {"rolled_back"}:
        return (rollback,)
    return (commit, rollback) if states or global_id is None else ()


def is_torn(siblings: Iterable[Branch]) -> bool:
    return {each.state for each in siblings} >= _OUTCOMES.keys()
