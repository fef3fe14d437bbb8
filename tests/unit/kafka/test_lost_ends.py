"""Whether something that Kafka forgot to end was committed: the rule alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from twofold.kafka.lost_ends import Forgotten, Verdict, judge, other_prefixes
from twofold.kafka.names import Names
from twofold.kafka.topic_reader import Bounds, PartitionId
from twofold_avro.records import Commit, Progress, Range
from twofold_common.positions import Lsn

COMMITS, PROGRESS = PartitionId("p.commits", 0), PartitionId("p.progress", 0)
A, B = PartitionId("p.public.a", 0), PartitionId("p.public.a", 1)


def hung(**stable: int) -> dict[PartitionId, Bounds]:
    places = {"commits": COMMITS, "progress": PROGRESS, "a": A, "b": B}
    return {places[name]: Bounds(0, offset, offset + 10) for name, offset in stable.items()}


def commit(sequence: int, *ranges: tuple[PartitionId, int, int]) -> Commit:
    written = tuple(Range(*place, first, last, last - first + 1) for place, first, last in ranges)
    return Commit(sequence=sequence, kind="batch", applied_lsn=100 * sequence, committed_at=0, transactions=1, rows=1, ranges=written)  # fmt: skip


def progress(applied_lsn: int) -> Progress:
    return Progress(sequence=1, applied_lsn=applied_lsn, written_at=0, system_identifier="1", timeline=1, database="d", slot="s", pool=1)  # fmt: skip


def forgotten(parts: dict[PartitionId, Bounds], **more: Any) -> Forgotten:
    plain: dict[str, Any] = {"hidden_commits": (), "hidden_progress": (), "confirmed": Lsn(0)}
    return Forgotten(hung=parts, commits=COMMITS, progress=PROGRESS, **{**plain, **more})


def why(forgotten: Forgotten, visible: list[Commit]) -> str | None:
    return judge(forgotten, visible).refusal


BEFORE = commit(1, (A, 0, 6), (B, 0, 3))
HIDDEN = commit(2, (A, 7, 9), (B, 4, 8))
EVERYWHERE = hung(commits=5, progress=9, a=7, b=4)


def test_rows_that_no_commit_record_declares_were_never_committed() -> None:
    assert why(forgotten(hung(a=7, b=4)), [BEFORE]) is None


def test_rows_of_a_visible_commit_record_were() -> None:
    reason = why(forgotten(hung(b=4)), [BEFORE, HIDDEN])
    assert reason == "commit record 2 declares offsets 4 to 8 of p.public.a [1]"


def test_an_older_commit_record_counts_as_well() -> None:
    assert why(forgotten(hung(b=2)), [BEFORE, commit(2, (A, 7, 9))]) is not None


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        (["batch"], Verdict(through_main=False)),
        (["prepared"], Verdict(through_pool=False)),
        (["batch", "backfill"], Verdict(through_main=False)),
    ],
)
def test_an_id_that_may_have_committed_rows_behind_the_forgotten_ones_aborts_nothing(
    kinds: list[Any], expected: Verdict
) -> None:
    behind = [replace(commit(n, (B, 4 + n, 4 + n)), kind=kind) for n, kind in enumerate(kinds, start=2)]
    assert judge(forgotten(hung(b=4)), [BEFORE, *behind]) == expected


def test_where_all_ids_may_have_none_does() -> None:
    behind = [commit(2, (B, 6, 6)), replace(commit(3, (A, 9, 9)), kind="prepared")]
    assert why(forgotten(hung(a=7, b=4)), [BEFORE, *behind]) is not None


def test_a_commit_record_that_is_hidden_with_all_that_belongs_to_it_is_aborted() -> None:
    whole = forgotten(EVERYWHERE, hidden_commits=(HIDDEN,), hidden_progress=(progress(200),), confirmed=Lsn(199))
    assert why(whole, [BEFORE]) is None
    assert why(replace(whole, confirmed=Lsn(200)), [BEFORE]) is not None
    assert why(replace(whole, confirmed=None), [BEFORE]) is not None


@pytest.mark.parametrize("ended", [PROGRESS, A, B])
def test_a_hidden_commit_record_of_which_a_part_has_ended_is_not(ended: PartitionId) -> None:
    parts = {place: bounds for place, bounds in EVERYWHERE.items() if place != ended}
    assert why(forgotten(parts, hidden_commits=(HIDDEN,)), [BEFORE]) is not None


def test_nor_is_one_whose_rows_begin_before_the_forgotten_part() -> None:
    parts = {**EVERYWHERE, **hung(a=8)}
    assert why(forgotten(parts, hidden_commits=(HIDDEN,)), [BEFORE]) is not None


def test_behind_several_hidden_commit_records_the_first_was_committed() -> None:
    assert why(forgotten(EVERYWHERE, hidden_commits=(HIDDEN, commit(3))), [BEFORE]) is not None


def test_progress_was_committed_with_its_visible_commit_record() -> None:
    only = forgotten(hung(progress=9), hidden_progress=(progress(100),))
    assert why(only, [BEFORE]) is not None
    assert why(replace(only, hidden_progress=(progress(150),)), [BEFORE]) is None


def test_a_connector_whose_prefix_begins_with_ours_is_another_one() -> None:
    topics = {"p.commits", "p.progress", "p.prepared", "p.public.a", "p.eu.commits", "p.eu.progress", "p.eu.prepared", "p.eu.public.a", "p.x.commits"}  # fmt: skip
    assert other_prefixes(topics, Names("p", "me")) == {"p.eu"}
