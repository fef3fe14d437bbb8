"""`make bench-latency ARGS=--trace`: the edges that it wraps are there, and the legs add up."""

from __future__ import annotations

import itertools
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from bench.trace import LEGS, SENT, TOTAL, Trace, Way, legs, moments, picture, spread, summarize, table
from bench.traced import EDGES, Recorder, find, requests_in, wrap, wrap_edges

import diagrams
from twofold.bridge import events, initial
from twofold.kafka.late_ends import EndRule
from twofold.kafka.names import Names
from twofold.kafka.open_check import OpenCheck
from twofold.kafka.producer import TransactionalProducer
from twofold.kafka.publisher import Publisher, TransactionRecords
from twofold.kafka.row_batch import RowBatch
from twofold.kafka.schema_registry import SchemaIds
from twofold.kafka.watch import Watch
from twofold.run.executor import ActionExecutor
from twofold.run.run import Run
from twofold.source import messages as m
from twofold.source.session import ReplicationSession
from twofold.stream import collector
from twofold_avro.records import Commit, Progress
from twofold_common.positions import Lsn, PreparedIdentity

MS = 1_000_000
ROWS = "shop.public.live"


@pytest.mark.parametrize(("when", "edge", "note"), EDGES)
def test_an_edge_is_in_the_product_by_its_name(when: str, edge: str, note: str) -> None:
    owner, name = find(edge)
    assert callable(getattr(owner, name))
    assert callable(getattr(Recorder, note))
    assert when in {"before", "after"}


def test_an_edge_that_is_gone_is_seen() -> None:
    owner, name = find("twofold.kafka.publisher:Publisher.leap")
    assert not hasattr(owner, name)


def test_a_wrapped_function_returns_and_raises_what_it_did() -> None:
    noted: list[Any] = []

    def halve(number: int, *, whole: bool = True) -> int:
        if whole and number % 2:
            raise ValueError(number)
        return number // 2

    after = wrap(halve, lambda given, found: noted.append((given, found)), before=False)
    assert after(4, whole=False) == 2
    with pytest.raises(ValueError, match="3"):
        after(3)
    before = wrap(halve, lambda given, found: noted.append((given, found)), before=True)
    with pytest.raises(ValueError, match="3"):
        before(number=3)
    assert noted == [({"number": 4, "whole": False}, 2), ({"number": 3}, None)]


class Client:
    """A producer of librdkafka that takes everything, and reports it at the next flush."""

    def __init__(self, offsets: dict[tuple[str, int], Any]) -> None:
        self._offsets, self._reports = offsets, list[Any]()
        self.poll = self.begin_transaction = self.list_topics = MagicMock()

    def produce_batch(self, topic: str, records: list[Any], *, partition: int, on_delivery: Any) -> int:
        for record in records:
            offset = next(self._offsets.setdefault((topic, partition), itertools.count()))
            if report := record.get("callback", on_delivery):
                message = MagicMock()
                message.topic.return_value, message.partition.return_value = topic, partition
                message.offset.return_value = offset
                self._reports.append((report, message))
        return len(records)

    def flush(self, _: float) -> int:
        for report, message in self._reports:
            report(None, message)
        self._reports.clear()
        return 0

    def commit_transaction(self, _: float) -> None:
        for offsets in self._offsets.values():
            next(offsets)  # the marker


class Product:
    """The product's own functions from the reader to the end of the Kafka transaction, on one
    thread and without servers.
    """

    def __init__(self, watch: Watch) -> None:
        self.offsets: dict[tuple[str, int], Any] = {}
        names = Names("shop", "shop")
        self.watch = watch
        check = OpenCheck.__new__(OpenCheck)
        check._timeout_s, check._watch, check._consumer = 1.0, watch, MagicMock()
        check._consumer.offsets_for_times.return_value = [SimpleNamespace(offset=0, error=None)]
        self.publisher = Publisher(
            names,
            SchemaIds(1, 2, 3, 4),
            [self._producer(each) for each in names.main_ids],
            [self._producer(names.prepared_id(0))],
            check,
        )
        self.run = Run.__new__(Run)
        self.run.state = initial(applied_lsn=Lsn(0), confirmed_lsn=Lsn(0), sequence=0, pool=1)
        self.run._observer = self.run._timers = MagicMock()
        self.run._executor = MagicMock()
        self.run._executor.execute = lambda action, at_us: ActionExecutor.execute(self.run._executor, action, at_us)
        self.run._executor._commit_main = self._commit_main
        self.run._executor._commit_prepared = self._commit_prepared

    def _producer(self, transactional_id: str) -> TransactionalProducer:
        producer = TransactionalProducer.__new__(TransactionalProducer)
        vars(producer).update(
            transactional_id=transactional_id,
            in_transaction=False,
            end_rule=EndRule(1),
            _timeout_s=1.0,
            _transaction_timeout_s=60.0,
            _begun=0.0,
            _watch=self.watch,
            _known_topics=set(),
            _producer=Client(self.offsets),
        )
        return producer

    def receive(self, *received: m.Message) -> None:
        session: Any = SimpleNamespace(
            tend=lambda: None, _receive=lambda *_: list(received), _guard=None, _check_silence=lambda _: None
        )
        for message in ReplicationSession.read(session, rows_max=1, bytes_max=1, wait_s=0):
            vars(collector)["decode"](message, in_stream=False)

    def produce(self, partition: int) -> None:
        batch = RowBatch()
        batch.lists(ROWS, 6)[partition].append({"key": b"", "value": b"v"})
        self.publisher.produce(batch)

    def _commit_main(self, action: Any) -> None:
        self.publisher.commit_main(TransactionRecords(self._commit("batch", action), self._progress(action)))

    def _commit_prepared(self, action: Any, _: int) -> None:
        records = TransactionRecords(self._commit("prepared", action), self._progress(action))
        self.publisher.commit_prepared(action.slot, records)

    @staticmethod
    def _commit(kind: Any, action: Any) -> Commit:
        return Commit(action.sequence, kind, action.applied_lsn, 0, 1, rows=0)

    @staticmethod
    def _progress(action: Any) -> Progress:
        return Progress(action.applied_lsn, action.sequence, "1", 1, "shop", "shop", 1, 0)


def test_the_edges_of_the_product_are_stamped_in_the_order_of_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """The arguments that the recorder reads are those that the product gives."""
    monkeypatch.setattr(collector, "decode", lambda payload, *, in_stream: payload)
    recorder = Recorder(clock=itertools.count(1).__next__, every=1)
    wrap_edges(recorder, monkeypatch.setattr)
    identity = PreparedIdentity(702, "live-2")
    with closing(Watch()) as watch:
        product = Product(watch)
        product.receive(m.Begin(Lsn(100), 0, 701), m.Commit(Lsn(100), Lsn(110), 0))
        product.produce(3)
        product.produce(4)
        product.run._step_bridge(events.PlainRead(1, 2, Lsn(110)))
        product.run._step_bridge(events.Drained())
        product.run._step_bridge(events.MainCommitted(Lsn(110)))
        product.run._step_bridge(events.PrepareRead(identity, Lsn(120), Lsn(130), 1))
        product.run._step_bridge(events.Drained())
        product.run._step_bridge(events.OpenDue(identity))
        batch = RowBatch()
        batch.lists(ROWS, 6)[3].append({"key": b"", "value": b"v"})
        product.publisher.open(0, [batch])
        product.run._step_bridge(events.PreparedOpened(identity))
        product.receive(m.CommitPrepared(Lsn(140), Lsn(150), 0, identity))
        product.run._step_bridge(events.CommitPreparedRead(identity, Lsn(140), Lsn(150)))
        product.run._step_bridge(events.PreparedCommitted(identity, Lsn(150)))

    assert {position: xid for position, (xid, _) in recorder.trace.outcomes.items()} == {100: 701, 140: 702}
    plain, prepared = moments(recorder.trace, [Way(701, 0, 1000), Way(702, 0, 1000)])
    of_both = [
        "read",
        "decoded",
        "bridge",
        "decided",
        "begun",
        "rows_acknowledged",
        "described",
        "flushed",
        "asked_open",
    ]
    for found in (plain, prepared):
        passed = [found[name] for name in (SENT, *of_both, "ended", "answered", "seen")]
        assert passed == sorted(passed)
    assert plain["rows"] < plain["rows_given"] < plain["begun"] < plain["asked_marker"] < plain["rows_acknowledged"]
    assert "rows_given" not in prepared
    assert (prepared["before_ended"], prepared["before_answered"]) == (plain["ended"], plain["answered"])
    assert plain["foretold"] == 0
    assert (plain["records"], plain["partitions"]) == (2, 2)
    assert (prepared["records"], prepared["partitions"]) == (1, 1)


def test_one_transaction_in_a_hundred_is_stamped() -> None:
    recorder = Recorder()
    for xid in range(1000, 1300):
        recorder.after_decode({}, m.Begin(Lsn(xid * 10), 0, xid))
        recorder.after_decode({}, m.Commit(Lsn(xid * 10), Lsn(xid * 10 + 5), 0))
    assert [xid for xid, _ in recorder.trace.outcomes.values()] == [1000, 1100, 1200]


def test_a_load_of_a_table_is_no_kafka_transaction_of_outcomes() -> None:
    recorder = Recorder()
    for kind in ("batch", "backfill", None):
        commit = None if kind is None else SimpleNamespace(kind=kind)
        records = SimpleNamespace(commit=commit, progress=SimpleNamespace(applied_lsn=7))
        recorder.before_commit_main({"records": records}, None)
        recorder.after_commit({}, None)
    assert list(recorder.trace.ends) == [7]


def test_only_the_main_producers_count_requests() -> None:
    recorder = Recorder()
    main: dict[str, Any] = {}
    pool: dict[str, Any] = {}
    recorder.after_settings({"transactional_id": "prepared_1000_twofold.main.2"}, main)
    recorder.after_settings({"transactional_id": "prepared_1000_twofold.prepared.00"}, pool)
    assert pool == {}
    one = '{"brokers": {"a": {"req": {"Produce": 3, "Fetch": 0}}, "b": {"req": {"Produce": 1, "EndTxn": 1}}, "c": {}}}'
    main["stats_cb"](one)
    main["stats_cb"](one.replace('"EndTxn": 1', '"EndTxn": 3').replace('"Produce": 3', '"Produce": 13'))
    first, last = recorder.trace.requests["prepared_1000_twofold.main.2"]
    assert first == {"Produce": 4, "EndTxn": 1}
    assert last == {"Produce": 14, "EndTxn": 3}
    assert requests_in({"brokers": {}}) == {}


def a_batch(at: int, *, foretold: int = 1) -> dict[str, int]:
    """A Kafka transaction that is decided at this millisecond and takes five."""
    after = {"rows": -2, "rows_given": -1, "decided": 0, "begun": 1, "asked_marker": 2, "rows_acknowledged": 2}
    after |= {"described": 3, "flushed": 5, "asked_open": 6, "ended": 7, "answered": 8}
    return {name: (at + more) * MS for name, more in after.items()} | {
        "foretold": foretold,
        "records": 5,
        "partitions": 4,
    }


def an_outcome(read: int) -> dict[str, int]:
    return {"read": read * MS, "decoded": (read + 1) * MS, "bridge": (read + 2) * MS}


def test_the_legs_are_the_whole_way() -> None:
    trace = Trace(outcomes={100: (7, an_outcome(8))}, ends={90: a_batch(5), 110: a_batch(14)})
    (found,) = moments(trace, [Way(7, 5 * MS, 25 * MS)])
    taken = legs(found)
    assert sum(taken.values()) == 20 * MS
    assert list(taken) == [leg.name for leg in LEGS]
    in_ms = [round(each / MS) for each in taken.values()]
    assert in_ms == [3, 1, 1, 2, 1, 1, 0, 1, 1, 0, 1, 2, 1, 1, 4]


def test_an_opened_transaction_waits_for_the_batch_that_its_outcome_has_closed() -> None:
    """Both are decided at once: what the worker does for the batch is a wait of the second. The
    answer for the batch is not: the worker begins the next end without it.
    """
    opened = a_batch(12) | {"decided": 6 * MS}
    del opened["rows"], opened["rows_given"]
    before = a_batch(5) | {"answered": 14 * MS}
    trace = Trace(outcomes={100: (7, an_outcome(4))}, ends={90: before, 110: opened})
    (found,) = moments(trace, [Way(7, 3 * MS, 20 * MS)])
    taken = {name: each / MS for name, each in legs(found).items()}
    assert sum(taken.values()) == 17
    assert taken["Kafka transaction before"] == 6
    assert taken["its answer"] == taken["decision to commit"] == taken["rows to librdkafka"] == 0
    assert taken["queue of the worker"] == 1


def test_an_outcome_belongs_to_the_kafka_transaction_that_ends_behind_its_beginning() -> None:
    """The end of one record is the start of the next."""
    trace = Trace(outcomes={110: (7, an_outcome(8))}, ends={110: a_batch(5), 120: a_batch(14)})
    (found,) = moments(trace, [Way(7, 0, 1)])
    assert (found["before_ended"], found["ended"]) == (12 * MS, 21 * MS)


def test_a_transaction_of_another_load_or_without_an_end_is_left_out() -> None:
    outcomes = {position: (position, an_outcome(8)) for position in (100, 101, 200)}
    trace = Trace(outcomes=outcomes, ends={110: a_batch(14), 210: {"decided": 1}})
    assert len(list(moments(trace, [Way(100, 0, 1), Way(200, 0, 1)]))) == 1


def test_a_trace_is_read_as_it_was_written(tmp_path: Path) -> None:
    trace = Trace(
        outcomes={100: (7, an_outcome(8))},
        ends={110: a_batch(14)},
        requests={"shop.main": ({"Produce": 4}, {"Produce": 40, "EndTxn": 6})},
    )
    trace.write(tmp_path / "trace.csv")
    assert Trace.read(tmp_path / "trace.csv") == trace


def test_the_table_and_the_picture_have_every_leg() -> None:
    trace = Trace(
        outcomes={100 * n: (n, an_outcome(20 * n)) for n in range(1, 100)},
        ends={100 * n + 10: a_batch(20 * n + 4, foretold=n % 2) for n in range(1, 100)},
        requests={
            "shop.main": ({"Produce": 10, "EndTxn": 1}, {"Produce": 410, "EndTxn": 51, "Metadata": 0}),
            "shop.main.2": ({"Produce": 9}, {"Produce": 309, "EndTxn": 50}),
        },
    )
    ways = [Way(n, (20 * n - 3) * MS, (20 * n + 12) * MS) for n in range(1, 100)]
    traced = summarize("COMMIT 50/s", trace, ways)
    assert (round(traced.rate), traced.count, traced.traced) == (50, 99, 99)
    assert (traced.kafka_transactions, traced.foretold) == (99, 50)
    assert (traced.records, traced.partitions) == (5, 4)
    assert traced.requests == {"Produce": 7.0, "EndTxn": 1.0}
    assert traced.legs[TOTAL].p50 == traced.legs[TOTAL].mean == 15
    text = table(traced)
    source = picture([traced, summarize("COMMIT PREPARED 50/s", trace, ways)])
    title, _, rows = source.partition("\n")
    drawn = diagrams.draw_bars(diagrams_rows(rows), title)
    for leg in (*(each.name for each in LEGS), TOTAL):
        assert leg in text
        assert leg in drawn
        assert len(leg) <= 25, "a longer name runs into its bar"


def diagrams_rows(table: str) -> list[dict[str, str]]:
    head, *rows = [line.split(",") for line in table.splitlines()]
    return [dict(zip(head, row, strict=True)) for row in rows]


def test_a_load_without_a_trace_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="higher --count"):
        summarize("COMMIT 50/s", Trace(), [Way(1, 0, 1)])


def test_percentiles_are_of_the_ordered_values() -> None:
    found = spread(MS * each for each in (5, 1, 2, 3, 4))
    assert (found.p50, found.p99, found.mean) == (3, 5, 3)
