"""The reader's halves of all tables' lives in one run, by topic.

`lives.load_life` decides; the caller of `apply` executes the actions. Actions for the merger are
kept for the worker's next job.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from twofold.lives.exchanged import WatchTopic
from twofold.lives.load_life import LoadAction, LoadEvent, LoadLife, PinRead, step_load
from twofold.lives.load_progress import LoadProgress
from twofold_avro.records import Pin

_NO_LOAD = LoadLife()


class TableLives:
    """The halves of one run. The thread that reads owns them."""

    def __init__(self, pins: Mapping[str, Pin]) -> None:
        self._lives: dict[str, LoadLife] = {}
        """The lives that differ from the life of a table without a load."""
        self._in_need: dict[str, None] = {}
        """The topics whose lives need a turn."""
        self._commanded: dict[str, None] = {}
        """The topics whose commands wait for their place in the stream."""
        self._for_merger: list[tuple[str, WatchTopic]] = []
        for topic, pin in pins.items():
            if pin.backfill != "ready":
                self.apply(topic, PinRead(pin.backfill, LoadProgress.from_bytes(pin.bound)))

    def __getitem__(self, topic: str) -> LoadLife:
        return self._lives.get(topic, _NO_LOAD)

    def apply(self, topic: str, event: LoadEvent) -> tuple[LoadAction, ...]:
        """Apply the event; return the actions, except those for the merger."""
        life, actions = step_load(self[topic], event)
        if life == _NO_LOAD:
            self._lives.pop(topic, None)
        else:
            self._lives[topic] = life
        for topics, belongs in (self._in_need, life.needs_turn), (self._commanded, life.has_command):
            if belongs:
                topics[topic] = None
            else:
                topics.pop(topic, None)
        self._for_merger += [(topic, action) for action in actions if isinstance(action, WatchTopic)]
        return tuple(action for action in actions if not isinstance(action, WatchTopic))

    def is_in_backfill(self, topic: str) -> bool:
        return self[topic].in_backfill

    def is_emptying(self, topic: str) -> bool:
        """Whether the topic's truncate is still to come."""
        return self[topic].empties

    def in_need(self) -> tuple[str, ...]:
        """Return the topics whose lives need a turn."""
        return tuple(self._in_need)

    def commanded(self) -> tuple[str, ...]:
        """Return the topics whose commands wait for their place in the stream."""
        return tuple(self._commanded)

    def paused(self) -> Iterator[tuple[str, LoadProgress]]:
        """Yield the topics whose loads are paused, each with its progress."""
        return ((topic, life.progress) for topic, life in self._lives.items() if life.is_paused)

    def take_for_merger(self) -> Iterable[tuple[str, WatchTopic]]:
        """Return the actions for the merger, which come before its next row."""
        if not self._for_merger:
            return ()
        taken, self._for_merger = self._for_merger, []
        return tuple(taken)
