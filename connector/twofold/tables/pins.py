"""The pins of one run: the records of the progress topic about each table's topic, and the records
that are not written yet.

Pure: nothing here asks a server. A pin joins a topic with its partitions, its schemas, the table
that the topic was made for and the table's backfill. `registrar` makes sure that everything in a
pin exists.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from twofold.descriptions.description import Description
from twofold.descriptions.hidden_columns import HiddenColumns
from twofold.descriptions.staleness import AWAY, WAS_AWAY, Lacking, NeedsReload, find_lacking, graver
from twofold.kafka.topic_rules import KnownTopic
from twofold.lives.exchanged import NO_COMMAND
from twofold.lives.load_life import RowsPassedOver, TableRecreated, TableUnpublished, TopicPinned, TopicUnpinned
from twofold.source.messages import Relation
from twofold.tables.ddl_descriptions import DdlMessages
from twofold.tables.table_lives import TableLives
from twofold_avro.names import topic_of
from twofold_avro.records import Pin
from twofold_avro.shapes import TableShape

STARTS_OVER = "its topic starts over, and changes before that which did not fit it were passed over"
"""Why a topic that restarts is stale until its truncate, and for good if its load is cancelled."""


@dataclass(frozen=True, slots=True)
class StaleTopic:
    """A topic that lacks, or may lack, changes that PostgreSQL did not send."""

    topic: str
    relation: int
    lacking: Lacking


class Pins:
    """The pins by topic. The thread that reads owns them.

    `Pins` does not know whether a table is in backfill: `lives` does, and `LoadMerger` completes a
    pin with it when the pin is written.
    """

    def __init__(
        self, prefix: str, pins: dict[str, Pin], lives: TableLives, *, load_first: bool, has_ddl_messages: bool = False
    ) -> None:
        """`load_first`: load the existing rows of new tables.

        `has_ddl_messages`: the stream has a DDL message of each change of a table.
        """
        self._prefix = prefix
        self._pins = pins
        self._lives = lives
        self._load_first = load_first
        self._unwritten: dict[str, Pin] = {}
        self._has_ddl_messages = has_ddl_messages
        self._to_be_emptied: dict[str, Description] = {}
        """The former descriptions of tables whose topics are to be emptied, by topic."""
        self._by_ddl: dict[int, Description] = {}
        """The descriptions that DDL messages have brought in this run, by oid."""
        self._ddl_lately: frozenset[int] = frozenset()
        self._ddl_before: frozenset[int] = frozenset()
        """The oids of tables that DDL messages described since the last look at the catalog, and
        between the last two looks."""
        self._stale = [
            StaleTopic(topic, pin.relation, NeedsReload(pin.stale or ""))
            for topic, pin in pins.items()
            if pin.reload_due and pin.relation
        ]
        self._other_names: dict[tuple[str, int], list[str]] = {}
        """The topics that will lack the rows that are described, by these rows' topic and table."""
        self.ever = dict(pins)
        """The last pin of each topic, also of one that is forgotten or restarts."""
        self.hidden: dict[int, HiddenColumns] = {}
        """The hidden columns of each table that this run has met, by oid, also of tables without a
        pin."""

    @property
    def all(self) -> Mapping[str, Pin]:
        """The pin of each topic."""
        return self._pins

    def __getitem__(self, topic: str) -> Pin:
        return self._pins[topic]

    def __contains__(self, topic: str) -> bool:
        return topic in self._pins

    def find(self, topic: str) -> Pin | None:
        return self._pins.get(topic)

    def former(self, topic: str, oid: int) -> list[tuple[str, Pin]]:
        """Return the table's pins under other names, before the table has its own pin."""
        return former_pins(self.ever, topic, oid)

    def topic_of(self, relation: Relation) -> str:
        return topic_of(self._prefix, relation.schema, relation.table)

    def topics_of(self, relations: Iterable[Relation]) -> set[str]:
        return set(map(self.topic_of, relations))

    def described(self) -> list[Description]:
        """Return the tables' pinned descriptions; for a renamed table the later name comes last."""
        pins = sorted(self._pins.values(), key=lambda pin: not pin.is_passed_over)
        return [each for pin in pins if (each := Description.from_text(pin.stored))]

    def take_unwritten(self) -> dict[str, Pin]:
        """Return the pins that the main producer's next commit must carry."""
        pins, self._unwritten = self._unwritten, {}
        return pins

    def _write(self, topic: str, pin: Pin) -> None:
        self._pins[topic] = self._unwritten[topic] = self.ever[topic] = pin

    # --- the topics of a session's beginning

    def restart(self, topics: Iterable[str], in_use: set[str]) -> None:
        """Restart these topics: their pins no longer count, and their loads begin with a truncate.

        A table that is not `in_use` is not loaded, and its rows that do not fit are passed over.
        Its schema's id is forgotten: who asks for the restart may have a registry that lost it. If
        rows of a table were passed over, its topic restarts by itself when the table is published
        again.
        """
        gone = {topic for topic, pin in self._pins.items() if pin.is_passed_over}
        for topic in {*topics, *(gone & in_use)}:
            if topic in in_use:
                self._pins.pop(topic, None)
                self._lives.apply(topic, TopicUnpinned())
            elif topic in self._pins:
                self.unpublish(topic)
                self._write(topic, replace(self._pins[topic], value_schema_id=None))

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

    def note_topics(self, found: Mapping[str, KnownTopic]) -> None:
        """Pin the ids of topics whose pins have none yet."""
        for topic, known in found.items():
            if (pin := self._pins[topic]).topic_id is None and known.id is not None:
                self._write(topic, replace(pin, topic_id=known.id))

    def pin_version(self, shape: TableShape, topic: str, made: KnownTopic, key_schema: str | None, ids: Ids) -> None:
        """Pin a version of the table whose schemas are registered and whose topic exists."""
        key_id, value_id = ids
        pin = self._pins.get(topic)
        self.note_if_recreated(topic, shape.oid)
        life = self._lives[topic]
        starts_over = life.empties or life.recreated
        # Until the topic is emptied the pin names the former table: a run after this one must know
        # it.
        relation = pin.relation if pin and pin.relation is not None and starts_over else shape.oid
        new = pin or replace(
            self._new_pin(shape, topic, made.partitions, key_schema),
            topic_id=made.id,
            stored=self._ddl_description_of(shape.oid),
            command=self.ever[topic].command if topic in self.ever else NO_COMMAND,
        )
        new = self._with_hidden(replace(new, key_schema_id=key_id, value_schema_id=value_id, relation=relation))
        if new != pin:
            self._write(topic, new)

    def note_hidden(self, topic: str, oid: int, hidden: HiddenColumns) -> None:
        """Pin the table's columns that the data policy hides, once the topic is the table's."""
        self.hidden[oid] = hidden
        pin = self._pins.get(topic)
        if pin and (new := self._with_hidden(pin)) != pin:
            self._write(topic, new)

    def _with_hidden(self, pin: Pin) -> Pin:
        hidden = self.hidden.get(pin.relation) if pin.relation is not None else None
        return pin if hidden is None else replace(pin, hidden=hidden.to_text())

    def _new_pin(self, shape: TableShape, topic: str, partitions: int, key_schema: str | None) -> Pin:
        reload = self._lives.is_emptying(topic)
        if not (reload or self._load_first):
            return Pin(shape.schema, shape.table, partitions, key_schema)
        self._lives.apply(topic, TopicPinned(shape.keyless))
        bound = self._lives[topic].progress.to_bytes() if reload else None
        stale = STARTS_OVER if reload else None
        return Pin(shape.schema, shape.table, partitions, key_schema, backfill="waiting", bound=bound, stale=stale)

    def _ddl_description_of(self, oid: int) -> str | None:
        """Return the description that DDL messages have brought of a table without a pin."""
        described = self._by_ddl.get(oid)
        return described.to_text() if described and described.publication else None

    def note_if_recreated(self, topic: str, oid: int) -> None:
        """Note whether another table has the name now: the former table's rows are gone then."""
        pin = self._pins.get(topic)
        if pin and pin.relation not in {None, oid} and self._load_first and not self._lives.is_emptying(topic):
            self._lives.apply(topic, TableRecreated())

    def find_other_names(self, topic: str, oid: int) -> None:
        """Keep the topics of this table's other names: they will lack the rows that are described
        now, once the transaction of these rows is published.
        """
        found = [
            other
            for other, pin in self._pins.items()
            if other != topic and pin.relation == oid and (self._load_first or pin.stale != _name_away(topic))
        ]
        if found:
            self._other_names[topic, oid] = found
        else:
            self._other_names.pop((topic, oid), None)

    def note_changed(self, topic: str, oid: int, present: str | None) -> list[str]:
        """Note that changes of this table join the batch, and return the topics of its other names,
        which lack them. They restart when the table has their name again.

        Not before: the pins are written with whatever Kafka transaction commits next, and a process
        that is killed behind it reads rows under the former name again.

        `present`: the topic of the name that the table has again already. It is reloaded. A topic
        that is emptied later lacks them only if that is cancelled.
        """
        lacking, reason = list[str](), _name_away(topic)
        for other in self._other_names.pop((topic, oid), ()):
            if (pin := self._pins.get(other)) is None:
                continue
            if self._lives[other].empties or self._lives[other].recreated:
                self._write(other, replace(pin, stale=reason))
                continue
            lacking.append(other)
            if other == present:
                self._stale.append(StaleTopic(other, oid, NeedsReload(reason)))
                self._write(other, replace(pin, stale=reason, reload_due=True))
            elif self._load_first:
                self.give_up(other)
            else:
                self._write(other, replace(pin, stale=reason))
        return lacking

    def note_ddl(self, ddl: DdlMessages) -> None:
        """Pin the descriptions of DDL messages, for the commit that has the messages."""
        self._ddl_lately |= frozenset(ddl)
        for oid, each in ddl.items():
            self._by_ddl[oid] = each.described
            named = topic_of(self._prefix, each.schema, each.name)
            for topic in [topic for topic, pin in self._pins.items() if pin.oid == oid]:
                now = self._follow_pinned(topic, each.described)
                if topic != named:  # that the table has its name again will be another change
                    self._write(topic, replace(self._pins[topic], stored=now.to_text()))
                elif self._lives.is_emptying(topic):
                    self._note_before_truncate(topic, now, each.lacking)
                else:
                    self._note(topic, now, self._lacks(topic, now, each.lacking))

    def note_descriptions(
        self, relations: Iterable[Relation], described: Mapping[int, Description]
    ) -> dict[int, Description]:
        """Pin the catalog's descriptions of the published tables, except tables of which a message
        came lately: the catalog may be older.

        Return the descriptions that differ from what the pins had.
        """
        changed = dict[int, Description]()
        relations = tuple(relations)
        lately = self._ddl_lately | self._ddl_before
        self._ddl_before, self._ddl_lately = self._ddl_lately, frozenset()
        for relation in relations:
            topic, now = self.topic_of(relation), described.get(relation.oid)
            pin = self._pins.get(topic)
            if pin is None or now is None or now.oid in lately:
                continue
            if now.oid in self._by_ddl:
                self._by_ddl[now.oid] = now
            is_emptying = self._lives.is_emptying(topic)
            if not is_emptying and pin.stored == now.to_text():  # each look meets each table: no text is read for it
                continue
            now = self._follow_pinned(topic, now)
            if is_emptying:
                changed[now.oid] = now
                self._note_before_truncate(topic, now)
            elif pin.stored != now.to_text():
                changed[now.oid] = now
                self._note(topic, now, self._lacks(topic, now))
        self._note_absent(self.topics_of(relations), lately)
        return changed

    def note_void(self, topic: str) -> None:
        """Note that rows are passed over until the topic's truncate, which may be cancelled."""
        if (pin := self._pins.get(topic)) and pin.stale != STARTS_OVER:
            self._write(topic, replace(pin, stale=STARTS_OVER))

    def _follow_pinned(self, topic: str, now: Description) -> Description:
        """Return the description to pin: the topic's rows may have columns that are dropped."""
        return now.follow(Description.from_text(self._pins[topic].stored))

    def _note_before_truncate(self, topic: str, now: Description, earlier: Lacking | None = None) -> None:
        """Note the table's description while the topic's truncate is still to come.

        The pin keeps what the topic lacks, because this run may end before the truncate.
        """
        self._to_be_emptied.setdefault(topic, now)
        pin = self._pins[topic]
        if pin.relation == now.oid:
            lacking = self._lacks(topic, now, earlier)
            due = pin.reload_due or isinstance(lacking, NeedsReload)
            stale = lacking.reason if lacking else pin.stale
            self._write(topic, replace(pin, stored=now.to_text(), stale=stale, reload_due=due))

    def _lacks(self, topic: str, now: Description, earlier: Lacking | None = None) -> Lacking | None:
        """Return what the topic lacks, if that is known; `earlier`: what earlier messages imply."""
        pin = self._pins[topic]
        if pin.relation != now.oid:
            return None  # it is loaded, or another table's rows are in the topic for good
        if pin.stored == AWAY:
            return WAS_AWAY
        before = Description.from_text(pin.stored)
        if before is None or before.oid != now.oid:
            return None  # the former table's description: this table was recreated
        without_message = self._has_ddl_messages and now.oid not in self._ddl_lately
        return graver(find_lacking(before, now, without_message=without_message), earlier)

    def _note(self, topic: str, now: Description, lacking: Lacking | None) -> None:
        pin = self._pins[topic]
        stored = now.to_text() if now.publication else AWAY
        if lacking is None:
            new = replace(pin, stored=stored)
        else:
            self._stale.append(StaleTopic(topic, now.oid, lacking))
            due = pin.reload_due or isinstance(lacking, NeedsReload)
            new = replace(pin, stored=stored, stale=lacking.reason, reload_due=due)
        if new != pin:
            self._write(topic, new)

    def take_stale(self) -> list[StaleTopic]:
        """Return the topics found stale since the last call, and those of an earlier run."""
        found, self._stale = self._stale, []
        return [each for each in found if each.topic in self._pins and not self._lives.is_emptying(each.topic)]

    def put_back(self, stale: StaleTopic) -> None:
        """Keep the topic for the next call of `take_stale`."""
        self._stale.append(stale)

    def reload(self, topic: str) -> None:
        """Note that the topic is being reloaded: the load is newer than the description."""
        if now := Description.from_text(self._pins[topic].stored):
            self._to_be_emptied[topic] = now

    def only_name(self, topic: str) -> None:
        """Note that the topic is stale, and that a person decides about it."""
        if (pin := self._pins.get(topic)) and pin.reload_due:
            self._write(topic, replace(pin, reload_due=False))

    def _note_absent(self, published: set[str], lately: frozenset[int]) -> None:
        """Note the tables that are not published now: their changes are not sent meanwhile."""
        for topic, pin in tuple(self._pins.items()):
            if topic not in published and pin.stored not in {None, AWAY} and pin.oid not in lately:
                self._write(topic, replace(pin, stored=AWAY))

    # --- a table's backfill

    def emptied(self, topic: str, relation: int | None) -> None:
        """Note that later rows are behind the truncate, and belong to the table as it is now.

        Changes between the first description that is older than the load, and the last description,
        may be missing in the load.
        """
        pin = self._pins[topic]
        relation = pin.relation if relation is None else relation
        first = self._to_be_emptied.pop(topic, None)
        first = first if first and first.oid == relation else None
        last = Description.from_text(pin.stored) if first or self._has_ddl_messages else None
        last = last if last and last.oid == relation else self._by_ddl.get(relation or 0)
        if first and last:
            last = last.loaded_since(first)
        now = last or first
        new = replace(pin, relation=relation, stored=now.to_text() if now else None, stale=None, reload_due=False)
        self._write(topic, self._with_hidden(new))
        if first and last and (lacking := find_lacking(first, last)):
            self._note(topic, last, lacking)

    def gone(self, topic: str) -> None:
        """Note that a load found no such table: a later table of the name restarts the topic."""
        self._write(topic, self._pins[topic].pass_over())


def _name_away(topic: str) -> str:
    return f"rows of it were published in {topic} while it had another name"


def former_pins(pins: Mapping[str, Pin], topic: str, oid: int) -> list[tuple[str, Pin]]:
    """Return the pins of a table that was renamed; none once its own topic is pinned."""
    if topic in pins and pins[topic].oid == oid:
        return []
    return [(other, pin) for other, pin in pins.items() if pin.oid == oid]


Ids = tuple[int | None, int]
"""The ids of the key's and the envelope's schema."""
