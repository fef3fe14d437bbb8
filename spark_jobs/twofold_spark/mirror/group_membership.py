"""Decides which members the cuts of a group's mirror name: those of the last cut that are still in
the group, and the others from their first complete cut on. Pure, except for what it prints.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from twofold_common.global_cut import Member
from twofold_common.group_admission import Admission

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
