"""Commit records: how large a batch of them may be, and which offset ranges they declare."""

from __future__ import annotations

from dataclasses import replace

import pytest

from twofold_spark.errors import Refused
from twofold_spark.mirror.batching import BatchSizer, MaintenanceQueue, MaintenanceSchedule
from twofold_spark.mirror.table_merge import find_later_rows
from twofold_spark.sources.commit_records import (
    NO_COMMIT,
    CommitRecord,
    OffsetRange,
    gap_refusal,
    is_other,
    join_ranges,
    select_since_reload,
)


def _commit(sequence: int, rows: int = 1, *ranges: OffsetRange) -> CommitRecord:
    return CommitRecord(sequence + 2, sequence, sequence * 10, 0, 1, rows, ranges, ())


def test_a_gap_is_told_with_its_bounds() -> None:
    assert "commit record 4 is missing: the next one that Kafka has is 7" in str(gap_refusal(3, 7))
    assert "4 to 6" in str(gap_refusal(3, 7))


def test_a_stream_is_known_by_its_own_name_alone() -> None:
    known = _commit(7).identity
    assert not is_other(known, NO_COMMIT), "the first one that is read"
    assert not is_other(known, known)
    assert not is_other(_commit(8).identity, known)
    assert not is_other(_commit(6).identity, known), "one that comes again"
    for number in (1, 6, 7, 8):
        assert is_other(_commit(number).identity._replace(stream_id="next"), known)
    assert is_other(known._replace(applied_lsn=71), known), "such as after a restore of Kafka"


def test_what_was_before_the_last_reload_counts_no_more() -> None:
    of_t = [OffsetRange("t", 0, n, n, 1) for n in range(5)]
    other = OffsetRange("other", 0, 0, 9, 10)
    commits = [_commit(n, 1, stretch, other) for n, stretch in enumerate(of_t)]
    assert select_since_reload(commits, "t") == (of_t, False)
    commits[1] = replace(commits[1], ranges=(of_t[1],), reload=True)
    commits[3] = replace(commits[3], ranges=(of_t[3],), reload=True)
    assert select_since_reload(commits, "t") == (of_t[3:], True)
    assert select_since_reload(commits, "other") == ([other] * 3, False)


def test_heavy_rows_make_smaller_batches() -> None:
    sizer = BatchSizer(rows=1_000_000, bytes_=100_000_000)
    assert sizer.next_rows() == 20_000  # not known yet: taken for heavy
    sizer.record_batch(1000, 100_000)
    assert sizer.next_rows() == 1_000_000
    sizer.record_batch(10, 10_000_000)
    assert sizer.next_rows() == 100
    sizer.record_batch(0, 0)
    assert sizer.next_rows() == 100


def test_ranges_that_only_a_marker_parts_are_one_and_others_stay_apart() -> None:
    ranges = [
        OffsetRange("t", 0, 0, 4, 5),
        OffsetRange("t", 0, 6, 9, 4),
        OffsetRange("t", 0, 12, 12, 1),
        OffsetRange("t", 1, 14, 14, 1),
    ]
    assert join_ranges(reversed(ranges), over_markers=True) == [
        OffsetRange("t", 0, 0, 9, 9),
        OffsetRange("t", 0, 12, 12, 1),
        OffsetRange("t", 1, 14, 14, 1),
    ]
    assert join_ranges(ranges, over_markers=False) == ranges


def test_what_follows_a_prepared_transactions_range_may_be_anything() -> None:
    prepared = OffsetRange("t", 0, 0, 4, 5, prepared=True)
    apart = [prepared, OffsetRange("t", 0, 6, 9, 4)]
    assert join_ranges(apart, over_markers=True) == apart
    following = [prepared, OffsetRange("t", 0, 5, 9, 5), OffsetRange("t", 0, 11, 11, 1)]
    assert join_ranges(following, over_markers=True) == [OffsetRange("t", 0, 0, 11, 11)]


def test_two_commit_records_on_one_offset_are_refused() -> None:
    with pytest.raises(Refused, match="two commit records name"):
        join_ranges([OffsetRange("t", 0, 0, 4, 5), OffsetRange("t", 0, 4, 9, 6)], over_markers=True)


@pytest.mark.parametrize(("records", "turns"), [(1, 10), (2, 20), (7, 70), (150, 1000)])
def test_of_a_thousand_jobs_of_one_batch_each_some_maintain_the_tables(records: int, turns: int) -> None:
    due = [MaintenanceSchedule(100).is_due(n * records, (n + 1) * records) for n in range(1000)]
    assert sum(due) == turns


def test_a_job_that_runs_on_counts_batches_whatever_they_hold() -> None:
    turns = MaintenanceSchedule(10)
    assert [n for n in range(40) if turns.is_due(n * 25, (n + 1) * 25)] == [0, 10, 20, 30]
    few = MaintenanceSchedule(10)
    assert [n for n in range(40) if few.is_due(95 + n, 96 + n)] == [4, 14, 24, 34]


def test_tables_that_are_due_are_taken_in_shares() -> None:
    names = [f"t{number}" for number in range(25)]
    queue = MaintenanceQueue(at_once=False)
    assert not queue
    queue.add(names)
    taken = [queue.take_share() for _ in range(8)]
    assert taken == [names[at : at + 3] for at in range(0, 24, 3)]
    queue.add(["t0", "t24"])
    assert (queue.take_share(), queue.take_share(), bool(queue)) == (["t24"], ["t0"], False)
    at_once = MaintenanceQueue(at_once=True)
    at_once.add(names)
    assert (at_once.take_share(), bool(at_once)) == (names, False)


@pytest.mark.parametrize(
    ("befores", "at", "found"),
    [
        ((50, 100), 99, None),
        ((50, 100), 100, (0, 100, 100)),
        ((100, None), 500, None),
        ((), 500, None),
    ],
)
def test_rows_lie_before_the_position_of_their_commit_records(
    befores: tuple[int | None, ...], at: int, found: tuple[int, int, int] | None
) -> None:
    """Except those of a load, which say nothing of it."""
    ranges = [OffsetRange("t", 0, n, n, 1, before=before) for n, before in enumerate(befores)]
    assert find_later_rows(ranges, {0: at}) == found
