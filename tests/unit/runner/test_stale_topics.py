"""Which topics are stale by the descriptions of their tables, and what their pins keep of that."""

from __future__ import annotations

from dataclasses import replace

from twofold.descriptions.description import Description, Publication
from twofold.descriptions.staleness import AWAY
from twofold.lives.load_life import LoadEnded, ReloadDue, TopicEmptied
from twofold.runner.pins import Pins, StaleTopic
from twofold.runner.table_lives import TableLives
from twofold.source.messages import Relation
from twofold_avro.records import Pin

OID, TOPIC, OTHER = 16400, "p.public.t", "p.public.x"
RELATION = Relation(OID, "public", "t", "default", ())
WAS = Description(
    15, OID, 10, "r", "d", 500, 500, 0, "f", "a", (), (), frozenset(), frozenset(), frozenset(),
    Publication(900, 500, 10, "p", "iudt", False, "n", frozenset({1}), None, None),
)  # fmt: skip
RENAMED, OWNED = replace(WAS, type_row=501), replace(WAS, type_row=501, owner=11)


class World:
    """One table's pin through looks and runs."""

    def __init__(self, *, load_first: bool = True, reloads: bool = True) -> None:
        self.load_first, self.reloads = load_first, reloads
        self.again({TOPIC: Pin("public", "t", 1, relation=OID)})

    def again(self, pins: dict[str, Pin]) -> None:
        """Another run with these pins."""
        self.lives = TableLives(pins)
        self.pins = Pins("p", pins, self.lives, load_first=self.load_first)

    def look(self, now: Description | None) -> list[StaleTopic]:
        found = {} if now is None else {OID: now}
        relations = [] if now is None else [RELATION]
        return self.pins.note_descriptions(relations, found, lambda *_: self.reloads)

    @property
    def pin(self) -> Pin:
        return self.pins[TOPIC]


def test_a_reload_is_noticed_again_until_the_topic_is_emptied() -> None:
    world = World()
    assert world.look(WAS) == []
    assert world.pin.stored == WAS.to_text()
    [stale] = world.look(RENAMED)
    assert stale.reloads
    world.again(world.pins.take_unwritten())
    assert [each.reloads for each in world.look(RENAMED)] == [True]
    world.lives.apply(TOPIC, ReloadDue())
    assert world.look(replace(RENAMED, type_row=502)) == []
    world.lives.apply(TOPIC, TopicEmptied())
    world.pins.emptied(TOPIC, OID)
    assert world.pin.stored == RENAMED.to_text()  # what it was before the load's snapshots
    world.lives.apply(TOPIC, LoadEnded())
    assert len(world.look(replace(RENAMED, type_row=502))) == 1


def test_what_is_not_reloaded_is_named_once_and_stays_stale_until_it_is() -> None:
    world = World(reloads=False)
    world.look(WAS)
    [stale] = world.look(RENAMED)
    assert not stale.reloads
    assert world.look(RENAMED) == []
    world.look(replace(RENAMED, row=600))
    assert world.pin.stale == stale.reason
    world.pins.emptied(TOPIC, OID)
    assert world.pin.stale is None


def test_what_only_a_person_can_judge_is_never_reloaded() -> None:
    world = World()
    world.look(WAS)
    assert [each.reloads for each in world.look(OWNED)] == [False]
    assert world.pin.stale is not None


def test_a_table_that_was_not_published_for_a_time_is_stale() -> None:
    world = World()
    world.look(WAS)
    assert world.look(None) == []
    assert world.pin.stored == AWAY
    assert [each.reloads for each in world.look(WAS)] == [True]


def test_another_table_of_the_name_is_none_of_these() -> None:
    world = World()
    world.look(WAS)
    world.again({TOPIC: replace(world.pin, relation=OID + 1)})
    assert world.look(RENAMED) == []


def test_a_table_that_was_recreated_is_not_compared_with_the_former_one() -> None:
    """Its first row came before the look: the pin names it, and describes the former table."""
    world = World()
    world.look(replace(WAS, oid=OID - 1, type_row=499))
    assert world.look(RENAMED) == []
    assert world.pin.stored == RENAMED.to_text()


def test_the_topics_of_a_tables_other_names_lack_its_rows() -> None:
    world = World()
    assert world.pins.note_other_names(OTHER, OID) == [TOPIC]
    assert world.pin.is_passed_over
    assert world.pins.note_other_names(OTHER, OID) == []
    assert world.pins.note_other_names(TOPIC, OID) == []


def test_a_topic_that_is_emptied_later_lacks_nothing() -> None:
    world = World()
    world.lives.apply(TOPIC, ReloadDue())
    assert world.pins.note_other_names(OTHER, OID) == []


def test_without_loads_the_topic_is_named() -> None:
    world = World(load_first=False)
    assert world.pins.note_other_names(OTHER, OID) == [TOPIC]
    assert not world.pin.is_passed_over
    assert OTHER in (world.pin.stale or "")
