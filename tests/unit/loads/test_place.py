"""How far a load is, in its pin and in words."""

from __future__ import annotations

import pytest

from twofold.lives.load_progress import LoadProgress


def test_a_place_outlives_the_pin() -> None:
    place = LoadProgress(
        after=b"\0\xff", order=("b", "a"), again=frozenset({b"a", b""}), scanned=True, rows=3, size=70, seconds=1.5
    )
    assert LoadProgress.from_bytes(place.to_bytes()) == place
    assert LoadProgress.from_bytes(None) == LoadProgress()


def test_it_is_complete_when_nothing_is_to_be_read_again() -> None:
    again = frozenset({b"a"})
    assert LoadProgress(scanned=True).complete
    assert not LoadProgress(scanned=True, again=again).complete
    assert not LoadProgress(again=again).complete
    assert not LoadProgress().complete


@pytest.mark.parametrize(
    ("rows", "estimate", "left_s", "words"),
    [
        (0, 0, None, "0 rows, 0 bytes"),
        (0, 500, None, "0 rows of about 500, 0 bytes"),
        (4000, 0, None, "4,000 rows, 80,000 bytes, 2,000 rows a second"),
        (4000, 10_000, 3.0, "4,000 rows of about 10,000, 80,000 bytes, 2,000 rows a second, about 3 s left"),
        (4000, 3000, 0.0, "4,000 rows of about 3,000, 80,000 bytes, 2,000 rows a second, about 0 s left"),
    ],
)
def test_the_time_that_is_left(rows: int, estimate: int, left_s: float | None, words: str) -> None:
    place = LoadProgress().counted(rows // 2, rows * 10, rows / 4000).counted(rows // 2, rows * 10, rows / 4000)
    assert place.left_s(estimate) == left_s
    assert place.describe(estimate) == words
