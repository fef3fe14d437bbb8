"""Finds who waits for whom: which global transactions hold a global cut back, where each one's
branches stand, and how many commits wait for it. Pure.

A global transaction holds others back if one member shows an outcome, and another has a branch in
doubt or has not seen that outcome. The members that committed it are shown only up to before its
commit. This may hide branches of other global transactions, and so hold back further members.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from twofold_common.global_cut import Lowering, Member


class BranchPlace(NamedTuple):
    """A member's place in a global transaction."""

    prefix: str
    state: Literal["committed", "in doubt", "not seen"]
    """Not seen: its last frontier is older than the outcome in another member."""
    sequence: int
    """The commit record with the branch; otherwise the one of the member's last frontier."""
    lsn: int = 0
    """The position of the last frontier; 0 where the branch is committed."""
    gids: tuple[str, ...] = ()
    """The gids of branches in doubt."""


@dataclass(frozen=True, slots=True)
class Wait:
    """A global transaction that holds others back."""

    global_id: str
    places: tuple[BranchPlace, ...]

    def in_state(self, state: str) -> list[BranchPlace]:
        return [each for each in self.places if each.state == state]


@dataclass(frozen=True, slots=True)
class LongWait:
    """A global transaction that has held others back for a while."""

    wait: Wait
    waited_s: float
    held: Mapping[str, int]
    """How many commit records of each member wait for it."""


def find_waits(members: Mapping[str, Member]) -> list[Wait]:
    """Return the global transactions that hold others back, in the order of their ids."""
    committed = defaultdict[str, list[BranchPlace]](list)
    for prefix, each in members.items():
        for branch in each.branches:
            committed[branch.global_id].append(BranchPlace(prefix, "committed", branch.sequence))
    found = []
    for global_id, places in sorted(committed.items()):
        if left := [
            place for prefix, each in members.items() if (place := _undecided(prefix, each, global_id, places))
        ]:
            found.append(Wait(global_id, (*places, *left)))
    return found


def count_held(members: Mapping[str, Member], global_id: str) -> dict[str, int]:
    """Return how many commit records of each member wait for this global transaction, by prefix."""
    shown = Lowering(members).without(global_id)
    return {prefix: each.known - shown[prefix] for prefix, each in members.items() if each.known > shown[prefix]}


def without_frontier(members: Mapping[str, Member]) -> list[str]:
    """Return the members that have never written a frontier: the whole cut waits for them."""
    return [prefix for prefix, each in members.items() if each.frontier is None]


def _undecided(prefix: str, member: Member, global_id: str, committed: Iterable[BranchPlace]) -> BranchPlace | None:
    """Return where the member stands, if it holds the global transaction back; else None."""
    frontier = member.frontier
    if frontier is None:
        return BranchPlace(prefix, "not seen", 0)
    if global_id in frontier.in_doubt:
        return BranchPlace(prefix, "in doubt", frontier.sequence, frontier.lsn, frontier.in_doubt[global_id])
    if any(each.sequence > frontier.speaks_of(prefix, each.prefix) for each in committed):
        return BranchPlace(prefix, "not seen", frontier.sequence, frontier.lsn)
    return None


class WaitClock:
    """How long each global transaction has held others back without a break."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def measure(self, waits: Iterable[Wait], now: float) -> dict[str, float]:
        """Return the seconds by global id; 0 for a new global transaction."""
        self._since = {each.global_id: self._since.get(each.global_id, now) for each in waits}
        return {global_id: now - since for global_id, since in self._since.items()}
