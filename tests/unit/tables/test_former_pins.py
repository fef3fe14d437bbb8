"""Under which names a table was pinned before: a data policy must not be lost with a name."""

from __future__ import annotations

from dataclasses import replace

from twofold.tables.pins import Pins, former_pins
from twofold.tables.table_lives import TableLives
from twofold_avro.records import Pin

PERSON = Pin("public", "person", 1, relation=16400)
PEOPLE = Pin("public", "people", 1, relation=16401)
TOPIC, OTHER = "p.public.person", "p.public.people"


def test_a_table_that_has_another_name_is_known_by_its_oid() -> None:
    assert former_pins({TOPIC: PERSON}, OTHER, 16400) == [(TOPIC, PERSON)]
    assert former_pins({TOPIC: PERSON}, OTHER, 16401) == []
    assert former_pins({TOPIC: PERSON}, TOPIC, 16400) == []


def test_two_tables_that_have_exchanged_their_names_are_known() -> None:
    pins = {TOPIC: PERSON, OTHER: PEOPLE}
    assert former_pins(pins, TOPIC, 16401) == [(OTHER, PEOPLE)]
    assert former_pins(pins, OTHER, 16400) == [(TOPIC, PERSON)]


def test_a_table_is_known_though_nothing_of_its_former_name_counts_any_more() -> None:
    """Its load found no such table; its topic is gone; its rows were passed over."""
    pins = {TOPIC: PERSON}
    here = Pins("p", pins, TableLives(pins), load_first=True)
    here.gone(TOPIC)
    assert here[TOPIC].is_passed_over
    assert [topic for topic, _ in here.former(OTHER, 16400)] == [TOPIC]
    written = here.take_unwritten()
    here.forget(TOPIC)
    assert [topic for topic, _ in here.former(OTHER, 16400)] == [TOPIC]
    later = Pins("p", written, TableLives(written), load_first=True)
    assert [topic for topic, _ in later.former(OTHER, 16400)] == [TOPIC]
    assert later[TOPIC].pass_over() == later[TOPIC]


def test_a_restart_forgets_the_schema_that_a_registry_has_lost_under_the_former_name() -> None:
    pins = {TOPIC: replace(PERSON, value_schema_id=7, hidden="ssn")}
    here = Pins("p", pins, TableLives(pins), load_first=True)
    here.restart([TOPIC], in_use={OTHER})
    ((former, pin),) = here.former(OTHER, 16400)
    assert (former, pin.value_schema_id, pin.hidden) == (TOPIC, None, "ssn")
    assert here.take_unwritten() == {TOPIC: pin}
