"""What is cached of a table's batch goes with it, also where the table is refused."""

from __future__ import annotations

from fixtures.spark import Lake
from helpers.spark.writer import table


def test_a_refusal_leaves_nothing_cached(lake: Lake) -> None:
    """One of each step that can refuse: the fold, the values that are carried over, the columns."""
    w = lake.writer
    columns = {"id": "int8", "v": "text", "size": "int4"}
    named, moved, misfit = (w.table(table(n, columns), partitions=1) for n in ("named", "moved", "misfit"))
    row = {"id": 1, "v": "v", "size": 1}
    with w.commit() as tx:
        for name in (named, moved, misfit):
            tx.upsert(name, row)
    lake.mirror()
    before = _cached(lake)
    w.evolve(named, V="text")
    w.drop(misfit, "size")
    w.evolve(misfit, size="text")
    with w.commit() as tx:
        tx.upsert(named, {**row, "V": "other"})
        sent = {**row, "id": 2, "v": None}
        tx._record(moved, "c", sent, {**row, "id": 9}, sent, w.lsn(), ("v",))
        tx.upsert(misfit, {**row, "size": "large"}, unchanged=("v",))
    lake.mirror(on_table_error="go-on", warn=lambda _: None)
    assert lake.cut().cut.stopped == ("public.misfit", "public.moved", "public.named")
    assert _cached(lake) == before


def _cached(lake: Lake) -> int:
    return int(lake.spark._jsparkSession.sharedState().cacheManager().numCachedEntries())
