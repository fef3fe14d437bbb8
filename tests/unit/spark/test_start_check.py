"""What a start of the mirror does about a checkpoint that its tables do not fit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from twofold_spark.errors import Refused
from twofold_spark.mirror.start_check import Found, choose_catch_up, parse_offset
from twofold_spark.sinks.cuts import Cut
from twofold_spark.sources.commit_records import CommitRecord


def _record(sequence: int, stream_id: str = "s") -> CommitRecord:
    return CommitRecord(2 * sequence, sequence, 10 * sequence, 0, 1, 1, (), (), stream_id)


def _cut(sequence: int) -> Cut:
    return Cut(sequence, 10 * sequence, 0, whole=True, versions={}, backfilling=(), stopped=(), stream_id="s")


NEW = Found(first_offset=0, next=_record(1), last=None, has_position=False)


@pytest.mark.parametrize(
    ("cut", "found", "catch_up"),
    [
        (None, NEW, 0),
        (_cut(7), replace(NEW, next=_record(1)), 0),  # the checkpoint is lost: the stream reads all again
        (_cut(7), Found(0, _record(8), None, True), 0),
        (_cut(7), Found(0, _record(5), None, True), 0),  # a micro-batch that did not end comes again
        (_cut(7), Found(0, None, _record(7), True), 0),  # nothing is new
        (_cut(7), Found(9, None, None, True), 0),  # retention has taken what was applied
        (_cut(7), Found(0, _record(12), None, True), 11),  # the tables were restored
        (_cut(7), Found(0, None, _record(12), True), 12),  # the same, and nothing is new: no batch would come
        (None, Found(0, None, _record(12), True), 12),  # another mirror's checkpoint
        (None, Found(5, _record(4), None, False), 0),  # the gap is the first batch's to tell
        (None, Found(0, None, None, False), 0),  # no connector has committed yet
    ],
)
def test_what_the_tables_lack_and_the_stream_will_not_read_is_read_before(
    cut: Cut | None, found: Found, catch_up: int
) -> None:
    assert choose_catch_up("bank", cut, found) == catch_up


@pytest.mark.parametrize("sequence", [3, 7, 8, 20])
@pytest.mark.parametrize("is_next", [True, False])
def test_another_stream_is_refused_before_anything_is_read(sequence: int, *, is_next: bool) -> None:
    other = _record(sequence, "of another init")
    found = Found(0, other if is_next else None, None if is_next else other, True)
    with pytest.raises(Refused, match="the topics of this prefix were recreated"):
        choose_catch_up("bank", _cut(7), found)


def test_a_new_mirror_whose_commit_records_are_all_gone_says_so() -> None:
    with pytest.raises(Refused, match=r"no commit record of bank any more.*\n.*\n.*--on-table-error go-on"):
        choose_catch_up("bank", None, Found(9, None, None, False))


def test_the_end_of_a_micro_batch_is_read_from_its_checkpoint() -> None:
    text = 'v1\n{"batchWatermarkMs":0}\n{"bank.commits":{"0":57}}\n'
    assert parse_offset(text, "bank.commits") == 57
    assert parse_offset(text, "shop.commits") is None
    assert parse_offset("v1", "bank.commits") is None
