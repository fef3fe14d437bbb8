"""A small table is rewritten by a merge; a larger one gets what changed beside its files."""

from __future__ import annotations

import pytest

from twofold_spark.sinks.write_mode import choose_mode

ANEW, BESIDE = "copy-on-write", "merge-on-read"


@pytest.mark.parametrize(
    ("present", "rows", "size", "chosen"),
    [
        pytest.param(None, 0, 0, ANEW, id="a new table"),
        pytest.param(ANEW, 10_000, 256 << 10, ANEW, id="within both limits"),
        pytest.param(ANEW, 10_001, 1, BESIDE, id="too many rows"),
        pytest.param(ANEW, 1, (256 << 10) + 1, BESIDE, id="too many bytes"),
        pytest.param(BESIDE, 10_000, 1, BESIDE, id="not yet small again"),
        pytest.param(BESIDE, 5_000, 128 << 10, ANEW, id="small again"),
        pytest.param("", 5_000, 128 << 10, ANEW, id="a property that is gone"),
        pytest.param(ANEW, None, 1, BESIDE, id="rows that are not known"),
        pytest.param(ANEW, 1, None, BESIDE, id="bytes that are not known"),
    ],
)
def test_the_size_decides(present: str | None, rows: int | None, size: int | None, chosen: str) -> None:
    assert choose_mode("by-size", present, rows, size) == chosen


@pytest.mark.parametrize("asked", [ANEW, BESIDE])
def test_what_is_asked_for_counts_whatever_the_size(asked: str) -> None:
    assert choose_mode(asked, None, 0, 0) == choose_mode(asked, BESIDE, 10**9, 10**12) == asked  # type: ignore[arg-type]
