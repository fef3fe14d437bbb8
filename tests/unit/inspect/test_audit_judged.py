"""What is said of what a comparison found: damage and history, the repair, and what nothing
repairs.
"""

from __future__ import annotations

from collections.abc import Mapping

from twofold.inspect.audit import judge
from twofold.inspect.comparison import ComparisonResult, Reload, SequenceBreak
from twofold.kafka.names import Names
from twofold.kafka.tally import Damage, ExpectedRange, PartitionTally
from twofold.kafka.topic_reader import Bounds, PartitionId
from twofold_avro.records import Pin

NAMES = Names("bank", "bank")
TABLE, OTHER = "bank.public.account", "bank.public.other"
PINS = {TABLE: Pin("public", "account", 1), OTHER: Pin("public", "other", 1)}


def compared(
    topic: str, *damages: Damage, reloads: Mapping[str, int] | None = None, high: int = 100
) -> ComparisonResult:
    """One partition of a topic with these damages; reloads, by topic, begin at an offset."""
    place = PartitionId(topic, 0)
    tally = PartitionTally(0, 100)
    tally.expect([ExpectedRange(0, 9, 10, 1)])
    tally.see(0, 9)
    tally.judge(100, final=True)
    tally.damages = list(damages)
    found = ComparisonResult(
        {place: Bounds(0, 100, high)}, {place: tally}, commits=30, first_sequence=1, last_sequence=30
    )
    found.reloads = {topic: Reload(20, {0: first}) for topic, first in (reloads or {}).items()}
    return found


def test_damage_before_the_last_reload_is_history() -> None:
    before, behind = Damage("short", 5, 9, 0, 5, 3), Damage("unexpected", 60, 61, 2, 0)
    found = judge(compared(TABLE, before, behind, reloads={TABLE: 50}), NAMES, PINS)
    (topic,) = found.topics
    assert [each.damage for each in topic.damages] == [behind]
    assert [each.damage for each in topic.past] == [before]
    (trouble,) = found.troubles
    assert trouble.repair == "twofold backfill start public.account"
    assert "offsets 60 to 61" in trouble.what
    healed = judge(compared(TABLE, before, reloads={TABLE: 50}), NAMES, PINS)
    assert healed.troubles == ()
    assert "the reload at commit record 20 repaired the damage before it (1 place)" in healed.topics[0].description
    loading = compared(TABLE, before, reloads={TABLE: 50})
    loading.backfilling = (TABLE,)
    assert " repairs the damage before it" in judge(loading, NAMES, PINS).topics[0].description


def test_a_reload_of_another_table_repairs_nothing() -> None:
    found = judge(compared(TABLE, Damage("short", 5, 9, 0, 5, 3), reloads={OTHER: 50}), NAMES, PINS)
    assert len(found.troubles) == 1


def test_damages_that_are_only_counted_are_damages_too() -> None:
    found = compared(TABLE, Damage("short", 5, 9, 0, 5, 3))
    tally = found.tallies[PartitionId(TABLE, 0)]
    tally.dropped, tally.dropped_to = 7, 4
    assert judge(found, NAMES, PINS).topics[0].more == 7
    found.reloads = {TABLE: Reload(20, {0: 50})}
    assert judge(found, NAMES, PINS).topics[0].more == 0


def test_missing_numbers_are_repaired_when_every_table_was_reloaded() -> None:
    found = compared(TABLE, reloads={TABLE: 50})
    found.breaks = [SequenceBreak(7, 9), SequenceBreak(9, 10, other_stream=True)]
    broken = judge(found, NAMES, PINS)
    assert broken.breaks == ((7, 9), (9, 10))
    assert broken.troubles[0].repair == "twofold backfill start public.account public.other"
    found.reloads[OTHER] = Reload(21, {0: 1})
    assert judge(found, NAMES, PINS).troubles == ()


def test_what_no_table_brings_again_says_so() -> None:
    for topic in (NAMES.messages, "bank.public.gone"):
        (trouble,) = judge(compared(topic, Damage("unexpected", 5, 9, 5, 0)), NAMES, PINS).troubles
        assert trouble.repair.startswith("none:")
        assert "twofold audit --since 30" in trouble.repair


def test_what_is_not_judged_is_said() -> None:
    (topic,) = judge(compared(TABLE, high=130), NAMES, PINS).topics
    assert topic.description == "10 rows in 1 range: whole; 30 offsets not judged: a transaction is open there"
