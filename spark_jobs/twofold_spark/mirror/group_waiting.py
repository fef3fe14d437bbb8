"""Which members the cuts of a group's mirror name, and who waits for whom: both are said when they
change, and every minute while something waits. Pure, except for what it prints.

The cuts name the members of the last cut that are still in the group, and the others from their
first complete cut on. Most global transactions end within a moment: one is named when it has held
others back for a while.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping

from twofold_common.global_cut import Member, unlike_patterns
from twofold_common.global_waits import BranchPlace, LongWait, Wait, count_held, without_frontier
from twofold_common.group_admission import Admission
from twofold_common.positions import format_lsn
from twofold_common.table_names import quote_literal

AGAIN_S = 60.0


class GroupMembership:
    """Follows the admission of members that are added."""

    def __init__(
        self, members: Collection[str], last: Collection[str], *, named_after_s: float, warn: Callable[[str], None]
    ) -> None:
        """`last`: the members of the last global cut."""
        self._members = members
        self.joined = frozenset(each for each in last if each in members)
        """The members that the next global cut names; nobody before the first one."""
        self._admission: Admission | None = None
        self._warn = warn
        self._named_after_s = named_after_s
        self._name_at: float | None = None
        if last and (added := sorted({*members} - self.joined)):
            warn(f"mirror: {', '.join(added)} joins the source group: the first cut that is complete with it names it")
        if gone := sorted({*last} - self.joined):
            warn(f"mirror: {', '.join(gone)} is no member any more: its tables stay as they are, and no cut names it")

    def may_apply(self, cut: Mapping[str, int], applied: Mapping[str, int], now: float) -> bool:
        """Whether no member's tables are ahead of what the cut may show.

        They cannot go back. A member may have been mirrored without the others, or the last process
        has ended before it could publish.
        """
        ahead = [
            f"a cut that shows commit record {sequence} of {prefix}, where its tables are"
            for prefix, sequence in applied.items()
            if cut[prefix] < sequence
        ]
        if ahead:
            self._name_reasons(ahead, now)
        return not ahead

    def admit(self, members: Mapping[str, Member], cut: Mapping[str, int], now: float) -> bool:
        """Return whether all are in the global cuts from this cut on, and were not before."""
        if len(self.joined) == len(self._members):
            return False
        if any(each.frontier is None or each.frontier.sequence > each.known for each in members.values()):
            return False
        if self._admission is None:
            self._admission = Admission({prefix: each.cut for prefix, each in members.items()}, self.joined)
        if not self._admission.admits(members, cut):
            self._name_reasons(self._admission.find_reasons(cut), now)
            return False
        self.joined = frozenset(self._members)
        return True

    def _name_reasons(self, reasons: Collection[str], now: float) -> None:
        """Say what is waited for, after a while and again and again."""
        if self._name_at is None:
            self._name_at = now + self._named_after_s
        if now >= self._name_at:
            self._name_at = now + AGAIN_S
            missing = sorted({*self._members} - self.joined)
            what = f"{', '.join(missing)} waits for" if missing else "the next global cut waits for"
            self._warn(f"mirror: {what} {'; '.join(reasons)}")


NAMED_AFTER_S = 5.0
NAMED_MAX = 5
"""Lines at a time."""
LISTED_MAX = 100
"""Rows of the table."""
_UNLIKE = "prepared.gid_patterns"
"""What is named if the members' differ."""


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
        if unlike := tuple(f"{prefix} has [{', '.join(each)}]" for prefix, each in unlike_patterns(members).items()):
            named[_UNLIKE] = unlike
        self._loads_since = {load: self._loads_since.get(load, now) for load in loads}
        said_loads = {
            f"the load that ends with commit record {sequence} of {prefix}": tuple(reasons)
            for (prefix, sequence), reasons in loads.items()
            if now - self._loads_since[prefix, sequence] >= self._named_after_s
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
        if _UNLIKE in changed:
            lines.append(
                f"mirror: waits until all members read gids alike: {', '.join(self._named[_UNLIKE])}; give them one list of prepared.gid_patterns, and restart their connectors"
            )
        lines += [f"mirror: {load} waits for {'; '.join(why)}" for load, why in loads.items() if load in changed]
        said = [_describe_wait(each) for each in self.waits if each.wait.global_id in changed]
        lines += said[:NAMED_MAX]
        if (more := len(changed) - len(lines)) > 0:
            lines.append(f"mirror: waits for {more} more global transactions")
        return lines


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
