"""What a person reads of positions, times and keys."""

from __future__ import annotations

import pytest

from twofold_common.positions import format_lsn
from twofold_spark.sinks.cuts import CutLimit, format_time
from twofold_spark.verify.row_digest import split_row_text


def test_a_position_is_what_postgresql_prints() -> None:
    assert [format_lsn(n) for n in (0, 0x3E8, (0x1A << 32) + 0xBC0)] == ["0/0", "0/3E8", "1A/BC0"]


def test_a_time_is_in_utc_to_the_microsecond() -> None:
    assert format_time(1_700_000_000_000_001) == "2023-11-14 22:13:20.000001 UTC"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("1:7", ["7"]),
        ("N", [None]),
        ("1:7,N,0:,3:a,N", ["7", None, "", "a,N"]),
        ("2:\U0001f600\u2603,1:x", ["\U0001f600\u2603", "x"]),
        ("N,12:3:abc,N,2:xy", [None, "3:abc,N,2:xy"]),
    ],
)
def test_a_keys_columns_are_read_back_from_its_text(text: str, found: list[str | None]) -> None:
    assert split_row_text(text) == found


def test_a_cut_is_meant_if_it_lies_at_or_before_all_that_is_given() -> None:
    cut = (7, 1000, 5_000_000)
    assert CutLimit().admits(*cut)
    assert CutLimit(*cut).admits(*cut)
    assert not any(asked.admits(*cut) for asked in (CutLimit(6), CutLimit(7, 999), CutLimit(committed_us=4_999_999)))
    assert str(CutLimit(6, 999)) == "sequence 6 and position 0/3E7"
