"""The world of `group_world` with a mirror whose members change.

It is started again and again, with members added and taken away. It is killed before it has
published, and finds the first commit records of an added member removed.
"""

from __future__ import annotations

from collections.abc import Mapping

from model.group_world import GroupWorld, Source, make_member
from model.logs import check
from twofold_common.global_cut import Frontier, Member
from twofold_common.global_loads import Loads
from twofold_common.group_admission import Admission


class MemberWorld(GroupWorld):
    """One random history."""

    has_leisure = True
    has_quick_coordinators = False
    """They bring global transactions, and an added member is to wait where there are none."""
    chooses_without_the_new = False
    """Before they are admitted, a cut is chosen as if they were no members."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._row: Mapping[str, int] = {}
        """The last global cut."""
        self._stands = {each.name: 0 for each in self.sources}
        """How far each member's own mirror is."""
        self._read: dict[str, tuple[int, Frontier | None]] = {}
        """Of each source: its commit records and its frontier; a reader never finds less."""
        self._admission: Admission | None = None
        self.admitted = 0
        self._start()

    def any_step(self) -> None:
        if self.random.random() < 0.01:
            self._start()
        super().any_step()

    def finish(self) -> None:
        self._start(everybody=self.random.random() < 0.5)
        for each in self.sources:
            each.append("T")  # who has nothing left in Kafka is not admitted
        super().finish()

    def _start(self, *, everybody: bool = False) -> None:
        """A start of the mirror, perhaps with other members."""
        rnd = self.random
        self._given = self.sources if everybody else rnd.sample(self.sources, rnd.randint(1, len(self.sources)))
        self._joined = {each.name for each in self._given if each.name in self._row}
        self._loads = Loads()
        for each in self._given:
            removed = rnd.randint(0, self._stands[each.name]) if rnd.random() < 0.3 else 0
            self._cut[each.name] = self._row.get(each.name, removed)
        unknown = {each.name: self._cut[each.name] for each in self._given}
        self._admission = Admission(unknown, frozenset(self._joined))

    def _look(self, *, partly: bool) -> None:
        for _ in range(1 if partly else 3):
            self._look_once(partly=partly)

    def _look_once(self, *, partly: bool) -> None:
        members = self._read_members(partly=partly)
        chosen = self._choose_now(members)
        if any(sequence < self._stands[name] for name, sequence in chosen.items()):
            return  # its tables cannot go back: the mirror waits
        self._stands |= chosen
        if partly and self.random.random() < 0.1:
            self._start()
            return
        if len(self._joined) < len(members) and self._is_admitted(members, chosen):
            self.admitted += bool(self._joined)
            self._joined = {*members}
        self._cut.update(chosen)
        if self._joined:
            self._publish({name: chosen[name] for name in self._joined})

    def _choose_now(self, members: dict[str, Member]) -> dict[str, int]:
        if not self.chooses_without_the_new or len(self._joined) == len(members):
            return self._choose(members)
        return {name: each.cut for name, each in members.items()} | self._choose(
            {name: each for name, each in members.items() if name in self._joined}
        )

    def _is_admitted(self, members: Mapping[str, Member], chosen: Mapping[str, int]) -> bool:
        assert self._admission is not None
        return all(each.frontier for each in members.values()) and self._admission.admits(members, chosen)

    def _publish(self, row: Mapping[str, int]) -> None:
        moved_back = [name for name, sequence in row.items() if sequence < self._row.get(name, 0)]
        check(not moved_back, f"the cut moved back for {moved_back}")
        self.cuts += row != self._row
        self._note_loads(self._row, row)
        self._row = row
        self._check_whole(row)

    def _read_members(self, *, partly: bool) -> dict[str, Member]:
        return {each.name: self._read_one(each, partly=partly) for each in self._given}

    def _read_one(self, source: Source, *, partly: bool) -> Member:
        """Read all frontiers before any commit record: nothing happens between."""
        known, frontier = self._read.get(source.name, (0, None))
        there = source.kafka.frontiers
        if there and not (partly and self.random.random() < 0.3):
            frontier = there[-1]
        cut, all_there = self._cut[source.name], len(source.kafka.commits)
        least = max(known, cut, min(all_there, frontier.sequence if frontier else 0))
        known = self.random.randint(least, all_there) if partly else all_there
        self._read[source.name] = known, frontier
        return make_member(source, cut, known, frontier)

    def _check_all_shown(self) -> None:
        for each in self._given:
            check(
                self._row.get(each.name, 0) == len(each.kafka.commits),
                f"{each.name} is held back or not admitted, and nothing is in doubt",
            )
