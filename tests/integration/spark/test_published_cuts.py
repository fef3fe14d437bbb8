"""A table's plain name reads the last published cut, whatever happens between two cuts."""

from __future__ import annotations

import datetime as dt
import re
import threading
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from fixtures.catalogs import RestCatalogServer, one_at_a_time
from fixtures.spark import Killed, Lake, _Kafka, _Registry, new_lake
from helpers.spark.bank import opened
from helpers.spark.writer import Writer, table
from twofold_spark.catalog_choice import CatalogChoice
from twofold_spark.errors import Refused, SetupError
from twofold_spark.mirror import batching
from twofold_spark.sinks import iceberg_branches
from twofold_spark.sinks.cuts import GlobalCut
from twofold_spark.sinks.iceberg_branches import MERGES, CutPublisher
from twofold_spark.sinks.iceberg_tables import MAIN, full_name, load_table
from twofold_spark.sinks.interface import Sink
from twofold_spark.sinks.place import Place
from twofold_spark.streaming import StreamingJob, Trigger


def _killed_before_the_cut(sink: Sink, place: Place) -> Sink:
    def publish(cut: GlobalCut) -> None:
        raise Killed(cut)

    place.publish = publish  # type: ignore[method-assign]
    return sink


def _two_tables(lake: Lake) -> tuple[str, str]:
    one, other = (lake.writer.table(table(name, {"id": "int8", "v": "int8"}), partitions=1) for name in ("t", "u"))
    _commit(lake, 1)
    return one, other


def _commit(lake: Lake, v: int, *names: str) -> None:
    with lake.writer.commit() as tx:
        for name in names or ("t", "u"):
            for key in (0, 1):
                tx.upsert(name, {"id": key, "v": v})


def _values(lake: Lake, name: str, branch: str = MAIN) -> set[int]:
    full = full_name(lake.catalog, f"public.{name}")
    return {row["v"] for row in lake.spark.sql(f"SELECT v FROM {full} VERSION AS OF '{branch}'").collect()}


def _sql(lake: Lake, statement: str) -> None:
    lake.spark.sql(statement.format(c=lake.catalog, t=full_name(lake.catalog, "public.t")))


@pytest.mark.core
def test_what_a_killed_batch_merged_is_not_seen_before_its_cut(lake: Lake) -> None:
    _two_tables(lake)
    lake.mirror()
    lake.writer.evolve("u", more="int4")
    lake.writer.table(table("fresh", {"id": "int8", "v": "int8"}), partitions=1)
    _commit(lake, 2, "t", "fresh")
    with lake.writer.commit() as tx:
        tx.truncate("u")
        tx.upsert("u", {"id": 9, "v": 2, "more": 7})
    with pytest.raises(Killed):
        lake.mirror(around=_killed_before_the_cut)
    assert (_values(lake, "t"), _values(lake, "u"), lake.table("fresh").count()) == ({1}, {1}, 0)
    assert (_values(lake, "t", MERGES), _values(lake, "u", MERGES), _values(lake, "fresh", MERGES)) == ({2}, {2}, {2})
    assert [row["more"] for row in lake.table("u").collect()] == [None, None], "a column is seen at once"
    lake.mirror()
    lake.assert_equal()
    cuts = lake.spark.table(f"{lake.catalog}.twofold.cuts").orderBy("sequence").collect()
    history = lake.spark.table(f"{lake.catalog}.twofold.cuts.history").collect()
    last = lake.spark.table(f"{full_name(lake.catalog, 'public.t')}.history").collect()[-1]
    assert cuts[-1]["published_at"] <= last["made_current_at"] <= history[-1]["made_current_at"]


@pytest.mark.core
def test_a_cut_whose_publishing_was_killed_is_finished_by_the_next_start(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    _two_tables(lake)
    lake.mirror()
    _commit(lake, 2)
    commit = CutPublisher._commit

    def first_only(self: CutPublisher, moves: list[Any]) -> None:
        commit(self, moves[:1])
        if moves:  # the start has none
            raise Killed

    monkeypatch.setattr(CutPublisher, "_commit", first_only)
    with pytest.raises(Killed):
        lake.mirror()
    assert sorted((*_values(lake, "t"), *_values(lake, "u"))) == [1, 2]
    assert lake.cut().cut.sequence == 1, "the row is seen once all tables are there"
    monkeypatch.setattr(CutPublisher, "_commit", commit)
    lake.mirror(around=_killed_before_the_cut)  # the batch has nothing to do: the cut was decided
    lake.assert_equal()
    assert lake.cut().cut.sequence == 2


def test_a_start_shows_the_last_cut_again_where_a_person_rolled_back_one_table_or_compacted_it(lake: Lake) -> None:
    """Nothing has come since, so no cut that follows would move the table."""
    _two_tables(lake)
    lake.mirror()
    former = _main(lake, "t")
    _commit(lake, 2)
    lake.mirror()
    of_cut = _main(lake, "u")
    _sql(lake, "CALL {c}.system.rewrite_data_files(table => 'public.u', options => map('rewrite-all', 'true'))")
    assert (compacted := _main(lake, "u")) != of_cut
    _sql(lake, f"CALL {{c}}.system.rollback_to_snapshot('public.t', {former})")
    assert (_values(lake, "t"), _values(lake, "u")) == ({1}, {2})
    lake.mirror()
    lake.assert_equal()
    assert (_values(lake, "t"), _main(lake, "u")) == ({2}, compacted)


def test_a_catalog_that_keeps_no_branches_is_refused_before_anything_is_merged(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Nessie 0.99, which answers that it made the branch."""
    _two_tables(lake)
    monkeypatch.setattr(iceberg_branches, "follow_main", lambda *_: None)
    with pytest.raises(SetupError, match=r"keeps no branches of Iceberg tables.* give another --catalog-uri"):
        lake.mirror()
    assert not lake.spark.catalog.tableExists(full_name(lake.catalog, "public.t"))


@pytest.mark.slow
def test_compaction_of_main_is_followed_and_others_rows_are_refused(lake: Lake) -> None:
    _two_tables(lake)
    for v in (2, 3):
        _commit(lake, v)
    lake.mirror(batch_rows=1)
    compact = "CALL {c}.system.rewrite_data_files(table => '{t}', options => map('rewrite-all', 'true'))"
    _sql(lake, compact)
    compacted = _main(lake, "t")
    _commit(lake, 4)
    lake.mirror()
    lake.assert_equal()
    parents = load_table(lake.spark, full_name(lake.catalog, "public.t")).currentSnapshot().parentId()
    assert parents == compacted, "the next merge lies on what compaction wrote"

    _commit(lake, 5)
    with pytest.raises(Killed):
        lake.mirror(around=_killed_before_the_cut)
    _sql(lake, compact)
    lake.mirror()
    lake.assert_equal()

    _commit(lake, 6)
    with pytest.raises(Killed):
        lake.mirror(around=_killed_before_the_cut)
    _sql(lake, "INSERT INTO {t} VALUES (100, 100)")
    with pytest.raises(Refused, match=r"another writer committed to main of .*\n.*\n.*ALTER TABLE") as refused:
        lake.mirror()
    repair = re.search(r"ALTER TABLE .*VERSION \d+", str(refused.value))
    assert repair is not None
    lake.spark.sql(repair.group())
    lake.mirror()
    lake.assert_equal()


@pytest.mark.slow
def test_maintenance_of_tables_with_branches_keeps_cuts_and_tags(lake: Lake) -> None:
    _two_tables(lake)
    lake.mirror()
    _sql(lake, "ALTER TABLE {t} CREATE TAG mine")
    for v in range(2, 6):
        _commit(lake, v)
    lake.mirror(batch_rows=1, maintain_every=2, keep_cuts=dt.timedelta(0))
    lake.assert_equal()
    assert _values(lake, "t", "mine") == {1}
    snapshots = lake.spark.table(f"{full_name(lake.catalog, 'public.u')}.snapshots").count()
    assert snapshots <= 4
    assert lake.cut().cut.sequence == 5
    assert _values(lake, "u") == _values(lake, "u", MERGES)
    _commit(lake, 6)
    lake.mirror()
    lake.assert_equal()


@pytest.mark.slow
def test_maintenance_takes_a_share_of_the_tables_with_each_batch(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that runs on. Each batch changes all tables, also those that are due and wait."""
    monkeypatch.setattr(batching, "_SHARES", 3)
    names = [lake.writer.table(table(name, {"id": "int8", "v": "int8"}), partitions=1) for name in "abcde"]
    touched: list[list[str]] = []

    def watched(sink: Sink, _: Place) -> Sink:
        maintain = sink.maintain

        def note(tables: Collection[str], keep: dt.timedelta) -> None:
            touched.append([*tables])
            maintain(tables, keep)

        sink.maintain = note  # type: ignore[method-assign]
        return sink

    for v in range(5):
        with lake.writer.commit() as tx:
            for name in names:
                tx.upsert(name, {"id": v % 2, "v": v})
    kept = {"maintain_every": 3, "maintain_at_once": False, "keep_cuts": dt.timedelta(0)}
    lake.mirror(batch_rows=len(names), around=watched, **kept)
    due = [f"public.{name}" for name in names]
    assert touched == [due[:2], due[2:4], due[4:]], "from the third batch on"
    lake.assert_equal()
    assert [_values(lake, name) for name in names] == [_values(lake, name, MERGES) for name in names]


def test_a_table_that_was_dropped_between_merge_and_cut_holds_no_other_up(lake: Lake) -> None:
    _two_tables(lake)
    lake.mirror()
    _commit(lake, 2)

    def dropped(sink: Sink, place: Place) -> Sink:
        publish = place.publish

        def publish_without_it(cut: GlobalCut) -> None:
            lake.drop("t")
            publish(cut)

        place.publish = publish_without_it  # type: ignore[method-assign]
        return sink

    lake.mirror(around=dropped)
    assert _values(lake, "u") == {2}
    said: list[str] = []
    _commit(lake, 3)
    lake.mirror(warn=said.append)
    assert _values(lake, "u") == {3}
    assert any("public.t does not exist any more" in text for text in said)


_TRANSACTION = "POST /v1/transactions/commit"


def test_a_rest_catalog_moves_all_tables_in_one_commit(rest_lake: tuple[Lake, list[str]]) -> None:
    lake, written = rest_lake
    _two_tables(lake)
    lake.writer.evolve("u", more="int4")
    with lake.writer.commit() as tx:
        for key in (0, 1):
            tx.upsert("t", {"id": key, "v": 2})
            tx.upsert("u", {"id": key, "v": 2, "more": 7})
    lake.mirror(batch_rows=1)
    lake.assert_equal()
    assert written.count(_TRANSACTION) == 2
    _commit(lake, 3, "t")
    with pytest.raises(Killed):
        lake.mirror(around=_killed_before_the_cut)
    assert _values(lake, "t") == {2}
    lake.mirror(maintain_every=1, keep_cuts=dt.timedelta(0))
    lake.assert_equal()
    assert lake.cut().cut.sequence == 3


def test_a_rest_catalog_without_that_commit_moves_one_table_after_the_other(
    spark: SparkSession,
    kafka: _Kafka,
    registry: _Registry,
    prefix: str,
    tmp_path: Path,
    rest_catalog: RestCatalogServer,
) -> None:
    """It lists no endpoints, so that only its answer says what it lacks: a job asks once."""
    with one_at_a_time(rest_catalog, several_tables=False, lists_endpoints=False) as (address, written):
        choice = CatalogChoice.choose(None, address, {"warehouse": str(rest_catalog.folder)})
        lake = new_lake(spark, Writer(kafka.bootstrap, registry.url, prefix), tmp_path, choice)
        _two_tables(lake)
        _commit(lake, 2)
        lake.mirror(batch_rows=1)
        lake.assert_equal()
        cuts = lake.spark.table(f"{lake.catalog}.twofold.cuts").collect()
        assert sorted(cut["sequence"] for cut in cuts) == [1, 2]
        assert written.count(_TRANSACTION) == 1


@pytest.mark.slow
def test_two_loads_from_a_rest_catalog_that_did_not_move_between_them_are_of_one_cut(
    rest_lake: tuple[Lake, list[str]],
) -> None:
    """A reader loads two tables, and begins again if the first one has moved meanwhile."""
    lake, _ = rest_lake
    bank, ending = opened(lake.writer), threading.Event()
    seen: set[tuple[int, int]] = set()

    def read() -> None:
        try:
            while len(lake.applied) < 6 and not ending.is_set():
                first, second = _merge(lake, "accounts"), _merge(lake, "vault")
                if first and second and _merge(lake, "accounts") == first:
                    seen.add((first, second))
                ending.wait(0.02)
        finally:
            ending.set()

    mirror = lake.make_mirror(lake.make_place())
    job = StreamingJob("mirror", mirror)
    with ThreadPoolExecutor(1) as pool:
        job.start(mirror.open_stream(), lake.warehouse / lake.checkpoint, Trigger.parse("continuous"))
        reading = pool.submit(read)
        job.run(ending)
        reading.result()
    mirror.close()
    bank.stop()
    rows = lake.spark.table(f"{lake.catalog}.twofold.cuts").collect()
    cuts = [{entry["name"]: entry["version"] for entry in row["tables"]} for row in rows]
    assert len(seen) > 3
    assert seen <= {(cut["public.accounts"], cut["public.vault"]) for cut in cuts}


def _main(lake: Lake, name: str) -> int | None:
    """The snapshot that a table's plain name reads."""
    full = full_name(lake.catalog, f"public.{name}")
    if not lake.spark.catalog.tableExists(full):
        return None
    snapshot = load_table(lake.spark, full).currentSnapshot()
    return int(snapshot.snapshotId()) if snapshot else None


def _merge(lake: Lake, name: str) -> int | None:
    """The merge whose rows a table's plain name reads: compaction changes none."""
    if (version := _main(lake, name)) is None:
        return None
    loaded = load_table(lake.spark, full_name(lake.catalog, f"public.{name}"))
    snapshot = loaded.snapshot(version)
    while snapshot.operation() == "replace":
        snapshot = loaded.snapshot(snapshot.parentId())
    return int(snapshot.snapshotId())
