"""The world of `group_world` with sources that are made again: `reset`, topics deleted, `init`.

A source that is made again has another stream, whose numbers begin with 1, and loads its tables.
The mirror begins in a new place. What is in doubt then was prepared before the new slot. The other
connectors may take a while until they notice.
"""

from __future__ import annotations

from model.group_world import GroupWorld, Kafka, Source
from twofold.bridge import events
from twofold_common.global_loads import Loads
from twofold_common.positions import NO_LSN, Lsn


class RemadeSource(Source):
    def __init__(self, world: GroupWorld, name: str) -> None:
        super().__init__(world, name)
        self.former: dict[str, events.MemberSeen] = {}
        """How far it has seen streams that other sources no longer have, until it notices."""
        self._slot_begins = NO_LSN

    def recover(self, confirmed: Lsn) -> None:
        if not self.started:
            self._slot_begins = self.end_lsn
        super().recover(confirmed)

    def crash(self, back: int) -> None:
        super().crash(back)
        self.confirmed = max(self.confirmed, self._slot_begins)

    def make_again(self) -> int:
        """Begin another stream; return how many branches are in doubt."""
        kinds = {each.identity: each.kind for each in self.log if each.kind not in "KR"}
        self.early |= {gid for gid, identity in self.prepared.items() if kinds.get(identity) == "P"}
        self.state, self.zombie, self.started = None, None, False
        self.kafka = Kafka(epoch=self.kafka.epoch + 1, stream_id=f"behind {self.end_lsn} {self.kafka.epoch}")
        return len(self.prepared)

    def _answer(self, question: str) -> object:
        answer = super()._answer(question)
        if question != "seen" or not self.former:
            return answer
        self.former = {name: each for name, each in self.former.items() if self.world.random.random() < 0.7}
        assert isinstance(answer, tuple)
        if self.former:
            self.reached = None  # it begins again when it notices
        return tuple(self.former.get(each.prefix, each) for each in answer)


class RemadeWorld(GroupWorld):
    """One random history."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.sources: list[RemadeSource]  # type: ignore[assignment]
        self.made_again = 0
        """How often there were branches in doubt in the source that was made again."""

    def make_source(self, name: str) -> Source:
        return RemadeSource(self, name)

    def any_step(self) -> None:
        if self.random.random() < 0.005:
            self._make_again(self.random.choice(self.sources))
        super().any_step()

    def finish(self) -> None:
        for each in self.sources:
            each.former.clear()
        super().finish()

    def _make_again(self, source: RemadeSource) -> None:
        visible = source.visible
        self.made_again += source.make_again() > 0
        for each in self.sources:
            if each is not source:
                each.former.setdefault(source.name, visible)
                each.reached = None  # who follows another stream begins again
        self._cut = {each.name: 0 for each in self.sources}
        self._loads = Loads()
        self._read_last[source.name] = 0
