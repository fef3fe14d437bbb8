"""A glance at a commit record says what decoding it says."""

from __future__ import annotations

from typing import Literal

from hypothesis import given
from hypothesis import strategies as st

from twofold.errors import UnreadableRecord
from twofold.group.member_commits import glance_at_commit
from twofold.kafka.decoding import RecordPlace
from twofold_avro.records import Commit, PreparedOutcome, Range

OUTCOME = PreparedOutcome("7:100", 7, "gid", 100, 200, 5, "global", None)
PLACE = RecordPlace("bank.commits", 0, 7)
LONG = st.integers(-(2**63), 2**63 - 1)


KINDS: tuple[Literal["batch", "prepared", "backfill", "reload"], ...] = ("batch", "prepared", "backfill", "reload")


@given(st.integers(0, 2**63 - 1), st.sampled_from(KINDS), LONG, LONG, st.integers(0, 2**40), st.integers(0, 3))
def test_a_glance_says_what_decoding_says(
    sequence: int,
    kind: Literal["batch", "prepared", "backfill", "reload"],
    lsn: int,
    at_us: int,
    rows: int,
    prepared: int,
) -> None:
    ranges = (Range("bank.public.t", 0, 1, 2, 2),)
    commit = Commit(sequence, kind, lsn, at_us, prepared, rows, (OUTCOME,) * prepared, ranges)
    assert glance_at_commit(commit.to_bytes(42), PLACE) == (sequence, kind == "backfill", prepared > 0)


@given(st.one_of(st.binary(max_size=40), st.just(b"\0\0\0\0\1" + b"\xff" * 10_000)))
def test_bytes_that_are_no_commit_record_are_named(message: bytes) -> None:
    try:
        glance_at_commit(message, PLACE)
    except UnreadableRecord as error:
        assert "bank.commits [0] at offset 7" in error.what  # noqa: PT017
