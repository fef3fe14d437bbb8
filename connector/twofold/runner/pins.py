"""The pins of one run: what Kafka's progress topic says of each table's topic, and what is not
written there yet.

Pure: nothing here asks a server. A pin joins a topic with its partitions, its schemas, the table
that it was made for and its backfill. `registrar` makes sure that what is pinned exists.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from twofold.lives.load_life import RowsPassedOver, TableRecreated, TableUnpublished, TopicPinned, TopicUnpinned
from twofold.runner.table_lives import TableLives
from twofold.source.messages import Relation
from twofold.source.rewrites import TableStorage, unsent_change
from twofold_avro.names import topic_of
from twofold_avro.records import Pin
from twofold_avro.shapes import TableShape


class Pins:
    """The pins by topic. The thread that reads owns them.

    Whether a table is in backfill is not theirs to know: `lives` does, and the gate completes a pin
    with it when the pin is written.
    """

    def __init__(self, prefix: str, pins: dict[str, Pin], lives: TableLives, *, load_first: bool) -> None:
        """`load_first`: load the existing rows of new tables."""
        self._prefix = prefix
        self._pins = pins
        self._lives = lives
        self._load_first = load_first
        self._unwritten: dict[str, Pin] = {}
        self._ever = dict(pins)
        """The last pin of each topic, also of one that is forgotten or restarts."""

    @property
    def all(self) -> Mapping[str, Pin]:
        """What is pinned of each table, by topic."""
        return self._pins

    def __getitem__(self, topic: str) -> Pin:
        return self._pins[topic]

    def __contains__(self, topic: str) -> bool:
        return topic in self._pins

    def find(self, topic: str) -> Pin | None:
        return self._pins.get(topic)

    def former(self, topic: str, oid: int) -> list[tuple[str, Pin]]:
        """Return what is pinned of the table under other names, before it has its own pin."""
        return former_pins(self._ever, topic, oid)

    def topic_of(self, relation: Relation) -> str:
        return topic_of(self._prefix, relation.schema, relation.table)

    def topics_of(self, relations: Iterable[Relation]) -> set[str]:
        return set(map(self.topic_of, relations))

    def take_unwritten(self) -> dict[str, Pin]:
        """Return the pins that the main producer's next commit must carry."""
        pins, self._unwritten = self._unwritten, {}
        return pins

    def _write(self, topic: str, pin: Pin) -> None:
        self._pins[topic] = self._unwritten[topic] = self._ever[topic] = pin

    # --- the topics of a session's beginning

    def restart(self, topics: Iterable[str], in_use: set[str]) -> None:
        """Restart these topics: their pins no longer count, and their loads begin with a truncate.

        A table that is not `in_use` is not loaded, and rows that do not fit are passed over. A
        table that is published again after rows of it were passed over restarts by itself.
        """
        gone = {topic for topic, pin in self._pins.items() if pin.is_passed_over}
        for topic in {*topics, *(gone & in_use)}:
            if topic in in_use:
                self._pins.pop(topic, None)
                self._lives.apply(topic, TopicUnpinned())
            elif topic in self._pins:
                self.unpublish(topic)

    def forget(self, topic: str) -> None:
        """Forget a topic that does not exist any more."""
        del self._pins[topic]
        self._lives.apply(topic, TableUnpublished())

    def unpublish(self, topic: str) -> None:
        """Load nothing, and pass over rows that do not fit: a session begins without the table."""
        self._lives.apply(topic, TableUnpublished())
        self._pass_over(topic)

    def give_up(self, topic: str) -> None:
        """Pass over rows that do not fit, as long as no table of this name is published."""
        self._lives.apply(topic, RowsPassedOver())
        self._pass_over(topic)

    def _pass_over(self, topic: str) -> None:
        self._write(topic, replace(self._pins[topic].pass_over(), backfill="ready", bound=None))

    # --- a version of a table is committed

    def pin_version(self, shape: TableShape, topic: str, partitions: int, key_schema: str | None, ids: Ids) -> None:
        """Pin a version of the table whose schemas are registered and whose topic exists."""
        key_id, value_id = ids
        pin = self._pins.get(topic)
        self.note_if_recreated(topic, shape.oid)
        life = self._lives[topic]
        starts_over = life.empties or life.recreated
        # Until the topic is emptied the pin names the former table: a run after this one must know
        # it.
        relation = pin.relation if pin and pin.relation is not None and starts_over else shape.oid
        new = pin or self._new_pin(shape, topic, partitions, key_schema)
        new = replace(new, key_schema_id=key_id, value_schema_id=value_id, relation=relation)
        if new != pin:
            self._write(topic, new)

    def _new_pin(self, shape: TableShape, topic: str, partitions: int, key_schema: str | None) -> Pin:
        reload = self._lives.is_emptying(topic)
        if not (reload or self._load_first):
            return Pin(shape.schema, shape.table, partitions, key_schema)
        self._lives.apply(topic, TopicPinned(shape.keyless))
        bound = self._lives[topic].progress.to_bytes() if reload else None
        return Pin(shape.schema, shape.table, partitions, key_schema, backfill="waiting", bound=bound)

    def note_if_recreated(self, topic: str, oid: int) -> None:
        """Notice that another table has the name: the former one's rows are gone."""
        pin = self._pins.get(topic)
        if pin and pin.relation not in {None, oid} and self._load_first and not self._lives.is_emptying(topic):
            self._lives.apply(topic, TableRecreated())

    def check_storage(
        self, relations: Iterable[Relation], stored: Mapping[int, TableStorage], *, reloads: bool
    ) -> list[tuple[str, str]]:
        """Return the topics of tables with changes that PostgreSQL does not send, each with the
        cause.

        Each is returned once; with `reloads`, until it is reloaded.
        """
        found = []
        for relation in relations:
            topic, now = self.topic_of(relation), stored.get(relation.oid)
            pin = self._pins.get(topic)
            if pin is None or now is None or self._lives.is_emptying(topic) or pin.stored == now.to_text():
                continue
            if pin.stored is not None and pin.relation == relation.oid:
                what = unsent_change(TableStorage.from_text(pin.stored), now)
                found += [(topic, what)] if what else []
                if what and reloads:
                    continue  # until it is emptied
            self._write(topic, replace(pin, stored=now.to_text()))
        return found

    # --- a table's backfill

    def emptied(self, topic: str, relation: int | None) -> None:
        """Note that later rows are behind the truncate, and belong to the table as it is now."""
        pin = self._pins[topic]
        self._write(topic, replace(pin, relation=pin.relation if relation is None else relation, stored=None))

    def gone(self, topic: str) -> None:
        """Note that a load found no such table: a later one restarts the topic."""
        self._write(topic, self._pins[topic].pass_over())


def former_pins(pins: Mapping[str, Pin], topic: str, oid: int) -> list[tuple[str, Pin]]:
    """Return the pins of a table that was renamed; none once its own topic is pinned."""
    if topic in pins and pins[topic].oid == oid:
        return []
    return [(other, pin) for other, pin in pins.items() if pin.oid == oid]


Ids = tuple[int | None, int]
"""The ids of the key's and the envelope's schema."""
