"""The table of the crash matrix can be read back as it was written: counts must not be lost."""

from __future__ import annotations

from collections import Counter

from fixtures.crashes import Death, read, table


def test_counts_grow_from_what_is_there() -> None:
    seen = Counter({Death("after_flush", "connector", "sent again"): 2})
    other = Counter({Death("a checkpoint is missing", "PostgreSQL", "skipped"): 1})
    assert read(table(seen)) == seen
    assert read(table(read(table(seen)) + seen + other)) == seen + seen + other
