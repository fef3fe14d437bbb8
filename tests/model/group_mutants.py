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
from twofold.bridge import State, frontier, group, prepared
from twofold_common import global_cut, global_cut_choice
from twofold_common.global_cut import Frontier


@dataclass(frozen=True)
class GroupMutant:
    """`broken` takes the place of `where.attribute`."""

    name: str
    where: Any
    attribute: str
    broken: Any
    seed: int = 0
    """A history that catches it, so that the short form need not search."""
    limit: int | None = None
    """How long its world waits."""

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


def _let_go_at_once(waited_s: Any, limit_s: Any) -> set[str]:
    return {*waited_s}


def _let_all_go(waited_s: Any, limit_s: Any) -> set[str]:
    return {*waited_s} if _find_overdue(waited_s, limit_s) else set()


def _name_nothing(members: Any, torn: Any, overdue: Any, limits: Any = None) -> Any:
    return _choose_cut(members, torn, overdue, limits)._replace(torn={})


def _forget_what_was_torn(members: Any, torn: Any, overdue: Any, limits: Any = None) -> Any:
    return _choose_cut(members, {}, overdue, limits)


def _cut_off_at_limits(members: Any, torn: Any, overdue: Any, limits: Any = None) -> Any:
    choice = _choose_cut(members, torn, overdue)
    if limits is None:
        return choice
    return choice._replace(cut={prefix: min(sequence, limits[prefix]) for prefix, sequence in choice.cut.items()})


def _one_look(members: Any, whole: Any, torn: Any, overdue: Any, find_limits: Any) -> Any:
    return _choose_cut(members, torn, overdue, find_limits(1))


def _whole_when_shown(global_id: Any, shown: Any, frontiers: Any) -> bool:
    return True


def _never_whole(global_id: Any, shown: Any, frontiers: Any) -> bool:
    return False


_close, _speaks_of = group.close, Frontier.speaks_of
_find_overdue, _choose_cut = global_cut_choice.find_overdue, global_cut_choice.choose_cut
LIMIT = 20
MUTANTS = (
    GroupMutant("the end is asked before what is visible", frontier, "ORDER", ("end_lsn", "listed", "seen"), seed=717),
    GroupMutant("the frontier does not wait for the stream", frontier, "is_due", _does_not_wait, seed=1),
    GroupMutant(
        "the frontier does not wait for what is held back",
        frontier,
        "is_due",
        _does_not_wait_for_what_is_held,
        seed=11324,
    ),
    GroupMutant("in doubt is left out", frontier, "in_doubt", lambda _: frozenset(), seed=69),
    GroupMutant("what PostgreSQL lists is left out", frontier, "in_doubt", _only_the_streams, seed=69),
    GroupMutant("what was lowered is forgotten", global_cut.Lowering, "_lower", _forget_what_was_lowered, seed=2),
    GroupMutant("a frontier of a fenced connector is believed", GroupWorld, "outside_transactions", True, seed=3038),
    GroupMutant(
        "a frontier speaks of what it has not seen",
        global_cut.Lowering,
        "_lower_to_what_all_speak_of",
        _speaks_of_all,
        seed=24,
    ),
    GroupMutant("a frontier before a commit that is decided", prepared, "close", _close_with_a_frontier, seed=3216),
    GroupMutant("a source without a frontier of its own", Frontier, "speaks_of", _of_itself_it_speaks_of_all, seed=224),
    GroupMutant("a limit cuts off and does not lower", global_cut_choice, "choose_cut", _cut_off_at_limits, seed=69),
    GroupMutant("a limit does not grow", global_cut_choice, "choose_step", _one_look, seed=196),
    GroupMutant("torn before its time", global_cut_choice, "find_overdue", _let_go_at_once, limit=LIMIT),
    GroupMutant("more is torn than is overdue", global_cut_choice, "find_overdue", _let_all_go, limit=LIMIT),
    GroupMutant("what is torn is not named", global_cut_choice, "choose_cut", _name_nothing, limit=LIMIT),
    GroupMutant("what was torn is forgotten", global_cut_choice, "choose_cut", _forget_what_was_torn, limit=LIMIT),
    GroupMutant(
        "torn ends when all known is shown", global_cut_choice, "_has_no_other", _whole_when_shown, limit=LIMIT
    ),
    GroupMutant("torn never ends", global_cut_choice, "_has_no_other", _never_whole, limit=LIMIT),
    GroupMutant("what is listed is asked after the end", frontier, "ORDER", ("seen", "end_lsn", "listed"), seed=4673),
)
