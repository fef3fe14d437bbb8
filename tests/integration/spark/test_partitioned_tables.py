"""`--partition-by`: tables that the mirror makes in Iceberg, merged, moved, reloaded, compacted."""

from __future__ import annotations

import datetime as dt

import pytest

from fixtures.spark import Lake
from helpers.spark.writer import table
from twofold_spark.errors import SetupError, TableRefused
from twofold_spark.job.running import check_partitioning
from twofold_spark.sinks.partitioning import Partitioning, gather, parse_partitioning
from twofold_spark.sinks.sink_choice import SinkChoice
from twofold_spark.sources.registry import Registry

SALES = table("sales", {"id": "int8", "region": "text", "day": "date", "note": "text"})
_DAY = dt.date(2026, 1, 1)


def _partition(lake: Lake, *given: str) -> Partitioning:
    partitioning = gather([parse_partitioning(text) for text in given])
    lake.choice = SinkChoice("iceberg", partitioning=partitioning)
    return partitioning


def _partitions(lake: Lake) -> set[tuple[object, ...]]:
    found = lake.spark.sql(f"SELECT DISTINCT partition FROM {lake.catalog}.public.sales.files").collect()
    return {tuple(row["partition"]) for row in found}


def _sell(lake: Lake, keys: range, *, region: str | None = None, note: str = "new") -> None:
    with lake.writer.commit() as tx:
        for key in keys:
            row = {"id": key, "region": region or f"r{key % 3}", "day": _DAY + dt.timedelta(key % 2), "note": note}
            tx.upsert("sales", {c: v for c, v in row.items() if c in _columns(lake)})


def _columns(lake: Lake) -> list[str]:
    return [column.name for column in lake.writer.topics["sales"].shape.columns]


@pytest.mark.parametrize("version", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_rows_are_merged_into_their_partitions_and_move_between_them(lake: Lake, version: int) -> None:
    lake.format_version = version
    lake.writer.table(SALES)
    _partition(lake, "public.sales=region,days(day),bucket(2, id)")
    _sell(lake, range(60))
    lake.mirror()
    assert {(region, day) for region, day, _ in _partitions(lake)} == {
        (f"r{n}", _DAY + dt.timedelta(d)) for n in range(3) for d in range(2)
    }
    lake.assert_equal()
    _sell(lake, range(20), region="moved", note="updated")
    with lake.writer.commit() as tx:
        for key in range(30, 40):
            tx.delete("sales", key)
        tx.rekey("sales", 41, {"id": 1041, "region": "r9", "day": _DAY, "note": "another key"})
    _sell(lake, range(60, 70))
    lake.mirror(batch_rows=1)
    lake.assert_equal()
    assert lake.rows("sales", lake.cut()["public.sales"]) == lake.writer.model["sales"]
    assert lake.table("sales").where("region = 'moved' AND day = DATE '2026-01-02'").count() == 10
    _sell(lake, range(10, 25), note="and compacted")
    lake.mirror(maintain_every=1, keep_cuts=dt.timedelta(0))
    lake.assert_equal()
    with lake.writer.commit() as tx:
        tx.truncate("sales")
    _sell(lake, range(5), region="again")
    lake.mirror()
    lake.assert_equal()
    assert {region for region, _, _ in _partitions(lake)} == {"again"}


def test_a_table_keeps_its_partitioning_whatever_the_option_says_and_the_source_drops(lake: Lake) -> None:
    lake.writer.table(SALES)
    partitioning = _partition(lake, "public.sales=region")
    _sell(lake, range(9))
    lake.mirror()
    lake.writer.drop("sales", "region")
    _sell(lake, range(6, 12), note="without a region")
    lake.choice = SinkChoice("iceberg")
    lake.mirror()
    assert _partitions(lake) == {("r0",), ("r1",), ("r2",), (None,)}
    found = {row["id"]: row["region"] for row in lake.table("sales").collect()}
    assert found == {**{key: f"r{key % 3}" for key in range(6)}, **dict.fromkeys(range(6, 12))}
    _partition(lake, "public.sales=bucket(4, id)")
    _sell(lake, range(3), note="by another option")
    lake.mirror()
    assert {len(each) for each in _partitions(lake)} == {1}, "still by region"
    check_partitioning(Registry(lake.writer.registry), [lake.prefix], partitioning)


def test_what_does_not_fit_is_refused(lake: Lake) -> None:
    lake.writer.table(SALES)
    registry = Registry(lake.writer.registry)
    with pytest.raises(SetupError, match=f"no subject {lake.prefix}.public.sail-value: correct the name"):
        check_partitioning(registry, [lake.prefix], _partition(lake, "public.sail=region"))
    with pytest.raises(SetupError, match="does not have: give one of id, region, day, note"):
        check_partitioning(registry, [lake.prefix], _partition(lake, "public.sales=years(region),days(at)"))
    _partition(lake, "public.sales=days(region)")
    _sell(lake, range(3))
    with pytest.raises(TableRefused, match=r"(?s)by day\(region\): .*correct --partition-by public.sales="):
        lake.mirror()
    _partition(lake, "public.sales=days(day)")
    lake.mirror()
    lake.assert_equal()
