"""Says who waits for whom in a group's mirror: when it changes, and every minute while it lasts.
Pure.

Most global transactions end within a moment: one is named when it has held others back for a while.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from twofold_common.global_cut import Member
from twofold_common.global_waits import BranchPlace, LongWait, Wait, count_held, without_frontier
from twofold_common.positions import format_lsn
from twofold_common.table_names import quote_literal

NAMED_AFTER_S = 5.0
AGAIN_S = 60.0
NAMED_MAX = 5
"""Lines at a time."""
LISTED_MAX = 100
"""Rows of the table."""


class WaitReport:
    """Decides when to name what waits."""

    def __init__(self, named_after_s: float = NAMED_AFTER_S) -> None:
        self._named_after_s = named_after_s
        self._named: dict[str, tuple[str, ...]] = {}
        """What was named last, with the states of its branches."""
        self._loads_since: dict[tuple[str, int], float] = {}
        """Since when the ends of loads have waited."""
        self._changed_at = self._all_named_at = -math.inf
        self.lines: list[str] = []
        """What to print now."""
        self.waits: list[LongWait] = []
        """Those that hold others back, the oldest first."""

    def note_waits(
        self,
        members: Mapping[str, Member],
        waits: Iterable[Wait],
        waited_s: Mapping[str, float],
        loads: Mapping[tuple[str, int], list[str]],
        now: float,
    ) -> bool:
        """Note what waits at this time. Return whether it is to be printed and published.

        `loads`: what the ends of loads wait for, by prefix and number of their commit records.
        """
        old = [each for each in waits if waited_s[each.global_id] >= self._named_after_s]
        named = {each.global_id: tuple(place.prefix + place.state for place in each.places) for each in old}
        named |= dict.fromkeys(without_frontier(members), ("no frontier",))
        self._loads_since = {load: self._loads_since.get(load, now) for load in loads}
        said_loads = {
            _describe_load(*load): tuple(reasons)
            for load, reasons in loads.items()
            if now - self._loads_since[load] >= self._named_after_s
        }
        named |= said_loads
        is_again = bool(named) and now - self._all_named_at >= AGAIN_S
        if not is_again and (named == self._named or now - self._changed_at < self._named_after_s):
            return False
        changed = {each for each, states in named.items() if is_again or self._named.get(each) != states}
        self._named, self._changed_at = named, now
        if is_again:
            self._all_named_at = now
        old.sort(key=lambda each: -waited_s[each.global_id])
        self.waits = [
            LongWait(each, waited_s[each.global_id], count_held(members, each.global_id)) for each in old[:LISTED_MAX]
        ]
        self.lines = self._list_lines(members, said_loads, changed)
        return True

    @property
    def is_waiting(self) -> bool:
        """Whether something was named last that holds the cut back."""
        return bool(self._named)

    def _list_lines(
        self, members: Mapping[str, Member], loads: Mapping[str, Iterable[str]], changed: set[str]
    ) -> list[str]:
        if not self._named:
            return ["mirror: nothing holds the next cut back any more"]
        lines = [
            f"mirror: waits for the first frontier of {prefix}: run its connector with the [group] of all members"
            for prefix in without_frontier(members)
            if prefix in changed
        ]
        lines += [f"mirror: {load} waits for {'; '.join(why)}" for load, why in loads.items() if load in changed]
        said = [_describe_wait(each) for each in self.waits if each.wait.global_id in changed]
        lines += said[:NAMED_MAX]
        if (more := len(changed) - len(lines)) > 0:
            lines.append(f"mirror: waits for {more} more global transactions")
        return lines


def _describe_load(prefix: str, sequence: int) -> str:
    return f"the load that ends with commit record {sequence} of {prefix}"


def commit_statement(gid: str) -> str:
    """Return the statement that commits a branch, as a sibling of it is committed."""
    return f"COMMIT PREPARED {quote_literal(gid)};"


def _describe_wait(each: LongWait) -> str:
    held = ", ".join(f"{count} of {prefix}" for prefix, count in each.held.items())
    places = ", ".join(map(_describe, each.wait.places))
    ends = "".join(
        f"; to end it, in the database of {place.prefix}: {commit_statement(gid)}"
        for place in each.wait.in_state("in doubt")
        for gid in place.gids
    )
    return (
        f"mirror: waits for the global transaction {each.wait.global_id} for {each.waited_s:.0f} s: "
        f"{places}; commit records that wait: {held}{ends}"
    )


def _describe(place: BranchPlace) -> str:
    match place.state:
        case "committed":
            return f"committed in {place.prefix} by commit record {place.sequence}"
        case "in doubt":
            return f"in doubt in {place.prefix} at {format_lsn(place.lsn)}"
        case _:
            return f"{place.prefix} has seen nothing of it up to {format_lsn(place.lsn)}"
