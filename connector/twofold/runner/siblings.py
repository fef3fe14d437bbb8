"""Decides which outcome of a branch in doubt keeps its global transaction whole, by the known
states of the other branches. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

from twofold.gids import describe
from twofold.runner.in_doubt_warnings import statements
from twofold.sink.ledgers import Branch

_OUTCOMES = {"committed": "committed", "rolled_back": "rolled back"}


def siblings_of(gid: str, global_id: str, prefix: str, branches: Iterable[Branch]) -> tuple[Branch, ...]:
    """Return the other branches of the same global transaction."""
    return tuple(each for each in branches if each.global_id == global_id and (each.prefix, each.gid) != (prefix, gid))


def describe_sibling(branch: Branch) -> str:
    return f"{describe(branch.gid)} of {branch.prefix} is {_OUTCOMES.get(branch.state, 'in doubt as well')}"


def statements_left(gid: str, siblings: Iterable[Branch]) -> tuple[str, ...]:
    """Return the statements that keep the global transaction whole.

    Both while no sibling has an outcome. Both too where siblings have different outcomes: the
    transaction is torn, and its coordinator must judge.
    """
    commit, rollback = statements(gid)
    states = {each.state for each in siblings} & _OUTCOMES.keys()
    if states == {"committed"}:
        return (commit,)
    if states == {"rolled_back"}:
        return (rollback,)
    return commit, rollback


def is_torn(siblings: Iterable[Branch]) -> bool:
    return {each.state for each in siblings} >= _OUTCOMES.keys()
