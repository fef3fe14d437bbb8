"""A reader of global transactions in the world of `group_world`: it takes each step from cut to cut
unit after unit, and starts over behind any of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from model.group_loads import CommitRecord
from model.group_world import GroupWorld, Source, global_id
from model.logs import check
from twofold_common import global_order
from twofold_common.global_cut import Load
from twofold_common.global_loads import Loads
from twofold_common.global_order import Place, Stop, Unit


class OrderWorld(GroupWorld):
    """One random history, of which every unit is checked."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._done: dict[str, Place] = {each.name: (0, 0) for each in self.sources}
        """The last transaction of each source that has come."""
        self.units = self.merged = 0

    def _look(self, *, partly: bool) -> None:
        """Read what there is, and take the units; after some of them the reader is killed."""
        self._takes_steps = partly and self._step_random.random() < 0.3
        members = self._read_members(partly=partly)
        chosen, loads = self._choose(members), self._loads.follow(members)
        self.cuts += chosen != self._cut
        for unit in global_order.order_units(self._stops(chosen, loads)):
            self._take(unit)
            if partly and self._step_random.random() < 0.05:
                self._start_over()
                return
        for name, sequence in chosen.items():
            check(not self._stops_of(self._source(name), sequence, loads), "a transaction has not come")
        self._note_loads(self._cut, chosen)
        self._cut = chosen

    def _start_over(self) -> None:
        """Start as a reader does with its bookmark; a commit record that has come in part is read
        again.
        """
        self._loads = Loads()
        for source in self.sources:
            sequence, last = self._done[source.name]
            is_whole = not sequence or last >= len(source.kafka.commits[sequence - 1].gids) - 1
            self._cut[source.name] = max(self._cut[source.name], sequence - (not is_whole))

    def _stops(self, chosen: Mapping[str, int], loads: Iterable[Load]) -> dict[str, list[Stop]]:
        return {each.name: self._stops_of(each, chosen[each.name], loads) for each in self.sources}

    def _stops_of(self, source: Source, end: int, loads: Iterable[Load]) -> list[Stop]:
        """What has not come yet of the source's commit records up to this one."""
        ends = {each.sequence: each for each in loads if each.prefix == source.name}
        found = []
        for sequence, record in enumerate(source.kafka.commits[:end], 1):
            found += [Stop((sequence, at), global_id(gid)) for at, gid in enumerate(record.gids)]
            if record.load and sequence > self._cut[source.name]:
                found.append(Stop((sequence, 0), ends[sequence]))
        return [each for each in found if each.place > self._done[source.name]]

    def _take(self, unit: Unit) -> None:
        for name, (first, last) in unit.parts.items():
            left = [place for place in self._places(self._source(name)) if place > self._done[name]]
            check(left[0] == first, f"{name}: {left[0]} comes before {first}")
            self._done[name] = last
        self.units += 1
        self.merged += len(unit.global_ids) > 1
        self._check_records({each.name: self._records(each) for each in self.sources})

    def _places(self, source: Source) -> list[Place]:
        """Of all that has come or comes: branches, and the ends of loads."""
        records = enumerate(source.kafka.commits, 1)
        return [(n, at) for n, each in records for at in range(len(each.gids) or each.load is not None)]

    def _records(self, source: Source) -> list[CommitRecord]:
        """The commit records that have come, the last one as far as it has."""
        sequence, last = self._done[source.name]
        records = source.kafka.commits[:sequence]
        return [*records[:-1], replace_gids(records[-1], last + 1)] if records else []


def replace_gids(record: CommitRecord, count: int) -> CommitRecord:
    return record._replace(gids=record.gids[:count])
