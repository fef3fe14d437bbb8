"""Which topics are stale by the descriptions of their tables, and what their pins keep of that."""

from __future__ import annotations

from dataclasses import replace

import pytest

from twofold.descriptions.ddl_message import DdlMessage
from twofold.descriptions.description import Column, Description, KeyIndex, Publication
from twofold.descriptions.staleness import AWAY, Lacking, LookCloser, NeedsReload
from twofold.kafka.topic_rules import KnownTopic
from twofold.lives.load_life import ReloadDue, TopicEmptied
from twofold.source.messages import Relation
from twofold.tables.pins import Pins, StaleTopic
from twofold.tables.table_lives import TableLives
from twofold_avro.records import Pin
from twofold_avro.shapes import TableShape

OID, TOPIC, OTHER = 16400, "p.public.t", "p.public.x"
RELATION = Relation(OID, "public", "t", "default", ())
WAS = Description(
    15, OID, 10, "r", "d", 500, 500, 0, "f", "a", (), (), frozenset(), frozenset(), frozenset(), (),
    Publication(900, 500, 10, "p", "iudt", False, "n", frozenset({1}), None, None),
)  # fmt: skip
RENAMED, OWNED = replace(WAS, type_row=501), replace(WAS, type_row=501, owner=11)


class World:
    """One table's pin through looks and runs."""

    def __init__(self, *, load_first: bool = True, reloads: bool = True, has_ddl_messages: bool = False) -> None:
        self.load_first, self.reloads, self.has_ddl_messages = load_first, reloads, has_ddl_messages
        self.again({TOPIC: Pin("public", "t", 1, relation=OID)})

    def again(self, pins: dict[str, Pin]) -> None:
        """Another run with these pins."""
        self.lives = TableLives(pins)
        self.pins = Pins("p", pins, self.lives, load_first=self.load_first, has_ddl_messages=self.has_ddl_messages)

    def look(self, now: Description | None) -> list[StaleTopic]:
        self.pins.note_descriptions([] if now is None else [RELATION], {} if now is None else {OID: now})
        return self.handle()

    def tell(self, now: Description, name: str = "t", lacking: Lacking | None = None) -> list[StaleTopic]:
        """A message of a committed transaction."""
        self.pins.note_ddl({OID: DdlMessage("public", name, now, lacking)})
        return self.handle()

    def handle(self) -> list[StaleTopic]:
        """As `Loading` does it."""
        found = self.pins.take_stale()
        for each in found:
            if isinstance(each.lacking, NeedsReload) and self.reloads:
                self.pins.reload(each.topic)
                self.lives.apply(each.topic, ReloadDue())
            else:
                self.pins.only_name(each.topic)
        return found

    def rows_come(self, topic: str, oid: int) -> list[str]:
        """They are described, and published; the topics that lack them are returned."""
        self.pins.take_unwritten()
        self.pins.find_other_names(topic, oid)
        assert not self.pins.take_unwritten(), "their transaction may be in progress"
        return self.pins.note_changed(topic, oid, None)

    def empty(self) -> None:
        self.lives.apply(TOPIC, TopicEmptied())
        self.pins.emptied(TOPIC, OID)

    @property
    def pin(self) -> Pin:
        return self.pins[TOPIC]


def test_a_reload_is_noticed_again_until_the_topic_is_emptied() -> None:
    world = World()
    assert world.look(WAS) == []
    assert world.pin.stored == WAS.to_text()
    assert world.look(RENAMED)
    assert world.lives.is_emptying(TOPIC)
    world.again(world.pins.take_unwritten())
    assert len(world.handle()) == 1
    assert world.look(replace(RENAMED, type_row=502)) == []
    world.empty()
    assert world.pin.stored == replace(RENAMED, type_row=502).to_text()
    assert len(world.handle()) == 1  # its load may have snapshots that are older than the look
    world.empty()
    assert (world.pin.stale, world.pin.reload_due) == (None, False)
    world.again(world.pins.take_unwritten())
    assert world.handle() == []


@pytest.mark.parametrize("has_ddl_messages", [False, True])
def test_a_table_of_the_name_for_a_time_is_not_forgotten_if_the_run_ends_before_the_truncate(
    has_ddl_messages: bool,
) -> None:
    """Rows of the other table are in the topic, and the table has its name again at the look."""
    world = World(has_ddl_messages=has_ddl_messages)
    world.look(WAS)
    world.lives.apply(TOPIC, ReloadDue())  # another table has the name: its rows are in the stream
    assert (world.tell(RENAMED) if has_ddl_messages else world.look(RENAMED)) == []
    world.again(world.pins.take_unwritten())
    assert len(world.handle()) == 1
    world.empty()
    assert (world.pin.stale, world.pin.reload_due) == (None, False)


def test_what_is_not_reloaded_is_named_once_and_stays_stale_until_it_is() -> None:
    world = World(reloads=False)
    world.look(WAS)
    [stale] = world.look(RENAMED)
    assert not world.lives.is_emptying(TOPIC)
    assert world.look(RENAMED) == []
    world.look(replace(RENAMED, row=600))
    assert world.pin.stale == stale.lacking.reason
    world.pins.emptied(TOPIC, OID)
    assert world.pin.stale is None


def test_what_only_a_person_can_judge_is_never_reloaded() -> None:
    world = World()
    world.look(WAS)
    assert [type(each.lacking) for each in world.look(OWNED)] == [LookCloser]
    assert not world.pin.reload_due
    assert world.pin.stale is not None


ID, V, OTHER_V = (
    Column(n, name, 23, -1, "", older_rows_have=False, row=5) for n, name in ((1, "id"), (2, "v"), (3, "v"))
)
BEFORE, DROPPED, ADDED = (replace(WAS, columns=columns) for columns in ((ID, V), (ID,), (ID, OTHER_V)))


@pytest.mark.parametrize("has_ddl_messages", [False, True])
def test_a_column_that_was_dropped_and_is_added_later_reloads_the_table(has_ddl_messages: bool) -> None:
    world = World(has_ddl_messages=has_ddl_messages)
    note = world.tell if has_ddl_messages else world.look
    assert note(BEFORE) == note(DROPPED) == note(replace(DROPPED, row=501)) == []
    world.again(world.pins.take_unwritten())
    assert "v was dropped and added again" in note(ADDED)[0].lacking.reason
    world.empty()
    assert note(replace(ADDED, row=501)) == []


def test_a_column_that_was_dropped_before_a_load_is_not_missed_behind_it() -> None:
    world = World()
    world.look(BEFORE)
    world.look(replace(DROPPED, type_row=501))
    world.empty()
    assert world.look(replace(ADDED, type_row=501)) == []


def test_a_column_that_a_transaction_made_twice_reloads_the_table() -> None:
    world = World(has_ddl_messages=True)
    world.tell(DROPPED)
    told = dict[int, DdlMessage]()
    for now in (BEFORE, DROPPED, ADDED):
        told[OID] = DdlMessage("public", "t", now).behind(told)
    world.pins.note_ddl(told)
    assert len(world.handle()) == 1


def test_a_table_that_was_not_published_for_a_time_is_stale() -> None:
    world = World()
    world.look(WAS)
    assert world.look(None) == []
    assert world.pin.stored == AWAY
    assert [type(each.lacking) for each in world.look(WAS)] == [NeedsReload]


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
    assert world.rows_come(OTHER, OID) == [TOPIC]
    assert world.pin.is_passed_over
    assert world.rows_come(OTHER, OID) == []
    assert world.rows_come(TOPIC, OID) == []


def test_a_topic_that_is_emptied_later_lacks_nothing_unless_that_is_cancelled() -> None:
    world = World()
    world.lives.apply(TOPIC, ReloadDue())
    assert world.rows_come(OTHER, OID) == []
    assert OTHER in (world.pin.stale or "")
    world.empty()
    assert world.pin.stale is None


def test_without_loads_the_topic_is_named() -> None:
    world = World(load_first=False)
    assert world.rows_come(OTHER, OID) == [TOPIC]
    assert not world.pin.is_passed_over
    assert OTHER in (world.pin.stale or "")


def test_messages_say_what_a_table_is_and_a_look_that_may_be_older_says_nothing() -> None:
    world = World(has_ddl_messages=True)
    world.look(WAS)
    assert len(world.tell(RENAMED)) == 1
    world.empty()
    for _ in range(2):
        assert world.look(WAS) == []
        assert world.pin.stored == RENAMED.to_text()
    assert len(world.look(WAS)) == 1


def test_what_a_transaction_undid_counts_and_is_kept_until_the_reload() -> None:
    world = World(has_ddl_messages=True)
    world.look(WAS)
    assert len(world.tell(WAS, lacking=NeedsReload("it was away"))) == 1
    world.again(world.pins.take_unwritten())
    [stale] = world.handle()
    assert stale.lacking.reason == "it was away"
    world.empty()
    assert world.pin.stored == WAS.to_text()  # a run after this one begins with it


def test_a_name_that_a_table_had_for_a_time_counts_when_it_has_its_own_again() -> None:
    world = World(has_ddl_messages=True)
    world.look(WAS)
    assert world.tell(RENAMED, "x") == []
    assert world.pin.stored == RENAMED.to_text()
    assert len(world.tell(replace(WAS, type_row=502))) == 1


def test_a_key_that_no_message_told_of_reloads_the_table() -> None:
    keyed = replace(WAS, keys=(KeyIndex(9, 0, True, True, False, (1,)),))
    for has_ddl_messages in (False, True):
        world = World(has_ddl_messages=has_ddl_messages)
        world.look(WAS)
        assert len(world.look(keyed)) == has_ddl_messages
        world = World(has_ddl_messages=has_ddl_messages)
        world.look(WAS)
        assert world.tell(keyed) == []


def test_a_table_that_is_pinned_later_is_what_messages_told() -> None:
    world = World(has_ddl_messages=True)
    world.again({})
    world.tell(WAS)
    shape = TableShape(oid=OID, schema="public", table="t", columns=(), replica_identity="default")
    world.pins.pin_version(shape, TOPIC, KnownTopic(1), None, (None, 1))
    assert world.pin.stored == WAS.to_text()
