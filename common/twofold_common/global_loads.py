"""Decides when the end of a load may be in a global cut. Pure.

A load's rows show what branches of global transactions committed before its snapshot, and its
commit record names none of them. Each of these was prepared, with all its siblings, before the
commit record was visible. So the first frontier of each member that knows the commit record has
every sibling there: in doubt, or decided within its number. The load may be shown together with the
outcomes of all that was in doubt there. Some of these transactions do not belong to the load, which
then waits longer than it must.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from twofold_common.global_cut import Frontier, Load, Member


def ends_a_load(kind: str, topics: Iterable[str], backfilling: Collection[str]) -> bool:
    """Whether a commit record of this kind, with rows in these topics, ends the load of a table.

    The last chunk of a load may have no rows; so may one in its midst, which then counts too.
    """
    topics = tuple(topics)
    return kind == "backfill" and (not topics or any(each not in backfilling for each in topics))


class Decisions:
    """Follows a member's frontiers until each branch of given commit records is decided.

    With other patterns of gids it begins again: the names of what is in doubt are others.
    """

    def __init__(self, prefix: str, shown: Mapping[str, int]) -> None:
        """`shown`: the commit records, by prefix; the member's own may be one of them."""
        self._prefix = prefix
        self._shown = shown
        self.in_doubt: set[str] | None = None
        """The transactions in doubt by the first frontier that knows the commit records, and by all
        later ones; None before that frontier.
        """
        self.least: int | None = None
        """The member's commit record by which all are decided; None before that is known."""
        self._gid_patterns: tuple[str, ...] = ()

    def follow(self, frontier: Frontier | None) -> None:
        """Take the member's last frontier. Frontiers come in their order."""
        if frontier is None:
            return
        if frontier.gid_patterns != self._gid_patterns:
            self.in_doubt, self.least, self._gid_patterns = None, None, frontier.gid_patterns
        if self.least is not None:
            return
        if self.in_doubt is None:
            if any(frontier.speaks_of(self._prefix, other) < sequence for other, sequence in self._shown.items()):
                return
            self.in_doubt = {*frontier.in_doubt}
        self.in_doubt &= frontier.in_doubt.keys()
        if not self.in_doubt:
            self.least = frontier.sequence


class Loads:
    """Follows the ends of loads that no global cut shows yet."""

    def __init__(self) -> None:
        self._followed: dict[tuple[str, int], dict[str, Decisions]] = {}

    def follow(self, members: Mapping[str, Member]) -> list[Load]:
        """Take the members' last frontiers; return the loads behind the cut."""
        due = [(prefix, sequence) for prefix, each in members.items() for sequence in each.loads]
        self._followed = {load: self._followed.get(load) or _begin(load, members) for load in due}
        return [self._follow_load(load, decisions, members) for load, decisions in self._followed.items()]

    def find_reasons(self) -> dict[tuple[str, int], list[str]]:
        """Return what the loads wait for, by the prefix and number of their commit records."""
        return {load: reasons for load, each in self._followed.items() if (reasons := _list_reasons(load, each))}

    def _follow_load(
        self, load: tuple[str, int], decisions: Mapping[str, Decisions], members: Mapping[str, Member]
    ) -> Load:
        for prefix, each in decisions.items():
            each.follow(members[prefix].frontier)
        least = {prefix: each.least for prefix, each in decisions.items() if each.least is not None}
        return Load(*load, least if len(least) == len(decisions) else None)


def _begin(load: tuple[str, int], members: Iterable[str]) -> dict[str, Decisions]:
    """Follow every member, the load's own too: it may have another branch in doubt."""
    prefix, sequence = load
    return {each: Decisions(each, {prefix: sequence}) for each in members}


def _list_reasons(load: tuple[str, int], decisions: Mapping[str, Decisions]) -> list[str]:
    prefix, sequence = load
    reasons = []
    for member, each in decisions.items():
        if each.in_doubt is None:
            reasons.append(f"a frontier of {member} that knows commit record {sequence} of {prefix}")
        elif each.in_doubt:
            reasons.append(describe_in_doubt(member, each.in_doubt))
    return reasons


def describe_in_doubt(prefix: str, in_doubt: Collection[str]) -> str:
    named = sorted(in_doubt)
    return f"what is in doubt in {prefix}: {', '.join(named[:5])}{' and more' if len(named) > 5 else ''}"
