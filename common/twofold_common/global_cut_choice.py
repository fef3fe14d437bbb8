"""Chooses the next global cut where waiting has a limit. Pure.

A global transaction that has held others back for longer than the limit is let go: the cut is
chosen as if its branches were plain. What the cut may then show in part is *torn*. It stays so
until it is whole in a later cut, and every cut until then names it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from twofold_common.global_cut import Frontier, Member, greatest_cut


class ShownBranch(NamedTuple):
    """A committed branch that a global cut shows."""

    prefix: str
    sequence: int


Torn = Mapping[str, tuple[ShownBranch, ...]]
"""What a cut shows of each global transaction that it may show in part, by global id."""
NOTHING_TORN: Torn = {}


class Choice(NamedTuple):
    """The next global cut."""

    cut: dict[str, int]
    """The last commit record of every member, by prefix."""
    torn: Torn


def choose_cut(
    members: Mapping[str, Member], torn: Torn, overdue: Collection[str], limits: Mapping[str, int] | None = None
) -> Choice:
    """Choose the greatest cut that keeps all whole except what is overdue, or torn already.

    `torn` is what the last cut says. Without both it is the greatest global cut. It goes no further
    than the limits.
    """
    let_go = {*torn, *overdue}
    wanted = {prefix: _without(each, let_go) for prefix, each in members.items()} if let_go else members
    cut = greatest_cut(wanted, limits)
    return Choice(cut, dict(_find_torn(members, torn, let_go, cut)))


def choose_step(
    members: Mapping[str, Member],
    whole: Choice,
    torn: Torn,
    overdue: Collection[str],
    find_limits: Callable[[int], Mapping[str, int]],
) -> Choice:
    """Choose a cut on the way to the chosen one, within limits.

    `find_limits` returns the limits times a factor. The factor grows where a global transaction
    reaches further than the limits: it cannot be divided.
    """
    limits = find_limits(factor := 1)
    while any(limits[prefix] < sequence for prefix, sequence in whole.cut.items()):
        step = choose_cut(members, torn, overdue, limits)
        if any(step.cut[prefix] != each.cut for prefix, each in members.items()):
            return step
        limits = find_limits(factor := factor * 2)
    return whole


def keep_members(torn: Torn, prefixes: Collection[str]) -> Torn:
    """Return what a cut of these members says of what was torn in a cut of others."""
    kept = {each: tuple(branch for branch in shown if branch.prefix in prefixes) for each, shown in torn.items()}
    return {each: shown for each, shown in kept.items() if shown}


def find_overdue(waited_s: Mapping[str, float], limit_s: float | None) -> set[str]:
    """Return what has held others back for longer than the limit; None is no limit."""
    return set() if limit_s is None else {each for each, waited in waited_s.items() if waited > limit_s}


def _without(member: Member, global_ids: Collection[str]) -> Member:
    """Return the member as if it knew nothing of these global transactions."""
    frontier = member.frontier
    if frontier is not None:
        left = {each: gids for each, gids in frontier.in_doubt.items() if each not in global_ids}
        frontier = replace(frontier, in_doubt=left)
    branches = tuple(each for each in member.branches if each.global_id not in global_ids)
    return replace(member, branches=branches, frontier=frontier)


def _find_torn(
    members: Mapping[str, Member], torn: Torn, let_go: Collection[str], cut: Mapping[str, int]
) -> Iterable[tuple[str, tuple[ShownBranch, ...]]]:
    committed = defaultdict[str, list[ShownBranch]](list)
    for prefix, each in members.items():
        for branch in each.branches:
            if branch.global_id in let_go:
                committed[branch.global_id].append(ShownBranch(prefix, branch.sequence))
    frontiers = {prefix: each.frontier for prefix, each in members.items()}
    for global_id in sorted(let_go):
        known = (*torn.get(global_id, ()), *committed[global_id])
        shown = tuple(each for each in known if each.sequence <= cut[each.prefix])
        if shown and not (len(shown) == len(known) and _has_no_other(global_id, shown, frontiers)):
            yield global_id, shown


def _has_no_other(global_id: str, shown: Collection[ShownBranch], frontiers: Mapping[str, Frontier | None]) -> bool:
    """Whether every member knows these branches, and has no other one in doubt."""
    return all(
        frontier is not None
        and global_id not in frontier.in_doubt
        and all(frontier.speaks_of(prefix, each.prefix) >= each.sequence for each in shown)
        for prefix, frontier in frontiers.items()
    )
