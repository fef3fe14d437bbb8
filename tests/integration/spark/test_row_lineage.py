"""Row lineage of Iceberg's format 3 under the mirror: `_row_id` and
`_last_updated_sequence_number`."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from fixtures.spark import Lake
from helpers.spark.writer import table

MODES = ("merge-on-read", "copy-on-write")
"""Each has a table of its own, of which the same is written."""
Lineage = dict[int, tuple[int, int]]
"""The row's id and its last update, by key."""


def _lineages(lake: Lake) -> list[Lineage]:
    return [_lineage(lake, name) for name in lake.writer.topics]


def _lineage(lake: Lake, name: str) -> Lineage:
    found = lake.spark.sql(
        f"SELECT id, _row_id, _last_updated_sequence_number FROM {lake.catalog}.public.{name}"
    ).collect()
    assert {row["id"] for row in found} == set(lake.writer.model[name])
    return {row["id"]: (row["_row_id"], row["_last_updated_sequence_number"]) for row in found}


@contextmanager
def _writing(lake: Lake) -> Iterator[list[Callable[..., None]]]:
    """What is done to one table is done to both: upsert, delete, rekey, truncate."""
    with lake.writer.commit() as tx:

        def both(do: Callable[..., None]) -> Callable[..., None]:
            def write(*arguments: Any) -> None:
                for name in lake.writer.topics:
                    do(name, *arguments)

            return write

        yield [both(do) for do in (tx.upsert, tx.delete, tx.rekey, tx.truncate)]


@pytest.mark.slow
def test_a_row_keeps_its_id_until_it_is_deleted_or_the_table_is_loaded_again(lake: Lake) -> None:
    names = [lake.writer.table(table(mode.replace("-", "_"), {"id": "int8", "note": "text"})) for mode in MODES]
    with _writing(lake) as (upsert, *_):
        for key in range(1, 6):
            upsert({"id": key, "note": "new"})
    lake.mirror()
    for name, mode in zip(names, MODES, strict=True):
        properties = ", ".join(f"'write.{what}.mode' = '{mode}'" for what in ("delete", "update", "merge"))
        lake.spark.sql(f"ALTER TABLE {lake.catalog}.public.{name} SET TBLPROPERTIES ({properties})")
    firsts = _lineages(lake)
    with _writing(lake) as (upsert, delete, *_):
        upsert({"id": 1, "note": "updated"})
        upsert({"id": 2, "note": "new"})
        delete(3)
        delete(4)
        upsert({"id": 4, "note": "inserted again in the same batch"})
    lake.mirror()
    merges = _lineages(lake)
    for first, merged in zip(firsts, merges, strict=True):
        assert merged[5] == first[5], "left alone"
        number = merged[1][1]
        assert number > first[1][1]
        kept = [(first[key][0], number) for key in (1, 2, 4)]
        assert [merged[key] for key in (1, 2, 4)] == kept, "also of equal values"
    with _writing(lake) as (upsert, _, rekey, _):
        upsert({"id": 3, "note": "inserted again in a later batch"})
        rekey(5, {"id": 6, "note": "new"})
    lake.mirror()
    agains = _lineages(lake)
    for first, merged, again in zip(firsts, merges, agains, strict=True):
        assert [again[key] for key in (1, 2, 4)] == [merged[key] for key in (1, 2, 4)]
        assert min(again[3][0], again[6][0]) > max(row for row, _ in first.values()), "new rows"
    for name in names:
        lake.spark.sql(
            f"CALL {lake.catalog}.system.rewrite_data_files("
            f"table => 'public.{name}', options => map('rewrite-all', 'true'))"
        )
    assert _lineages(lake) == agains, "compaction carries both"
    with _writing(lake) as (_, delete, *_):
        delete(1)
    lake.mirror(maintain_every=1, keep_cuts=dt.timedelta(0))
    for again in agains:
        del again[1]
    assert _lineages(lake) == agains, "so does the mirror's maintenance"
    with _writing(lake) as (upsert, *_, truncate):
        truncate()
        upsert({"id": 2, "note": "new"})
    lake.mirror()
    for again, loaded in zip(agains, _lineages(lake), strict=True):
        assert loaded[2][0] > max(row for row, _ in again.values()), "a reload writes new rows"
