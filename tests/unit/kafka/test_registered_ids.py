"""Rows that were encoded before their schemas were registered: real ids, the key's partition, each
key's order, truncates in their place.
"""

from __future__ import annotations

from collections import defaultdict

import pytest

from twofold.kafka.row_batch import PROVISIONAL_KEY_ID, RegisteredTable, RowBatch
from twofold_avro import wire

PROVISIONAL, KEY, VALUE = 0x7F00_0001, 7, 9


def batch_of(rows: list[int | None], partitions: int) -> RowBatch:
    """Rows by key, in order; None is a truncate."""
    batch = RowBatch()
    lists = batch.lists("t", partitions)
    for place, key in enumerate(rows):
        value = wire.frame(PROVISIONAL, b"%d" % place)
        if key is None:
            for records in lists:
                records.append({"key": None, "value": value})
            continue
        framed = wire.frame(PROVISIONAL_KEY_ID, b"%d" % key)
        lists[wire.partition_of(framed, partitions)].append({"key": framed, "value": value})
    return batch


@pytest.mark.parametrize("partitions", [2, 3, 7])
@pytest.mark.parametrize("made_with", [2, 3])
def test_rows_of_a_key_are_where_a_registered_row_would_be(partitions: int, made_with: int) -> None:
    rows = [1, 2, 3, 4, 5, 1, 2, None, 3, 1, None, None, 4, 1, 5]
    batch = batch_of(rows, made_with)
    batch.put_registered_ids([RegisteredTable("t", PROVISIONAL, KEY, VALUE, partitions, keyless=False)])
    seen: dict[int, list[int]] = defaultdict(list)
    for _, partition, records in batch.partitions():
        places = [int(record["value"][5:]) for record in records]
        for at, record in enumerate(records):
            if record["key"] is None:
                assert max(places[:at], default=-1) < places[at] < min(places[at + 1 :], default=99), "a truncate moved"
        assert sum(record["key"] is None for record in records) == rows.count(None)
        for record, place in zip(records, places, strict=True):
            assert wire.unframe(record["value"])[0] == VALUE
            if record["key"] is not None:
                assert record["key"].startswith(wire.header(KEY))
                assert wire.partition_of(record["key"], partitions) == partition
                seen[int(record["key"][5:])].append(place)
    assert seen == {key: [n for n, k in enumerate(rows) if k == key] for key in (1, 2, 3, 4, 5)}


def test_tombstones_follow_and_other_ids_stay() -> None:
    batch = RowBatch()
    lists = batch.lists("t", 1)
    lists[0] += [
        {"key": wire.frame(PROVISIONAL_KEY_ID, b"k"), "value": wire.frame(5, b"old shape")},
        {"key": wire.frame(PROVISIONAL_KEY_ID, b"k"), "value": None},
    ]
    other = RegisteredTable("other", PROVISIONAL + 1, 1, 1, 1, keyless=False)
    batch.put_registered_ids([RegisteredTable("t", PROVISIONAL, KEY, VALUE, 1, keyless=False), other])
    assert list(batch.partitions()) == [
        (
            "t",
            0,
            [
                {"key": wire.frame(KEY, b"k"), "value": wire.frame(5, b"old shape")},
                {"key": wire.frame(KEY, b"k"), "value": None},
            ],
        )
    ]


@pytest.mark.parametrize("made_with", [1, 3])
def test_without_a_key_all_rows_stay_in_the_first_partition(made_with: int) -> None:
    batch = RowBatch()
    rows = [{"key": None, "value": wire.frame(PROVISIONAL, b"%d" % n)} for n in range(5)]
    batch.lists("t", made_with)[0].extend(rows)
    batch.put_registered_ids([RegisteredTable("t", PROVISIONAL, 0, VALUE, 3, keyless=True)])
    assert [(p, [int(r["value"][5:]) for r in records]) for _, p, records in batch.partitions()] == [(0, [*range(5)])]
    assert batch.fits("t", 3)
