"""Chooses the greatest global cut of several sources: how far each may be shown so that every
global transaction is whole or absent. Pure.

A *frontier* is one source's record of how far it has seen. Its connector first looked how far the
commit records of all members are visible (`seen`), then asked its source for the end of the WAL,
and wrote the frontier when its stream had passed that end. A branch is committed only after all
branches were prepared. So the frontier speaks of every global transaction within `seen`: this
source's branches of it are in doubt in the frontier, or are decided within its `sequence`, or do
not exist. docs/inside/group.md has the protocol.

A load shows what branches committed before its snapshot, and its commit record names none of them.
`twofold_common.global_loads` says how far each member must be shown with it.

Vectors of sequence numbers that keep every global transaction whole are closed under the maximum.
So there is a greatest one, and lowering finds it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple


class CommittedBranch(NamedTuple):
    """A branch in a commit record."""

    sequence: int
    global_id: str


class Load(NamedTuple):
    """A commit record that ends the load of a table."""

    prefix: str
    sequence: int
    least: Mapping[str, int] | None
    """How far each member must be shown with it, by prefix; None: that is not known yet."""


@dataclass(frozen=True, slots=True)
class Frontier:
    """How far one member has seen."""

    sequence: int
    """The member's last commit record at that point of its stream."""
    seen: Mapping[str, int]
    """The last visible commit record of every other member, by prefix."""
    in_doubt: Mapping[str, tuple[str, ...]]
    """The gids of the member's branches in doubt at that point, by global id."""
    lsn: int = 0
    """The position of the member's stream; for people only."""
    streams: Mapping[str, str] = field(default_factory=dict)
    """The stream that each number of `seen` belongs to, by prefix."""
    gid_patterns: tuple[str, ...] = ()
    """The patterns by which the member's connector reads gids."""

    @classmethod
    def from_lists(
        cls,
        sequence: int,
        lsn: int,
        seen: Iterable[tuple[str, int, str]],
        in_doubt: Iterable[tuple[str, str]],
        gid_patterns: Iterable[str],
    ) -> Frontier:
        """Make it of a record's lists: prefix, number and stream of what was seen; global id and
        gid of what is in doubt; patterns of gids.
        """
        numbers: dict[str, int] = {}
        streams: dict[str, str] = {}
        for prefix, number, stream in seen:
            numbers[prefix], streams[prefix] = number, stream
        gids: dict[str, tuple[str, ...]] = {}
        for global_id, gid in in_doubt:
            gids[global_id] = (*gids.get(global_id, ()), gid)
        return cls(sequence, numbers, gids, lsn, streams, tuple(gid_patterns))

    def keep_streams(self, read: Mapping[str, str]) -> Frontier:
        """Return what it says of the streams that are read, by prefix.

        A prefix that is made again counts from 1: a number of its former stream says nothing of the
        new one.
        """
        seen = {prefix: sequence for prefix, sequence in self.seen.items() if read.get(prefix) == self.streams[prefix]}
        return replace(self, seen=seen)

    def speaks_of(self, own: str, member: str) -> int:
        """Return the member's last commit record that this frontier, of `own`, knows about."""
        return self.sequence if member == own else self.seen.get(member, 0)


@dataclass(frozen=True, slots=True)
class Member:
    """The facts that are known of one source."""

    cut: int
    """The member's commit record in the last global cut; 0 before the first."""
    known: int
    """The last commit record that was read; all between are read as well."""
    branches: tuple[CommittedBranch, ...]
    """The branches of the commit records behind `cut`, in their order."""
    frontier: Frontier | None
    """The last one that was read; None before the first."""
    loads: tuple[int, ...] = ()
    """The commit records behind `cut` that end the load of a table."""


def greatest_cut(
    members: Mapping[str, Member], loads: Collection[Load] = (), limits: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Return the last commit record of every member, by prefix, that the next global cut may show.

    The cut never moves back. It stays until every member has a frontier, its commit records are
    read as far as the frontier knows, and all members read gids alike. `loads`: the loads that end
    behind the cut. With limits, by prefix, the result is the greatest cut within them. No limit is
    behind `cut`.
    """
    is_unread = any(each.frontier is None or each.frontier.sequence > each.known for each in members.values())
    if is_unread or unlike_patterns(members):
        return {prefix: each.cut for prefix, each in members.items()}
    return Lowering(members, loads).greatest(limits or {})


def unlike_patterns(members: Mapping[str, Member]) -> dict[str, tuple[str, ...]]:
    """Return each member's patterns of gids, by prefix, if they are not the same; else nothing.

    A branch whose gid its own member cannot read is in no frontier and in no commit record, so the
    other branches of its global transaction would be shown without it.
    """
    found = {prefix: each.frontier.gid_patterns for prefix, each in members.items() if each.frontier is not None}
    return found if len({*found.values()}) > 1 else {}


def greatest_step(
    members: Mapping[str, Member],
    loads: Collection[Load],
    whole: Mapping[str, int],
    find_limits: Callable[[int], Mapping[str, int]],
) -> dict[str, int]:
    """Return a cut on the way to `whole`, the greatest one, within limits.

    `find_limits` returns the limits times a factor. The factor grows where a global transaction
    reaches further than the limits: it cannot be divided.
    """
    limits = find_limits(factor := 1)
    while any(limits[prefix] < sequence for prefix, sequence in whole.items()):
        step = greatest_cut(members, loads, limits)
        if any(step[prefix] != each.cut for prefix, each in members.items()):
            return step
        limits = find_limits(factor := factor * 2)
    return dict(whole)


class Lowering:
    """Begins with all known commit records, and lowers each member that shows too much."""

    def __init__(self, members: Mapping[str, Member], loads: Collection[Load] = ()) -> None:
        self._members = members
        self._loads = loads
        self._shown = {prefix: each.known for prefix, each in members.items()}
        self._places: dict[str, list[tuple[str, int]]] = defaultdict(list)
        """The commit records that have a branch of a global transaction, by its id."""
        for prefix, each in members.items():
            for branch in each.branches:
                self._places[branch.global_id].append((prefix, branch.sequence))
        self._hidden: list[str] = []
        """Global transactions that some member cannot show, and that nobody may show."""
        self._early = [each for each in loads if self._is_early(each)]
        """Loads that show what some member does not show yet."""

    def greatest(self, limits: Mapping[str, int]) -> dict[str, int]:
        for prefix, limit in limits.items():
            self._lower(prefix, limit)
        for prefix in self._members:
            self._lower_to_what_all_speak_of(prefix)
        for each in self._members.values():
            if each.frontier is not None:
                self._hidden += each.frontier.in_doubt
        return self._hide()

    def without(self, global_id: str) -> dict[str, int]:
        """Return the cut that may be shown without this global transaction."""
        self._hidden.append(global_id)
        return self._hide()

    def _hide(self) -> dict[str, int]:
        while self._hidden or self._early:
            if self._early:
                load = self._early.pop()
                self._lower(load.prefix, load.sequence - 1)
                continue
            for prefix, sequence in self._places.pop(self._hidden.pop(), ()):
                self._lower(prefix, sequence - 1)
        return self._shown

    def _is_early(self, load: Load) -> bool:
        return load.least is None or any(self._shown[prefix] < least for prefix, least in load.least.items())

    def _lower_to_what_all_speak_of(self, prefix: str) -> None:
        """Hide each branch that some member's frontier does not know of."""
        spoken_of = min(
            each.frontier.speaks_of(other, prefix) for other, each in self._members.items() if each.frontier
        )
        for branch in self._members[prefix].branches:
            if branch.sequence > spoken_of:
                self._lower(prefix, branch.sequence - 1)
                break

    def _lower(self, prefix: str, sequence: int) -> None:
        """Show the member no further; hide the branches that it no longer shows, and their
        siblings.
        """
        shown = self._shown[prefix]
        if sequence < shown:
            self._shown[prefix] = sequence
            self._hidden += (
                branch.global_id for branch in self._members[prefix].branches if sequence < branch.sequence <= shown
            )
            self._early += (each for each in self._loads if self._is_early(each))
