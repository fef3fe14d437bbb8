"""The backfill in the turn: begins the loads of tables that need one, answers what their readers ask, and takes a chunk when the stream has passed it.

Used by the thread that reads the stream. That all rows a load must know of pass the gate while it is on is seen to by `Tables.in_backfill`, to which a table is added before its load begins.
"""

from __future__ import annotations

from collections.abc import Iterator

from twofold.backfill.chunk import Ask, Chunk, Done, Seen
from twofold.backfill.loads import Load, Loads
from twofold.backfill.place import Place
from twofold.bridge import State, events
from twofold.runner.carrier import Carrier
from twofold.runner.observer import Backfill
from twofold.runner.tables import IN_BACKFILL, Tables


class Loading:
    """One a run."""

    def __init__(self, loads: Loads, tables: Tables, carrier: Carrier) -> None:
        self._loads = loads
        self._tables = tables
        self._carrier = carrier
        self._begun: set[str] = set()
        for topic in tables.in_backfill:
            if tables.pin(topic).backfill == "paused":
                self._begun.add(topic)

    @property
    def busy(self) -> bool:
        """Is a table being read? Then the turn must not sleep for long."""
        return self._loads.busy

    def progress(self) -> tuple[Backfill, ...]:
        """How far each table is."""
        reading = tuple(
            Backfill(load.name, "waiting for locks" if load.holders else "reading", load.place.rows)
            for load in self._loads.all()
        )
        paused = (self._tables.pin(topic) for topic in self._begun - self._loads.topics())
        return reading + tuple(
            Backfill(f"{pin.schema}.{pin.table}", "paused", Place.from_bytes(pin.bound).rows)
            for pin in paused
            if pin.backfill == "paused"
        )

    def turn(self) -> Iterator[events.Event]:
        """Begin what is to be begun, answer what was asked; gives what the bridge must know."""
        for topic in [topic for topic in self._tables.in_backfill if topic not in self._begun]:
            self._begun.add(topic)
            for identity in self._carrier.prepared_with(topic):
                yield events.ParkDue(identity, IN_BACKFILL)
            pin = self._tables.pin(topic)
            place = Place.from_bytes(pin.bound)
            self._loads.begin(Load(topic, pin.schema, pin.table, place, resumed=pin.backfill == "running"))
        for offer in self._loads.offers():
            match offer:
                case Ask(relation, answer):
                    answer.set_result(self._tables.copying(relation))
                case Seen(topic, snapshot):
                    self._carrier.forget(topic, snapshot)
                case Done(topic):
                    self._tables.loaded(topic)
                    self._begun.discard(topic)
                case _:
                    raise AssertionError(offer)

    def due(self, state: State) -> Chunk | None:
        """A chunk that may be published now. One whose table has changed since it was read is read again."""
        if state.unfinished or not state.caught_up:
            return None
        while chunk := self._loads.due(state.read_lsn):
            if chunk.copying is None or self._tables.is_current(chunk.copying):
                return chunk
            chunk.answer.set_result(None)
        return None
