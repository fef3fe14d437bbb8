"""Who decides of rows that do not fit their topic: the table is gone, it starts over, or a
person.
"""

from __future__ import annotations

from typing import Any

import pytest

from twofold.errors import Refused
from twofold.lives.load_life import LoadLife, LoadPhase
from twofold.run.next_run import OFTEN, OFTEN_WITHIN_S, TopicsToRestart
from twofold.tables.topic_mismatch import Decision, TopicRestart, VersionKey, decide
from twofold_avro.records import Pin
from twofold_avro.shapes import TypeShape

ID, CODE = '"int"', '"string"'
TYPES = {"price": TypeShape(1700, "pg_catalog", "numeric")}
READY, LOADING, EMPTYING = LoadLife(), LoadLife(LoadPhase.READING), LoadLife(LoadPhase.DUE, empties=True)


@pytest.mark.parametrize(
    ("pin", "row", "now", "life", "expected"),
    [
        ({}, (1, CODE), None, READY, Decision.PASS_OVER),
        ({}, (1, CODE), (2, CODE), READY, Decision.START_OVER),
        ({}, (1, CODE), (2, CODE), EMPTYING, Decision.PASS_OVER),
        ({}, (1, CODE), (1, CODE), READY, Decision.REFUSE),
        ({}, (1, None), (1, None), READY, Decision.REFUSE),
        ({}, (1, CODE), (1, CODE), EMPTYING, Decision.START_OVER),
        ({"relation": 7}, (1, CODE), (1, CODE), READY, Decision.START_OVER),
        ({"relation": -1}, (1, ID), (1, ID), READY, Decision.START_OVER),
        ({"relation": None}, (1, CODE), (1, CODE), READY, Decision.REFUSE),
        ({}, (1, CODE), (1, CODE), LOADING, Decision.START_OVER),
        ({"key_schema": None}, (1, ID), (1, ID), READY, Decision.START_OVER),
        ({}, (1, None), (1, ID), READY, Decision.START_OVER),
        ({}, (1, None), (1, CODE), READY, Decision.REFUSE),
    ],
    ids=[
        "gone",
        "replaced",
        "replaced, and starts over",
        "another key",
        "no key any more",
        "another key once more",
        "recreated",
        "it was gone",
        "pinned by an older version",
        "not loaded to its end",
        "its first key",
        "without its key for a while",
        "without its key for a while, then another",
    ],
)
def test_a_key_that_is_not_what_it_was(pin: Any, row: Any, now: Any, life: LoadLife, expected: Decision) -> None:
    pinned = Pin("public", "t", 3, **{"key_schema": ID, "relation": 1, **pin})
    version = VersionKey(now[0], now[1], TYPES) if now else None
    in_backfill, emptied_later = life.in_backfill, life.empties
    decided = decide(
        VersionKey(row[0], row[1], TYPES),
        version,
        pinned,
        key_differs=True,
        in_backfill=in_backfill,
        emptied_later=emptied_later,
    )
    assert decided is expected


@pytest.mark.parametrize(
    ("now", "expected"), [(None, Decision.PASS_OVER), ((2, ID), Decision.START_OVER), ((1, ID), Decision.REFUSE)]
)
def test_other_refusals(now: Any, expected: Decision) -> None:
    """A registry that does not take the schema, values that would be misread: of a table that is
    there they are a person's.
    """
    version = VersionKey(now[0], now[1], TYPES) if now else None
    pinned = Pin("public", "t", 3, key_schema=None, relation=1)
    for pin in (pinned, None):
        row = VersionKey(1, ID, TYPES)
        assert decide(row, version, pin, key_differs=False, in_backfill=False, emptied_later=False) is expected


def test_a_type_that_was_changed_back_ahead_of_the_load() -> None:
    """The load brings the row. One of the present type would be refused in the load too."""
    pinned = Pin("public", "t", 3, key_schema=ID, relation=1)
    row, undone = VersionKey(1, ID, TYPES), {"price": TypeShape(1700, "pg_catalog", "numeric", typmod=5)}
    for types, expected in ((undone, Decision.PASS_OVER), (TYPES, Decision.REFUSE)):
        now = VersionKey(1, ID, types)
        assert decide(row, now, pinned, key_differs=False, in_backfill=True, emptied_later=True) is expected
        assert decide(row, now, pinned, key_differs=False, in_backfill=True, emptied_later=False) is Decision.REFUSE


def test_what_starts_over_over_and_over_is_refused() -> None:
    now = 0.0
    restarts = TopicsToRestart(lambda: now)
    refusal = Refused("it", at_stake="", repair="")
    for _ in range(OFTEN):
        restarts.add(TopicRestart("public.t", "p.public.t", 1, refusal))
        restarts.add(TopicRestart("public.t", "p.public.t", int(now) + 2, refusal))  # another table each time
        now += 1
    assert {*restarts.choose({})} == {"p.public.t"}
    now += OFTEN_WITHIN_S
    for _ in range(OFTEN):  # the others were long ago
        restarts.add(TopicRestart("public.t", "p.public.t", 1, refusal))
    with pytest.raises(Refused):
        restarts.add(TopicRestart("public.t", "p.public.t", 1, refusal))


def test_a_topic_restarts_with_each_run_until_kafka_has_it() -> None:
    """A run that restarts one may end at once, because another one must restart too."""
    restarts = TopicsToRestart()
    former, emptied = Pin("public", "t", 3, relation=1), Pin("public", "t", 3, relation=2)
    restarts.add(TopicRestart("public.t", "p.public.t", 2))
    assert {*restarts.choose({"p.public.t": former})} == {"p.public.t"}
    restarts.add(TopicRestart("public.u", "p.public.u", 3))
    assert {*restarts.choose({"p.public.t": former})} == {"p.public.t", "p.public.u"}
    assert {*restarts.choose({"p.public.t": emptied})} == {"p.public.u"}, "the other one has no pin yet"
    assert not restarts.choose({"p.public.t": emptied, "p.public.u": former})
