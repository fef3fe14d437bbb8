"""The mirror job against a real broker, a real registry and real Iceberg tables."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterable
from functools import reduce
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import DataFrame, Row

from fixtures.spark import KEPT_SHORT, KEPT_STORED_SLOW, STORED_SLOW, Lake
from helpers.spark.writer import Open, Writer, table
from helpers.topic_changes import delete_records, delete_topic
from twofold_spark.errors import Refused
from twofold_spark.mirror.folding import LastRecords
from twofold_spark.sinks.cuts import GlobalCut
from twofold_spark.sinks.interface import MirrorTable, Sink, TableBatch
from twofold_spark.sinks.place import Place

ACCOUNTS = table("accounts", {"id": "int8", "owner": "text", "balance": "int8"})
DOCS = table("docs", {"id": "int8", "title": "text", "body": "text", "extra": "text"})


@pytest.mark.core
def test_only_what_is_committed_arrives_and_a_transaction_in_doubt_holds_nobody_up(lake: Lake) -> None:
    w = lake.writer
    accounts, docs = w.table(ACCOUNTS), w.table(DOCS)
    with w.commit() as tx:
        for i in range(60):
            tx.upsert(accounts, {"id": i, "owner": f"o{i}", "balance": 100})
        for i in range(10):
            tx.upsert(docs, {"id": i, "title": f"t{i}", "body": f"b{i}", "extra": None})
    with w.abort() as tx:
        for i in range(60):
            tx.upsert(accounts, {"id": i, "owner": "aborted", "balance": 0})
    with w.prepare("prepared.00", "in doubt") as doubtful:
        for i in range(20):
            doubtful.upsert(docs, {"id": 500 + i, "title": "in doubt", "body": "?", "extra": None})
    held = {k: v for k, v in w.model[docs].items() if k >= 500}
    w.model[docs] = {k: v for k, v in w.model[docs].items() if k < 500}
    with w.commit() as tx:
        for i in range(10):
            tx.upsert(accounts, {"id": i, "owner": "later", "balance": 50})
            tx.upsert(docs, {"id": i, "title": "later", "body": "b", "extra": "e"})
        tx.delete(accounts, 59, tombstone=True)

    lake.mirror()
    lake.assert_equal()

    w.finish(doubtful, kind="prepared")
    w.model[docs] |= held
    lake.mirror()
    lake.assert_equal()
    assert [a.cut.sequence for a in lake.applied] == [2, 3]
    assert [a.changes for a in lake.applied] == [60 + 10 + 10 + 10 + 1, 20], "a tombstone is no change"


def test_outbox_events_in_a_commit_record_are_no_rows(lake: Lake) -> None:
    w = lake.writer
    accounts = w.table(ACCOUNTS)
    w.outbox("order")
    for balance in (1, 2):
        with w.commit() as tx:
            tx.upsert(accounts, {"id": 1, "owner": "o", "balance": balance})
            tx.event("order", b"k", b"an event")
    lake.mirror(batch_rows=1)
    lake.changelog()
    lake.assert_equal()
    assert [a.tables for a in lake.applied] == [1, 1]


def test_a_record_between_two_ranges_is_not_taken_for_a_marker(lake: Lake) -> None:
    """The broker answers a commit before it has written the markers, and other producers may write
    meanwhile. A prepared transaction's marker comes with its outcome.
    """
    w = lake.writer
    names = ("prepared", "rolled_back", "in_doubt")
    behind_prepared, with_rolled_back, with_doubtful = (
        w.table(table(name, {"id": "int8", "title": "text"}), partitions=1) for name in names
    )
    with w.prepare("prepared.00", "to commit") as first:
        first.upsert(behind_prepared, {"id": 1, "title": "prepared"})
    with w.prepare("prepared.01", "to roll back") as second:
        second.upsert(behind_prepared, {"id": 2, "title": "never"})
    second.roll_back_model()
    with w.commit() as tx:
        tx.upsert(behind_prepared, {"id": 3, "title": "plain"})
    w.finish(first, kind="prepared")
    second.producer.abort_transaction(10)

    with w.prepare("main", "") as main:
        for name in (with_rolled_back, with_doubtful):
            main.upsert(name, {"id": 1, "title": "plain"})
    with w.prepare("prepared.02", "to roll back") as rolled_back:
        rolled_back.upsert(with_rolled_back, {"id": 2, "title": "never"})
    with w.prepare("prepared.03", "in doubt") as in_doubt:
        in_doubt.upsert(with_doubtful, {"id": 2, "title": "prepared"})
    with w.prepare("main.2", "") as other:
        for name in (with_rolled_back, with_doubtful):
            other.upsert(name, {"id": 3, "title": "plain"})
    w.finish(main)
    w.finish(other)
    rolled_back.roll_back_model()
    doubtful = w.model[with_doubtful].pop(2)
    rolled_back.producer.abort_transaction(10)
    lake.mirror()
    lake.assert_equal()
    assert [set(lake.rows(name)) for name in names] == [{1, 3}] * 3
    w.finish(in_doubt, kind="prepared")
    w.model[with_doubtful][2] = doubtful
    lake.mirror()
    lake.assert_equal()


@pytest.mark.parametrize("kept", STORED_SLOW, indirect=True)
def test_what_a_batch_does_to_its_tables(kept: Lake) -> None:
    """TOASTed values are carried over, also through chains of key changes. A truncate takes what
    was before it and nothing after. Added, widened and dropped columns reach the table before their
    rows. A keyless table is a multiset.
    """
    lake, w = kept, kept.writer
    docs, accounts = w.table(DOCS), w.table(ACCOUNTS)
    things = w.table(table("things", {"id": "int8", "small": "int4", "gone": "text"}))
    lines = w.table(table("lines", {"a": "int4", "b": "text"}, key=()), partitions=1)
    once, twice = {"a": 1, "b": None}, {"a": 2, "b": "x"}
    with w.commit() as tx:
        for i in range(1, 6):
            tx.upsert(docs, {"id": i, "title": f"t{i}", "body": f"long body {i}", "extra": f"long extra {i}"})
        for i in range(30):
            tx.upsert(accounts, {"id": i, "owner": "old", "balance": 1})
        tx.upsert(things, {"id": 1, "small": 7, "gone": "soon"})
        for row in (once, twice, twice):
            tx.keyless(lines, "c", after=row)
    lake.mirror()

    w.evolve(things, extra="text")
    with w.commit() as tx:
        tx.upsert(docs, {"id": 5, "title": "kept"}, unchanged=("body", "extra"))
        tx.upsert(docs, {"id": 1, "title": "new body", "body": "another body"}, unchanged=("extra",))
        # 1 to 2 needs a free 2: it moves away first, and a new 1 comes.
        tx.rekey(docs, 2, {"id": 3000, "title": "was 2"}, unchanged=("body", "extra"))
        tx.rekey(docs, 1, {"id": 2, "title": "was 1"}, unchanged=("body", "extra"))
        tx.rekey(docs, 3, {"id": 33, "title": "was 3"}, unchanged=("body", "extra"))
        tx.upsert(docs, {"id": 1, "title": "new 1", "body": "new", "extra": "new"})
        tx.upsert(accounts, {"id": 100, "owner": "before", "balance": 1})
        tx.truncate(accounts)
        tx.upsert(accounts, {"id": 3, "owner": "after", "balance": 2})
        tx.upsert(things, {"id": 2, "small": 8, "gone": "now", "extra": "e"})
        tx.keyless(lines, "d", before=twice)
        tx.keyless(lines, "u", before=once, after={"a": 3, "b": None})
        tx.keyless(lines, "u", before={"a": 3, "b": None}, after={"a": 4, "b": None})
        tx.keyless(lines, "c", after=twice)
        tx.keyless(lines, "c", after=twice)
    w.drop(things, "gone")
    w.drop(things, "small")
    w.evolve(things, small="int8")
    with w.commit() as tx:
        tx.rekey(docs, 2, {"id": 3, "title": "was 1, then 2"}, unchanged=("body", "extra"))
        tx.rekey(docs, 33, {"id": 34, "title": "was 3, then 33"}, unchanged=("extra",))
        tx.upsert(docs, {"id": 34, "title": "and a body", "body": "34's own"}, unchanged=("extra",))
        tx.rekey(docs, 1, {"id": 2, "title": "the new 1"}, unchanged=("body", "extra"))
        tx.delete(docs, 4)
        tx.upsert(things, {"id": 3, "extra": "f", "small": 2**40})
    assert w.model[docs][3]["body"] == "another body"
    lake.mirror()
    assert lake.rows(docs) == w.model[docs]
    assert lake.rows(accounts) == w.model[accounts]
    assert set(lake.rows(accounts)) == {3}
    assert lake.rows(things) == {
        1: {"id": 1, "small": 7, "gone": "soon", "extra": None},
        2: {"id": 2, "small": 8, "gone": "now", "extra": "e"},
        3: {"id": 3, "small": 2**40, "gone": None, "extra": "f"},
    }
    assert sorted((r["a"], r["b"], r["_copies"]) for r in lake.table(lines).collect()) == [(2, "x", 3), (4, None, 1)]
    with w.commit() as tx:
        tx.truncate(accounts)
    lake.mirror()
    assert lake.rows(accounts) == {}


@pytest.mark.core
def test_a_range_that_is_not_whole_stops_the_job_before_anything_is_applied(lake: Lake) -> None:
    """Compaction leaves such ranges."""
    w = lake.writer
    accounts = w.table(ACCOUNTS, partitions=1)
    with w.commit() as tx:
        tx.upsert(accounts, {"id": 1, "owner": "a", "balance": 1})
        tx.stretches.clear()
        tx.upsert(accounts, {"id": 2, "owner": "b", "balance": 1})
        tx.upsert(accounts, {"id": 3, "owner": "c", "balance": 1})
        assert w.main.flush(30) == 0
        (stretch,) = tx.stretches.values()
        stretch.count += 1
    with pytest.raises(Refused, match=r"holds 3 of the 4 records .*\n.*\n.*cleanup\.policy"):
        lake.mirror()
    assert not lake.applied


@pytest.mark.core
def test_a_missing_commit_record_stops_the_job(lake: Lake) -> None:
    w = lake.writer
    accounts = w.table(ACCOUNTS)
    with w.commit() as tx:
        tx.upsert(accounts, {"id": 1, "owner": "a", "balance": 1})
    w.sequence += 1
    with w.commit() as tx:
        tx.upsert(accounts, {"id": 2, "owner": "b", "balance": 1})
    with pytest.raises(Refused, match="commit record 2 is missing"):
        lake.mirror()


def _bank(w: Writer, rng: random.Random, tx: Open) -> None:
    """Moves between two tables with a constant total, with key changes and large values."""
    for _ in range(rng.randrange(1, 8)):
        amount = rng.randrange(1, 10)
        for name, sign in (("accounts", 1), ("vault", -1)):
            key = rng.choice(sorted(w.model[name]))
            row = dict(w.model[name][key])
            row["balance"] += sign * amount
            if rng.random() < 0.15:
                row["id"] = max(w.model[name]) + 1 if rng.random() < 0.7 else min(w.model[name]) - 1
                tx.rekey(name, key, row, unchanged=("note",) if rng.random() < 0.5 else ())
            else:
                unchanged = ("note",) if rng.random() < 0.4 else ()
                tx.upsert(name, {**row, "note": row["note"] if unchanged else f"n{rng.random()}"}, unchanged=unchanged)


@pytest.mark.slow
@pytest.mark.parametrize("kept", [*KEPT_STORED_SLOW, pytest.param("beside", marks=pytest.mark.slow)], indirect=True)
def test_a_random_bank_ends_equal_and_every_cut_has_its_total(kept: Lake) -> None:
    lake, w, rng = kept, kept.writer, random.Random(7)
    columns = {"id": "int8", "balance": "int8", "note": "text"}
    for name in ("accounts", "vault"):
        w.table(table(name, columns))
    with w.commit() as tx:
        for i in range(40):
            tx.upsert("accounts", {"id": i, "balance": 100, "note": f"a{i}"})
            tx.upsert("vault", {"id": i, "balance": 100, "note": f"v{i}"})
    for round_number in range(2):
        for _ in range(10):
            if rng.random() < 0.25:
                with w.abort() as tx:
                    _bank(w, rng, tx)
            else:
                with w.commit() as tx:
                    _bank(w, rng, tx)
        if round_number == 1:
            lake.checkpoint = "another: the first is lost"
        lake.mirror(batch_rows=100)
        lake.assert_equal()
        assert _total(lake, ("accounts", "vault")) == 8000
    assert len(lake.applied) > 2
    for applied in lake.applied if lake.choice.name != "jdbc" else ():
        assert _total(lake, ("accounts", "vault"), sequence=applied.cut.sequence) == 8000, applied.cut.sequence


class _Crash(Exception):
    """What a killed driver is to the batch: it ends here, and nothing after it happens."""


class _CrashingSink:
    """Fails at the n-th step that leaves something behind: a merge or a published cut."""

    def __init__(self, sink: Sink, place: Place, steps: int) -> None:
        self._sink = sink
        self._publish = place.publish
        place.publish = self._publish_or_crash  # type: ignore[method-assign]
        self._steps_left = steps

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)

    def merge(self, table: MirrorTable, batch: TableBatch, *, sequence: int) -> None:
        self._alive()
        self._sink.merge(table, batch, sequence=sequence)
        self._step()

    def _publish_or_crash(self, cut: GlobalCut) -> None:
        self._alive()
        self._publish(cut)
        self._step()

    def _alive(self) -> None:
        """Threads merge a batch's tables: after the failure none of them does anything more."""
        if self._steps_left <= 0:
            raise _Crash

    def _step(self) -> None:
        self._steps_left -= 1
        if self._steps_left == 0:
            raise _Crash


def _crashing(steps: int) -> Callable[[Sink, Place], Sink]:
    return lambda sink, place: cast("Sink", _CrashingSink(sink, place, steps))


def _total(lake: Lake, names: Iterable[str], **at: int) -> int:
    """What the accounts hold together as of a cut."""
    cut = lake.cut(**at)
    one, *others = (cut[f"public.{name}"].select("balance") for name in names)
    total = reduce(DataFrame.unionAll, others, one).agg({"balance": "sum"}).first()
    return int(total[0]) if total is not None else 0


@pytest.mark.parametrize("kept", KEPT_STORED_SLOW, indirect=True)
def test_a_batch_that_ended_between_its_tables_is_taken_up_where_it_was(kept: Lake) -> None:
    """A keyless table among them, with rows that are alike."""
    lake, w = kept, kept.writer
    versions = lake.choice.name != "jdbc"
    names = [w.table(table(f"t{i}", {"id": "int8", "balance": "int8"}), partitions=1) for i in range(3)]
    tokens = w.table(table("tokens", {"colour": "text"}, key=()), partitions=1)
    with w.commit() as tx:
        for name in names:
            tx.upsert(name, {"id": 1, "balance": 100})
        for colour in ("red", "red", "red", "red", "blue"):
            tx.keyless(tokens, "c", after={"colour": colour})
    for steps, checkpoint_is_lost in ((5, False), (2, True)):
        lake.mirror()
        for colour in ("red", "green"):
            with w.commit() as tx:
                for name, amount in zip(names, (1, 2, -3), strict=True):
                    tx.upsert(name, {"id": 1, "balance": w.model[name][1]["balance"] + amount})
                tx.keyless(tokens, "c", after={"colour": colour})
                tx.keyless(tokens, "u", before={"colour": "red"}, after={"colour": "blue"})
                tx.keyless(tokens, "d", before={"colour": "blue"})
        with pytest.raises(_Crash):
            lake.mirror(around=_crashing(steps), tables_at_once=1)
        if lake.choice.name == "iceberg":
            merged = [lake.rows(name, lake.merged(name)) == w.model[name] for name in (*names, tokens)]
            assert merged == [n < steps for n in range(4)]
            published = [lake.rows(name) == w.model[name] for name in (*names, tokens)]
            assert published == [steps > 4] * 4
        assert _total(lake, names) == 300
        if checkpoint_is_lost:
            lake.checkpoint = f"new after {steps}"
    # Smaller batches than the crashed one's: a table that is ahead must not be part of a cut before
    # the others are there.
    lake.mirror(batch_rows=1)
    lake.assert_equal()
    for applied in lake.applied if versions else ():
        sequence = applied.cut.sequence
        assert _total(lake, names, sequence=sequence) == 300
        assert lake.cut(sequence=sequence)["public.tokens"].agg({"_copies": "sum"}).collect() == [(5,)]


@pytest.mark.parametrize("kept", KEPT_STORED_SLOW, indirect=True)
def test_a_cut_is_not_taken_for_whole_by_the_process_after_the_next(kept: Lake) -> None:
    """A table is ahead, a cut says so, and who reads that cut is yet another process, whose batch
    has the others alone."""
    lake, w = kept, kept.writer
    names = [w.table(table(n, {"id": "int8", "balance": "int8"}), partitions=1) for n in ("a", "b", "c")]
    with w.commit() as tx:
        for name in names:
            tx.upsert(name, {"id": 1, "balance": 100})
    lake.mirror()
    for one, other in (("a", "b"), ("b", "c"), ("a", "c")):
        with w.commit() as tx:
            for name, amount in ((one, 1), (other, -1)):
                tx.upsert(name, {"id": 1, "balance": w.model[name][1]["balance"] + amount})
    with pytest.raises(_Crash):
        lake.mirror(around=_crashing(1), tables_at_once=1)  # "a" has all three
    with pytest.raises(_Crash):
        lake.mirror(around=_crashing(2), tables_at_once=1, batch_rows=1)  # and the next cut is published
    assert _total(lake, names) == 300
    lake.mirror(batch_rows=1)
    lake.assert_equal()
    for sequence in range(1, 5):
        if lake.choice.name != "jdbc":
            assert _total(lake, names, sequence=sequence) == 300, sequence


def _things(kept: Lake) -> tuple[str, str]:
    w = kept.writer
    t, other = (w.table(table(n, {"id": "int8", "v": "text"}), partitions=1) for n in ("t", "other"))
    _both(kept, 1)
    return t, other


def _both(kept: Lake, *ids: int) -> None:
    for i in ids:
        with kept.writer.commit() as tx:
            for name in ("t", "other"):
                tx.upsert(name, {"id": i, "v": f"v{i}"})


@pytest.mark.parametrize("batch_rows", [1, pytest.param(1000, marks=pytest.mark.slow)])
def test_a_reload_repairs_what_cannot_be_read_any_more(lake: Lake, batch_rows: int) -> None:
    """In the same batch and in a later one, without any option: the message names the reload and
    nothing else."""
    t, other = _things(lake)
    lake.mirror()
    _both(lake, 2, 3)
    delete_records(lake.writer.bootstrap, lake.writer.topics[t].name, 4, partition=0)
    with pytest.raises(Refused, match="twofold backfill start"):
        lake.mirror()
    lake.writer.reload(t)
    _both(lake, 4)
    lake.mirror(batch_rows=batch_rows, warn=lambda _: None)
    lake.assert_equal()
    cut = lake.cut()
    assert cut.cut.stopped == ()
    assert {lake.rows(name, cut[f"public.{name}"]).keys() == {1, 2, 3, 4} for name in (t, other)} == {True}


def test_no_cut_shows_the_rows_of_a_topic_that_was_made_again_behind_it(lake: Lake) -> None:
    """They lie where former commit records name other rows, as many."""
    w = lake.writer
    t, _ = _things(lake)
    lake.mirror()
    _both(lake, 2, 3)
    delete_topic(w.bootstrap, w.topics[t].name)
    w.make_again(t)
    w.reload(t)
    _both(lake, 4)
    said: list[str] = []
    lake.mirror(batch_rows=1, warn=said.append)
    assert [word in "".join(said) for word in ("the topic was deleted and made again", "is stopped")] == [True, True]
    lake.assert_equal()
    for sequence in (2, 3):
        assert set(lake.cut(sequence=sequence)) == {"public.other"}


def test_records_that_go_between_the_count_and_the_second_read_stop_the_table(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values that PostgreSQL did not send need a second read, and retention comes before it."""
    w = lake.writer
    docs = w.table(DOCS, partitions=1)
    with w.commit() as tx:
        for i in range(10):
            tx.upsert(docs, {"id": i, "title": "t", "body": f"b{i}", "extra": None})
    lake.mirror()
    with w.commit() as tx:
        tx.delete(docs, 1)
        tx.upsert(docs, {"id": 20, "title": "new", "body": "b", "extra": None})
        tx.upsert(docs, {"id": 5, "title": "later"}, unchanged=("body", "extra"))
    last = 13  # behind ten rows, a marker and two rows
    count = LastRecords.count_partitions

    def count_and_lose(self: LastRecords, selected: DataFrame) -> list[Row]:
        found = count(self, selected)
        delete_records(w.bootstrap, w.topics[docs].name, last)
        return found

    monkeypatch.setattr(LastRecords, "count_partitions", count_and_lose)
    with pytest.raises(Refused, match="holds 1 of the 3 records"):
        lake.mirror()
    monkeypatch.undo()
    assert lake.cut().cut.sequence == 1
    w.reload(docs)
    lake.mirror(warn=lambda _: None)
    lake.assert_equal()


@pytest.mark.parametrize("kept", KEPT_STORED_SLOW, indirect=True)
def test_a_reload_counts_though_the_process_dies_before_it_says_so(kept: Lake) -> None:
    t, _ = _things(kept)
    kept.mirror()
    _both(kept, 2)
    delete_records(kept.writer.bootstrap, kept.writer.topics[t].name, 3, partition=0)
    kept.mirror(on_table_error="go-on", warn=lambda _: None)
    assert kept.cut().cut.stopped == ("public.t",)
    kept.writer.reload(t)
    with pytest.raises(_Crash):
        kept.mirror(around=_crashing(1))
    kept.mirror()
    assert kept.cut().cut.stopped == ()
    kept.assert_equal()


@pytest.mark.parametrize("kept", KEPT_STORED_SLOW, indirect=True)
def test_a_mirror_table_that_is_gone_is_in_no_cut_before_it_is_reloaded(kept: Lake) -> None:
    t, other = _things(kept)
    kept.mirror()
    kept.drop(t)
    _both(kept, 2)
    said: list[str] = []
    kept.mirror(warn=said.append)
    assert ["public.t does not exist any more" in line for line in said] == [True]
    assert kept.cut().cut.stopped == ("public.t",)
    assert kept.rows(other) == kept.writer.model[other]
    kept.writer.reload(t)
    kept.mirror()
    assert kept.cut().cut.stopped == ()
    kept.assert_equal()


@pytest.mark.parametrize("kept", KEPT_STORED_SLOW, indirect=True)
def test_a_mirror_may_begin_late_with_tables_that_are_reloaded(kept: Lake) -> None:
    """The connector is older than what its commits topic keeps."""
    t, other = _things(kept)
    _both(kept, 2, 3)
    delete_records(kept.writer.bootstrap, f"{kept.writer.prefix}.commits", 1, partition=0)
    with pytest.raises(Refused, match=r"commit record 1 is missing.*\n.*\n.*--on-table-error go-on"):
        kept.mirror()
    said: list[str] = []
    kept.mirror(on_table_error="go-on", warn=said.append)
    assert ["every table is stopped" in line for line in said] == [True]
    assert dict(kept.cut()) == {}
    kept.writer.reload(t)
    kept.writer.reload(other)
    _both(kept, 4)
    kept.mirror()
    kept.assert_equal()
    assert set(kept.cut()) == {"public.t", "public.other"}
    assert kept.cut().cut.stopped == ("*",)


@pytest.mark.parametrize("kept", ["iceberg", pytest.param("delta", marks=pytest.mark.slow)], indirect=True)
def test_a_table_that_was_merged_before_any_cut_is_stopped_at_a_gap(kept: Lake) -> None:
    """The first batch ended between its tables. Retention passes before the next start."""
    t, other = _things(kept)
    with pytest.raises(_Crash):
        kept.mirror(around=_crashing(1), tables_at_once=1)
    _both(kept, 2, 3)
    delete_records(kept.writer.bootstrap, f"{kept.writer.prefix}.commits", 3, partition=0)
    kept.mirror(on_table_error="go-on", warn=lambda _: None)
    _both(kept, 4)
    kept.mirror(on_table_error="go-on", warn=lambda _: None)
    assert dict(kept.cut()) == {}
    assert kept.cut().cut.stopped == ("*", "public.other", "public.t")
    kept.writer.reload(t)
    with pytest.raises(_Crash):
        kept.mirror(around=_crashing(1))
    kept.writer.reload(other)
    kept.mirror()
    kept.assert_equal()
    assert kept.cut().cut.stopped == ("*",)


@pytest.mark.parametrize("kept", KEPT_SHORT, indirect=True)
def test_a_prefix_that_was_started_over_is_not_taken_for_the_old_one(kept: Lake) -> None:
    """Not even if all its numbers, positions and offsets go on where the old one's ended."""
    _things(kept)
    kept.mirror()
    kept.writer.stream_id = "of the next init"
    _both(kept, 2)
    with pytest.raises(Refused, match="the topics of this prefix were recreated"):
        kept.mirror()
    kept.checkpoint = "lost"
    with pytest.raises(Refused, match=r"recreated\n.*rows that are gone would stay\n.* new checkpoint"):
        kept.mirror()
    assert {row["id"] for row in kept.cut()["public.t"].collect()} == {1}, "the old one's"


@pytest.mark.parametrize("kept", ["iceberg", "delta"], indirect=True)
def test_a_table_that_a_former_stream_left_does_not_pass_over_the_next_ones_changes(kept: Lake) -> None:
    """Somebody started over, and dropped the cuts and not all tables."""
    w = kept.writer
    _things(kept)
    _both(kept, 2, 3)
    kept.mirror()
    w.visible()
    delete_records(w.bootstrap, f"{w.prefix}.commits")
    w.stream_id, w.sequence = "of the next init", 0
    _both(kept, 4)
    if kept.choice.name == "delta":
        shutil.rmtree(Path(kept.choice.address) / "twofold")
    else:
        kept.spark.sql(f"DROP TABLE {kept.catalog}.twofold.cuts")
    kept.drop("other")
    kept.checkpoint = "of the next"
    with pytest.raises(Refused, match=r"t.* has the rows of a former stream (?s:.*)passed over\n.*drop or move"):
        kept.mirror()
    kept.drop("t")
    kept.mirror()
    assert {name: {row["id"] for row in kept.cut()[f"public.{name}"].collect()} for name in ("t", "other")} == {
        "t": {4},
        "other": {4},
    }


def test_executors_run_no_python(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor where ranges do not join, because something that was rolled back lies between them, over
    several blocks of offsets."""
    monkeypatch.setattr(lake.spark.sparkContext, "pythonExec", "/no/python/here")
    w = lake.writer
    t = w.table(table("t", {"id": "int8", "v": "int8"}), partitions=2)
    for number in range(3):
        with w.commit() as tx:
            for i in range(2500):
                tx.upsert(t, {"id": i, "v": number})
        with w.abort() as tx:
            for i in range(5):
                tx.upsert(t, {"id": i, "v": -1})
    lake.mirror()
    lake.assert_equal()
    lake.changelog()
    assert lake.spark.table(f"{lake.catalog}.public_changelog.t").count() == 7500
