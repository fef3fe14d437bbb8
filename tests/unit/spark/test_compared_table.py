"""How many buckets `verify` makes of a table."""

from __future__ import annotations

import pytest

from twofold_spark.verify.compared_table import BUCKETS_AT_ONCE, choose_bucket_count


@pytest.mark.parametrize("rows", [0, 1, 262_144, 100_000_000, 2_000_000_000])
def test_what_the_driver_holds_at_once_grows_as_the_root_of_the_rows(rows: int) -> None:
    buckets = choose_bucket_count(rows)
    at_once = BUCKETS_AT_ONCE * rows / buckets
    assert buckets >= 4096
    assert max(buckets, at_once) <= max(4096, 8.01 * rows**0.5)
