"""The key of a commit record says what a source group needs of it."""

from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twofold.kafka.names import CommitKey, commit_key, read_commit_key
from twofold_avro.records import Commit, PreparedOutcome, Range

OUTCOME = PreparedOutcome("7:100", 7, "gid", 100, 200, 5, "global", None)
RANGE = Range("bank.public.t", 0, 1, 2, 2)
Kind = Literal["batch", "prepared", "backfill", "reload"]


@pytest.mark.parametrize(
    ("kind", "prepared", "ranges", "backfilling", "key"),
    [
        ("batch", (), (RANGE,), (), b"7"),
        ("batch", (OUTCOME,), (RANGE,), (), b"7/prepared"),
        ("prepared", (OUTCOME,), (RANGE,), ("bank.public.t",), b"7/prepared"),
        ("reload", (), (RANGE,), ("bank.public.t",), b"7"),
        ("backfill", (), (RANGE,), ("bank.public.t",), b"7"),
        ("backfill", (), (RANGE,), (), b"7/load"),
        ("backfill", (), (), ("bank.public.other",), b"7/load"),
    ],
)
def test_a_key_has_the_number_and_whether_a_frontier_must_know_it(
    kind: Kind,
    prepared: tuple[PreparedOutcome, ...],
    ranges: tuple[Range, ...],
    backfilling: tuple[str, ...],
    key: bytes,
) -> None:
    assert commit_key(Commit(7, kind, 100, 5, 1, 2, prepared, ranges, backfilling)) == key
    assert read_commit_key(key) == CommitKey(7, key != b"7")


@given(st.one_of(st.none(), st.binary(max_size=40)), st.integers(0, 2**63 - 1))
def test_another_key_is_no_commit_records(key: bytes | None, sequence: int) -> None:
    assert read_commit_key(b"%d" % sequence) == (sequence, False)
    assert read_commit_key(b"%d/loads" % sequence) is None
    if (found := read_commit_key(key)) is not None:
        assert key is not None
        assert key.partition(b"/")[0].isdigit()
        assert found.sequence == int(key.partition(b"/")[0])
