"""`read_cut`: the cut of an instant or a position, and the message for one that is gone."""

from __future__ import annotations

import datetime as dt
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from fixtures.connector import wait_until
from fixtures.spark import Lake
from helpers.spark.writer import table
from twofold_spark.errors import SetupError, UsageError
from twofold_spark.readers.cut_tables import Tables
from twofold_spark.sinks import jdbc_sink
from twofold_spark.sinks.cuts import Cut
from twofold_spark.sinks.sink_choice import SinkChoice

versioned = pytest.mark.parametrize(
    "kept", ["iceberg", pytest.param("delta", marks=[pytest.mark.slow, pytest.mark.timeout(900)])], indirect=True
)


def _three_cuts(kept: Lake, **settings: Any) -> list[Cut]:
    """Each has one row more; the row's value is the cut's number."""
    w = kept.writer
    t = w.table(table("t", {"id": "int8", "v": "int8"}), partitions=1)
    for number in (1, 2, 3):
        with w.commit() as tx:
            tx.upsert(t, {"id": 0, "v": number})
            tx.upsert(t, {"id": number, "v": number})
    kept.mirror(batch_rows=1, **settings)
    return [applied.cut for applied in kept.applied]


def _seen(kept: Lake, **at: Any) -> int:
    """The cut's number, if its table has what the cut had."""
    cut = kept.cut(**at)
    number = cut.cut.sequence
    rows = kept.rows("t", cut["public.t"])
    assert {key: row["v"] for key, row in rows.items()} == {0: number, **{n: n for n in range(1, number + 1)}}
    return number


def _instant(us: int, zone: dt.tzinfo = dt.UTC) -> dt.datetime:
    return (dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=us)).astimezone(zone)


@versioned
def test_an_instant_or_a_position_means_the_last_cut_at_or_before_it(kept: Lake) -> None:
    cuts = _three_cuts(kept)
    one, two, three = (cut.committed_us for cut in cuts)
    assert one < two < three
    for us, number in ((one, 1), (two - 1, 1), (two, 2), ((two + three) // 2, 2), (three, 3), (three + 10**12, 3)):
        assert kept.cut(at=_instant(us)).cut == cuts[number - 1], us
    for number in (1, 2, 3):
        assert _seen(kept, at=_instant(cuts[number - 1].committed_us)) == number
    assert kept.cut(at=_instant(two, dt.timezone(dt.timedelta(hours=5, minutes=30)))).cut == cuts[1]
    with pytest.raises(
        SetupError, match=r"at or before [-0-9]+ [.:0-9]+ UTC; the cuts from 1 \(.*\) to 3 \(.*\) are kept \("
    ):
        kept.cut(at=_instant(one - 1))

    one, two, three = (cut.applied_lsn for cut in cuts)
    for lsn, number in ((one, 1), (two - 1, 1), (two, 2), (two + 1, 2), (three + 10**9, 3)):
        assert kept.cut(lsn=lsn).cut == cuts[number - 1], lsn
    assert _seen(kept, lsn=two, sequence=3) == 2, "what satisfies both"
    with pytest.raises(SetupError, match=rf"at or before position 0/{one - 1:X}; the cuts from 1 \(0/{one:X}, "):
        kept.cut(lsn=one - 1)


def test_a_mirror_that_has_no_cut_says_so(lake: Lake) -> None:
    with pytest.raises(SetupError, match=r"no cut is published; no cut is kept: run `twofold-spark mirror`"):
        lake.cut()


def test_a_table_in_backfill_is_refused_and_left_out_until_it_is_over(lake: Lake) -> None:
    w = lake.writer
    for name in ("loaded", "loading"):
        w.table(table(name, {"id": "int8", "v": "int8"}), partitions=1)
    for backfilling in ((w.topics["loading"].name,), ()):
        w.backfilling = backfilling
        with w.commit() as tx:
            for name in ("loaded", "loading"):
                tx.upsert(name, {"id": len(backfilling), "v": 1})
    lake.mirror(batch_rows=1)
    early, late = (lake.cut(sequence=number) for number in (1, 2))
    assert (list(early), len(early), early.cut.backfilling) == (["public.loaded"], 1, ("public.loading",))
    with pytest.raises(
        SetupError, match=r"the backfill of public\.loading is in progress as of cut 1 \(.*twofold status"
    ):
        early["public.loading"]
    assert early["public.loaded"].count() == 1
    assert (set(late), late["public.loading"].count()) == ({"public.loaded", "public.loading"}, 2)
    on_id = late["public.loaded"].id == late["public.loading"].id
    assert late["public.loaded"].join(late["public.loading"], on_id).count() == 2


@versioned
def test_a_cut_that_maintenance_has_forgotten_is_refused_and_what_is_kept_is_named(kept: Lake) -> None:
    w = kept.writer
    t = w.table(table("t", {"id": "int8", "v": "int8"}), partitions=1)
    with w.commit() as tx:
        tx.upsert(t, {"id": 0, "v": 1})
        tx.upsert(t, {"id": 1, "v": 1})
    kept.mirror()
    old = kept.cut(sequence=1)
    if kept.choice.name == "delta":
        kept.spark.sql(f"ALTER TABLE delta.`{_delta(kept)}` SET TBLPROPERTIES ('delta.checkpointInterval' = '1')")
    for number in (2, 3, 4):
        with w.commit() as tx:
            tx.upsert(t, {"id": 0, "v": number})
            tx.upsert(t, {"id": number, "v": number})
    kept.mirror(batch_rows=1, maintain_every=3, keep_cuts=dt.timedelta(0))
    first = kept.applied[2].cut
    kept_now = rf"the cuts from {re.escape(str(first))} to 4 \(.*\) are kept \(.*--keep-cuts"
    for asked in ({"sequence": 1}, {"lsn": old.cut.applied_lsn}, {"at": _instant(old.cut.committed_us)}):
        with pytest.raises(SetupError, match=rf"no cut is published at or before .*; {kept_now}"):
            kept.cut(**asked)
    assert _seen(kept, sequence=4) == 4
    if kept.choice.name == "delta":  # it keeps removed files for a week, whatever is asked for
        assert {row["v"] for row in old["public.t"].collect()} == {1}
        _forget_log(kept, old.cut.versions["public.t"])
    with pytest.raises(SetupError, match=rf"cannot read public\.t as of cut 1 \(.*; {kept_now}"):
        old["public.t"]
    assert _seen(kept, sequence=4) == 4


def test_jobs_that_are_started_for_one_cut_each_forget_old_ones_as_well(lake: Lake) -> None:
    w = lake.writer
    t = w.table(table("t", {"id": "int8", "v": "int8"}), partitions=1)
    for number in (2, 4, 6):  # one cut each, and counted from its start on no job comes to four
        for each in (number - 1, number):
            with w.commit() as tx:
                tx.upsert(t, {"id": 0, "v": each})
                tx.upsert(t, {"id": each, "v": each})
        lake.mirror(maintain_every=4, keep_cuts=dt.timedelta(0))
    assert [applied.cut.sequence for applied in lake.applied] == [2, 4, 6]
    assert [_seen(lake, sequence=number) for number in (4, 6)] == [4, 6]
    with pytest.raises(SetupError, match="no cut is published at or before"):
        lake.cut(sequence=3)


def _forget_log(kept: Lake, version: str) -> None:
    """What Delta does with a log of thirty days, once it has a checkpoint behind it."""
    for number in range(int(version) + 1):
        for file in (_delta(kept) / "_delta_log").glob(f"{number:020}.*"):
            file.unlink()
    kept.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]


def _delta(kept: Lake) -> Path:
    return Path(kept.choice.address) / "public" / "t"


def test_a_mirror_in_postgresql_has_the_present_cut_alone(lake: Lake, database: str) -> None:
    lake.choice = SinkChoice("jdbc", database)
    _, two, three = _three_cuts(lake)
    for at in ({}, {"sequence": 3}, {"lsn": three.applied_lsn}, {"at": _instant(three.committed_us)}):
        assert _seen(lake, **at) == 3
    for at in ({"sequence": 2}, {"lsn": two.applied_lsn}, {"at": _instant(two.committed_us)}):
        with pytest.raises(SetupError, match=rf"at or before .*; only one cut is kept, {re.escape(str(three))}"):
            lake.cut(**at)


def test_a_cut_in_postgresql_stays_what_it_is_within_its_block(lake: Lake, database: str) -> None:
    lake.choice = SinkChoice("jdbc", database)
    w = lake.writer
    one, two = (w.table(table(n, {"id": "int8", "v": "int8"}), partitions=1) for n in ("one", "two"))

    def both(value: int) -> None:
        with w.commit() as tx:
            for name in (one, two):
                tx.upsert(name, {"id": 1, "v": value})
                tx.upsert(name, {"id": value, "v": value})
        lake.mirror()

    def seen(cut: Tables) -> list[dict[int, int]]:
        return [{row["id"]: row["v"] for row in frame.collect()} for _, frame in sorted(cut.items())]

    both(2)
    with lake.cut() as cut:
        first = cut["public.one"].count()
        both(3)
        w.reload(one, [])
        lake.mirror()
        with lake.cut() as now:
            assert (first, seen(cut), seen(now)) == (2, [{1: 2, 2: 2}] * 2, [{}, {1: 3, 2: 2, 3: 3}])
        with pytest.raises(UsageError, match="two could be of two cuts"):
            seen(lake.cut())
    with pytest.raises(UsageError, match="this cut is closed"):
        cut["public.two"]
    with psycopg.connect(database, autocommit=True) as connection:

        def none_is_open() -> bool:
            held = "state = 'idle in transaction' AND datname = current_database()"
            return connection.execute(f"SELECT count(*) FROM pg_stat_activity WHERE {held}").fetchone() == (0,)

        wait_until(none_is_open, 90, "no snapshot is held")


def test_a_reader_that_stays_keeps_a_new_column_out_and_no_other_reader(
    lake: Lake, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jdbc_sink, "_LOCK_ATTEMPTS", 2)
    lake.choice = SinkChoice("jdbc", database)
    w = lake.writer
    t = w.table(table("t", {"id": "int8", "v": "int8"}), partitions=1)
    with w.commit() as tx:
        tx.upsert(t, {"id": 1, "v": 1})
    lake.mirror()
    w.evolve(t, more="int4")
    with w.commit() as tx:
        tx.upsert(t, {"id": 2, "v": 2, "more": 2})
    has_ended = threading.Event()

    def longest_read() -> float:
        seconds = [0.0]
        with psycopg.connect(database, autocommit=True) as other:
            while not has_ended.is_set():
                began = time.monotonic()
                assert other.execute("SELECT count(*) FROM public.t").fetchone() == (1,)
                seconds.append(time.monotonic() - began)
        return max(seconds)

    with lake.cut(), ThreadPoolExecutor(1) as pool:
        read = pool.submit(longest_read)
        with pytest.raises(SetupError, match=r"another transaction has kept the cut .* for 4 s \(.*lock timeout"):
            lake.mirror()
        has_ended.set()
    assert read.result() < 30, "it waits for one try at most"
    lake.mirror()
    rows = lake.rows(t, lake.cut()["public.t"])
    assert {key: row["more"] for key, row in rows.items()} == {1: None, 2: 2}
