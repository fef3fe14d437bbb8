"""Decides when members that are added to a source group may be in its global cuts. Pure.

The last global cut was chosen without them. It may show a branch of a global transaction whose
other branch a new member has in doubt, or has committed and does not show yet. From the start on
every cut is chosen with the new members, so no further such branch comes. A new member's frontier
that speaks of all that the others show has the earlier branches in doubt, or decided within its
number. The new members are admitted with the first cut that shows them so far.

The same holds for the branches of a new member whose first commit records Kafka no longer has: the
others must speak of those.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from twofold_common.global_cut import Member
from twofold_common.global_loads import Decisions, describe_in_doubt


class Admission:
    """Follows the frontiers from the start on."""

    def __init__(self, unknown: Mapping[str, int], joined: Collection[str]) -> None:
        """`unknown`: up to which commit record the branches of each member are not known, by
        prefix. `joined`: the members of the last global cut.
        """
        self._unknown = unknown
        self._joined = joined
        self._others = {
            prefix: [other for other, sequence in unknown.items() if sequence and not {prefix, other} <= {*joined}]
            for prefix in unknown
        }
        """The members of which a member's frontier must speak, by prefix."""
        self._decisions = {
            prefix: Decisions(prefix, {other: unknown[other] for other in others})
            for prefix, others in self._others.items()
        }

    def admits(self, members: Mapping[str, Member], cut: Mapping[str, int]) -> bool:
        """Whether this cut may be the first one with all members."""
        for prefix in self._others:
            self._decisions[prefix].follow(members[prefix].frontier)
        return not self.find_reasons(cut)

    def find_reasons(self, cut: Mapping[str, int]) -> list[str]:
        """Return what the admission waits for."""
        return [reason for prefix, others in self._others.items() if others and (reason := self._reason(prefix, cut))]

    def _reason(self, prefix: str, cut: Mapping[str, int]) -> str:
        decisions = self._decisions[prefix]
        if decisions.in_doubt is None:
            others = ", ".join(f"commit record {self._unknown[other]} of {other}" for other in self._others[prefix])
            return (
                f"a frontier of {prefix} that knows {others}: its connector writes one when it starts, "
                "and within some seconds behind what a member commits"
            )
        if decisions.least is None:
            return describe_in_doubt(prefix, decisions.in_doubt)
        is_behind = prefix not in self._joined and bool(self._unknown[prefix])
        least = max(decisions.least, self._unknown[prefix] + is_behind)
        if cut[prefix] < least:
            return f"a cut that shows commit record {least} of {prefix}"
        return ""
