"""Row lineage of Iceberg's format 3 under the mirror: `_row_id` and
`_last_updated_sequence_number`."""

from __future__ import annotations

import datetime as dt

import pytest

from fixtures.spark import Lake
from helpers.spark.writer import table

ORDERS = table("orders", {"id": "int8", "note": "text"})


def _lineage(lake: Lake) -> dict[int, tuple[int, int]]:
    """The row's id and its last update, by key."""
    found = lake.spark.sql(
        f"SELECT id, _row_id, _last_updated_sequence_number FROM {lake.catalog}.public.orders"
    ).collect()
    assert {row["id"] for row in found} == set(lake.writer.model["orders"])
    return {row["id"]: (row["_row_id"], row["_last_updated_sequence_number"]) for row in found}


@pytest.mark.parametrize("mode", ["merge-on-read", "copy-on-write"])
def test_a_row_keeps_its_id_until_it_is_deleted_or_the_table_is_loaded_again(lake: Lake, mode: str) -> None:
    lake.writer.table(ORDERS)
    with lake.writer.commit() as tx:
        for key in range(1, 6):
            tx.upsert("orders", {"id": key, "note": "new"})
    lake.mirror()
    properties = ", ".join(f"'write.{what}.mode' = '{mode}'" for what in ("delete", "update", "merge"))
    lake.spark.sql(f"ALTER TABLE {lake.catalog}.public.orders SET TBLPROPERTIES ({properties})")
    first = _lineage(lake)
    with lake.writer.commit() as tx:
        tx.upsert("orders", {"id": 1, "note": "updated"})
        tx.upsert("orders", {"id": 2, "note": "new"})
        tx.delete("orders", 3)
        tx.delete("orders", 4)
        tx.upsert("orders", {"id": 4, "note": "inserted again in the same batch"})
    lake.mirror()
    merged = _lineage(lake)
    assert merged[5] == first[5], "left alone"
    number = merged[1][1]
    assert number > first[1][1]
    assert [merged[key] for key in (1, 2, 4)] == [(first[key][0], number) for key in (1, 2, 4)], "also of equal values"
    with lake.writer.commit() as tx:
        tx.upsert("orders", {"id": 3, "note": "inserted again in a later batch"})
        tx.rekey("orders", 5, {"id": 6, "note": "new"})
    lake.mirror()
    again = _lineage(lake)
    assert [again[key] for key in (1, 2, 4)] == [merged[key] for key in (1, 2, 4)]
    assert min(again[3][0], again[6][0]) > max(row for row, _ in first.values()), "new rows"
    lake.spark.sql(
        f"CALL {lake.catalog}.system.rewrite_data_files("
        "table => 'public.orders', options => map('rewrite-all', 'true'))"
    )
    assert _lineage(lake) == again, "compaction carries both"
    with lake.writer.commit() as tx:
        tx.delete("orders", 1)
    lake.mirror(maintain_every=1, keep_cuts=dt.timedelta(0))
    del again[1]
    assert _lineage(lake) == again, "so does the mirror's maintenance"
    with lake.writer.commit() as tx:
        tx.truncate("orders")
        tx.upsert("orders", {"id": 2, "note": "new"})
    lake.mirror()
    assert _lineage(lake)[2][0] > max(row for row, _ in again.values()), "a reload writes new rows"
