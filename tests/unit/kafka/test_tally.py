"""The comparison of ranges with visible offsets: each kind of damage, in each order in which ranges
can come; and random histories of a connector that damages nothing.
"""

from __future__ import annotations

import itertools
import random

import pytest

from twofold.kafka.tally import KEPT_MAX, Damage, ExpectedRange, PartitionTally


def tally_of(
    batches: list[list[tuple[int, int, int]]], visible: list[int], *, start: int = 0, end: int = 0, **options: object
) -> PartitionTally:
    """Go through batches of (first, last, count), the sequence numbers in their order, as the
    reader does.
    """
    tally = PartitionTally(start, end or max([*visible, *(r[1] for b in batches for r in b)]) + 1, **options)  # type: ignore[arg-type]
    sequence = 0
    for n, batch in enumerate(batches):
        expected = []
        for first, last, count in batch:
            sequence += 1
            expected.append(ExpectedRange(first, last, count, sequence))
        final = n == len(batches) - 1
        begin, upto = tally.position, tally.expect(expected)
        upto = tally.end if final else upto
        for offset in visible:
            if begin <= offset < upto:
                tally.see(offset, offset)
        tally.judge(upto, final=final)
    return tally


def test_whole_ranges_with_markers_between() -> None:
    tally = tally_of([[(0, 2, 3), (4, 6, 2)]], [0, 1, 2, 4, 6])
    assert tally.damages == []
    assert (tally.rows, tally.ranges) == (5, 2)


def test_rows_of_a_range_that_nobody_sees() -> None:
    assert tally_of([[(0, 2, 3), (4, 6, 3)]], [4, 5, 6]).damages == [Damage("short", 0, 2, 0, 3, 1)]
    assert tally_of([[(0, 2, 3)]], [0, 2], end=4).damages == [Damage("short", 0, 2, 2, 3, 1)]


def test_rows_in_no_range() -> None:
    before, between, behind = [0, 1], [5, 6], [10]
    visible = [*before, 3, *between, 8, *behind]
    assert tally_of([[(3, 3, 1), (8, 8, 1)]], visible).damages == [
        Damage("unexpected", 0, 1, 2, 0),
        Damage("unexpected", 5, 6, 2, 0),
        Damage("unexpected", 10, 10, 1, 0),
    ]


def test_more_rows_than_a_range_names() -> None:
    assert tally_of([[(0, 4, 3)]], [0, 1, 2, 4]).damages == [Damage("surplus", 0, 4, 4, 3, 1)]


def test_two_ranges_that_share_offsets_are_judged_as_one() -> None:
    tally = tally_of([[(0, 6, 3), (2, 8, 4)]], [0, 1, 2, 5, 6, 7, 8])
    assert tally.damages == [Damage("overlap", 2, 6, 0, 4, 2)]
    tally = tally_of([[(0, 6, 3), (2, 8, 4)]], [0, 1, 2])
    assert [d.kind for d in tally.damages] == ["overlap", "short"]


@pytest.mark.parametrize("together", [True, False])
def test_a_prepared_transaction_that_committed_after_others_behind_it(together: bool) -> None:
    """Its range comes last and lies first, in the same batch or in the next one."""
    others, prepared = [(0, 1, 2), (6, 7, 2)], [(3, 4, 2)]
    batches = [others + prepared] if together else [others, prepared]
    assert tally_of(batches, [0, 1, 3, 4, 6, 7]).damages == []
    assert tally_of(batches, [0, 1, 3, 6, 7]).damages == [Damage("short", 3, 4, 1, 2, 3)]


def test_an_unexpected_record_waits_for_one_more_batch_and_no_longer() -> None:
    batches = [[(0, 0, 1), (4, 4, 1)], [(6, 6, 1)], [(8, 8, 1)]]
    assert tally_of(batches, [0, 2, 4, 6, 8]).damages == [Damage("unexpected", 2, 2, 1, 0)]
    late = [*batches, [(2, 2, 1)]]
    assert [d.kind for d in tally_of(late, [0, 2, 4, 6, 8]).damages] == ["unexpected", "short"]


def test_ranges_that_retention_took_or_that_are_still_being_written_are_not_judged() -> None:
    """Rows that are left of them are named by them all the same."""
    tally = tally_of([[(0, 6, 5), (8, 9, 2), (11, 13, 3)]], [5, 6, 8, 9], start=5, end=11)
    assert tally.damages == []
    assert (tally.unjudged_ranges, tally.unknown) == (2, 0)


def test_rows_up_to_where_they_are_accepted_are_no_damage() -> None:
    tally = tally_of([[(8, 9, 2)]], [5, 6, 8, 9], accepted=6)
    assert (tally.damages, tally.unknown) == ([], 2)


def test_rows_below_the_first_known_range_are_unknown_where_commit_records_were_taken_away() -> None:
    visible = [0, 1, 5, 6, 8]
    assert tally_of([[(5, 6, 2)]], visible, from_first_range=True).damages == [Damage("unexpected", 8, 8, 1, 0)]
    assert tally_of([[(5, 6, 2)]], visible, from_first_range=True).unknown == 2
    assert tally_of([[]], visible, from_first_range=True).damages == []


def test_the_lists_are_bounded() -> None:
    visible = list(range(0, 100 * KEPT_MAX, 10))
    tally = tally_of([[(100 * KEPT_MAX, 100 * KEPT_MAX, 1)]], visible)
    assert len(tally.damages) + tally.dropped == len(visible) + 1
    assert len(tally.damages) <= 2 * KEPT_MAX
    assert tally.dropped_to >= 0


def test_a_long_prepared_transaction_is_one_unexpected_run() -> None:
    tally = tally_of([[(100_000, 100_000, 1)], [(0, 99_998, 99_999)]], [*range(99_999), 100_000])
    assert tally.damages == []


@pytest.mark.parametrize("seed", range(200))
def test_random_histories(seed: int) -> None:
    """Transactions of two kinds, aborted ones, markers anywhere between; cut into batches anywhere.

    Nothing is found in them; what is then broken is found where it was.
    """
    rng = random.Random(seed)
    at = 0
    visible: list[int] = []
    ranges: list[tuple[int, int, int]] = []
    waiting: list[tuple[int, int, int]] = []
    for _ in range(rng.randrange(5, 60)):
        at += rng.randrange(3)
        rows = rng.randrange(1, 6)
        offsets, at = list(range(at, at + rows)), at + rows
        if rng.random() < 0.2:
            continue  # aborted
        visible += offsets
        stretch = (offsets[0], offsets[-1], rows)
        (waiting if rng.random() < 0.3 else ranges).append(stretch)
        if waiting and rng.random() < 0.5:
            ranges.append(waiting.pop(rng.randrange(len(waiting))))
    ranges += waiting
    cuts = sorted({0, len(ranges), *(rng.randrange(len(ranges) + 1) for _ in range(rng.randrange(2)))})
    batches = [ranges[a:b] for a, b in itertools.pairwise(cuts)] or [[]]
    assert tally_of(batches, visible).damages == []
    if not ranges:
        return
    lost = rng.choice(visible)
    damage = tally_of(batches, [v for v in visible if v != lost], end=at).damages
    assert len(damage) == 1
    assert damage[0].kind == "short"
    assert damage[0].first <= lost <= damage[0].last
    unnamed = rng.choice(ranges)
    without = [[r for r in batch if r != unnamed] for batch in batches]
    damage = tally_of(without, visible, end=at).damages
    assert [(d.kind, d.first, d.last) for d in damage] == [("unexpected", unnamed[0], unnamed[1])]


@pytest.mark.parametrize(
    ("high", "damages"),
    [
        (30, []),  # it was written meanwhile
        (20, []),
        (14, [Damage("short", 14, 19, 0, 6, 2)]),
        (0, [Damage("short", 8, 19, 0, 10, 2)]),
    ],
)
def test_what_lies_beyond_the_end_is_lost_if_the_partition_still_ends_before(high: int, damages: list[Damage]) -> None:
    tally = PartitionTally(0, 5)
    tally.expect([ExpectedRange(0, 4, 5, 1), ExpectedRange(8, 19, 10, 2), ExpectedRange(5, 7, 3, 3)])
    tally.see(0, 4)
    tally.judge(5, final=True)
    assert tally.damages == []
    tally.judge_beyond(high)
    assert tally.damages == damages
