"""A small table is rewritten by a merge; a larger one gets what changed beside its files.

If that is most of it, it is rewritten too.
"""

from __future__ import annotations

import pytest

from twofold_spark.sinks.merge_plan import MergedTable, WriteMode

REWRITTEN: WriteMode = "copy-on-write"
BESIDE: WriteMode = "merge-on-read"


@pytest.mark.parametrize(
    ("present", "rows", "size", "chosen"),
    [
        pytest.param(None, 0, 0, REWRITTEN, id="a new table"),
        pytest.param(REWRITTEN, 10_000, 256 << 10, REWRITTEN, id="within both limits"),
        pytest.param(REWRITTEN, 10_001, 1, BESIDE, id="too many rows"),
        pytest.param(REWRITTEN, 1, (256 << 10) + 1, BESIDE, id="too many bytes"),
        pytest.param(BESIDE, 10_000, 1, BESIDE, id="not yet small again"),
        pytest.param(BESIDE, 5_000, 128 << 10, REWRITTEN, id="small again"),
        pytest.param("", 5_000, 128 << 10, REWRITTEN, id="a property that is gone"),
        pytest.param(REWRITTEN, None, 1, BESIDE, id="rows that are not known"),
        pytest.param(REWRITTEN, 1, None, BESIDE, id="bytes that are not known"),
    ],
)
def test_the_size_decides(present: str | None, rows: int | None, size: int | None, chosen: str) -> None:
    assert MergedTable(present, rows, size).choose_mode("by-size", changed=0) == chosen


@pytest.mark.parametrize(
    ("rows", "changed", "chosen"),
    [
        pytest.param(10**6, 500_001, REWRITTEN, id="most rows"),
        pytest.param(10**6, 500_000, BESIDE, id="half of them"),
        pytest.param(10**6, None, BESIDE, id="a batch of unknown size"),
        pytest.param(None, 10**6, BESIDE, id="a table of unknown size"),
    ],
)
def test_a_batch_that_changes_most_rows_rewrites_a_table_of_any_size(
    rows: int | None, changed: int | None, chosen: str
) -> None:
    assert MergedTable(BESIDE, rows, 10**9).choose_mode("by-size", changed) == chosen


@pytest.mark.parametrize("asked", [REWRITTEN, BESIDE])
def test_what_is_asked_for_counts_whatever_the_size(asked: WriteMode) -> None:
    small, large = MergedTable(None, 0, 0), MergedTable(BESIDE, 10**9, 10**12)
    assert small.choose_mode(asked, 10) == large.choose_mode(asked, 10) == large.choose_mode(asked, 10**9) == asked
