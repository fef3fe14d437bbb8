"""The rules of global cuts with one broken at a time; each must be caught by the world of
`group_world`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from model.group_world import GroupWorld
from twofold.bridge import State, batch, frontier, prepared
from twofold_common import gids, global_cut
from twofold_common.global_cut import Frontier
from twofold_common.global_loads import Decisions


@dataclass(frozen=True)
class GroupMutant:
    """`broken` takes the place of `where.attribute`."""

    name: str
    where: Any
    attribute: str
    broken: Any
    seed: int | None = None
    """A history that catches it, so that the short form need not search; None: `make model`
    searches.
    """

    @contextmanager
    def applied(self) -> Iterator[None]:
        with patch.object(self.where, self.attribute, self.broken):
            yield


def _does_not_wait(state: State) -> bool:
    return state.asked is not None


def _does_not_wait_for_what_is_held(state: State) -> bool:
    return frontier.has_passed(state)


def _only_the_streams(state: State) -> Any:
    return frozenset(each.identity for each in state.prepared if each.rows)


def _forget_what_was_lowered(lowering: Any, prefix: str, sequence: int) -> None:
    lowering._shown[prefix] = min(sequence, lowering._shown[prefix])


def _speaks_of_all(own: Any, prefix: str) -> None:
    pass


def _of_itself_it_speaks_of_all(own: Any, prefix: str, member: str) -> int:
    return 10**9 if prefix == member else _speaks_of(own, prefix, member)


def _close_with_a_frontier(state: State, out: Any) -> State:
    return _close(frontier.write(state, out), out)


def _cut_off_at_limits(members: Any, loads: Any, limits: Any = None) -> Any:
    cut = _greatest_cut(members, loads)
    if limits is None:
        return cut
    return {prefix: min(sequence, limits[prefix]) for prefix, sequence in cut.items()}


def _one_look(members: Any, loads: Any, whole: Any, find_limits: Any) -> Any:
    return _greatest_cut(members, loads, find_limits(1))


def _forget_loads(members: Any, loads: Any, limits: Any = None) -> Any:
    return _greatest_cut(members, (), limits)


def ignore_what_is_in_doubt(own: Any, frontier: Any) -> None:
    _follow(own, frontier)
    if own.in_doubt and own.least is None:
        own.in_doubt, own.least = set(), frontier.sequence


def need_not_show_what_is_decided(own: Any, frontier: Any) -> None:
    _follow(own, frontier)
    own.least = own.least and 0


def _believe_the_record(gid: str, recorded: str | None, patterns: Any) -> str | None:
    return recorded


def _keep_the_names(own: Any, frontier: Any) -> None:
    own._gid_patterns = frontier.gid_patterns if frontier else ()
    _follow(own, frontier)


def _only_behind_commits(last: Any, asked: Any, named: Any, listed: Any) -> bool:
    return _is_needed(last, asked, (), listed)


_close, _speaks_of = batch.close, Frontier.speaks_of
_greatest_cut, _follow = global_cut.greatest_cut, Decisions.follow
_is_needed = frontier.is_needed
MUTANTS = (
    GroupMutant("the end is asked before what is visible", frontier, "ORDER", ("end_lsn", "listed", "seen"), seed=9228),
    GroupMutant("the frontier does not wait for the stream", frontier, "is_due", _does_not_wait, seed=3),
    GroupMutant(
        "the frontier does not wait for what is held back",
        frontier,
        "is_due",
        _does_not_wait_for_what_is_held,
        seed=118,
    ),
    GroupMutant("in doubt is left out", frontier, "in_doubt", lambda _: frozenset(), seed=1),
    GroupMutant("what PostgreSQL lists is left out", frontier, "in_doubt", _only_the_streams, seed=286),
    GroupMutant("what was lowered is forgotten", global_cut.Lowering, "_lower", _forget_what_was_lowered, seed=2),
    GroupMutant("a frontier of a fenced connector is believed", GroupWorld, "outside_transactions", True, seed=1176),
    GroupMutant(
        "a frontier speaks of what it has not seen",
        global_cut.Lowering,
        "_lower_to_what_all_speak_of",
        _speaks_of_all,
        seed=8,
    ),
    GroupMutant("a frontier before a commit that is decided", prepared, "close", _close_with_a_frontier, seed=662),
    GroupMutant("a source without a frontier of its own", Frontier, "speaks_of", _of_itself_it_speaks_of_all, seed=55),
    GroupMutant("a limit cuts off and does not lower", global_cut, "greatest_cut", _cut_off_at_limits, seed=9),
    GroupMutant("a limit does not grow", global_cut, "greatest_step", _one_look, seed=2),
    GroupMutant("loads are forgotten", global_cut, "greatest_cut", _forget_loads, seed=65),
    GroupMutant("a load ignores what is in doubt", Decisions, "follow", ignore_what_is_in_doubt, seed=167),
    GroupMutant("a load goes without what is decided", Decisions, "follow", need_not_show_what_is_decided, seed=243),
    GroupMutant(
        "what ends without a commit record is not noticed", frontier, "is_needed", _only_behind_commits, seed=1518
    ),
    GroupMutant(
        "a branch is named as its commit record names it", gids, "find_global_id", _believe_the_record, seed=55
    ),
    GroupMutant("members need not read gids alike", global_cut, "unlike_patterns", lambda _: {}, seed=31),
    GroupMutant("a load compares names of other patterns", Decisions, "follow", _keep_the_names, seed=167),
    GroupMutant("what is listed is asked after the end", frontier, "ORDER", ("seen", "end_lsn", "listed")),
)
