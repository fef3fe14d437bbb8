"""One connector at a time: who was fenced cannot write any more, and who recovers finds exactly
what was committed.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from integration.sink.sink_ground import Ground, commit, eventually, progress
from twofold.errors import Fenced, RunEnded, SetupError, TransactionTimedOut, TwofoldError, Unreachable
from twofold.kafka.producer import TransactionalProducer
from twofold.kafka.publisher import Publisher, TransactionRecords
from twofold_avro.records import Prepared

pytestmark = pytest.mark.core

Step = Callable[[Ground, Publisher], None]


def commits(ground: Ground, publisher: Publisher) -> None:
    publisher.produce(ground.rows("late"))
    publisher.commit_main(TransactionRecords(commit(1), progress(1)))


def opens(ground: Ground, publisher: Publisher) -> None:
    ground.open(publisher, 0, ground.rows("late"))


def commits_prepared(_: Ground, publisher: Publisher) -> None:
    publisher.commit_prepared(0, TransactionRecords(commit(1, "prepared"), progress(1)))


def commits_flushed(_: Ground, publisher: Publisher) -> None:
    publisher.commit_main(TransactionRecords(commit(1), progress(1)))


def aborts(_: Ground, publisher: Publisher) -> None:
    publisher.abort(0)


def says_only_how_far_it_is(_: Ground, publisher: Publisher) -> None:
    publisher.commit_main(TransactionRecords(None, progress(1)))


def nothing(_: Ground, __: Publisher) -> None: ...


def produces_and_flushes(ground: Ground, publisher: Publisher) -> None:
    publisher.produce(ground.rows("late"))
    publisher._main.flush()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (nothing, commits),
        (nothing, says_only_how_far_it_is),
        (nothing, opens),
        (produces_and_flushes, commits_flushed),
        (opens, commits_prepared),
        (opens, aborts),
    ],
)
def test_who_was_taken_over_is_refused_whatever_it_does_next(ground: Ground, before: Step, after: Step) -> None:
    old = ground.take_over().publisher
    before(ground, old)
    new = ground.take_over().publisher
    with pytest.raises(Fenced):
        after(ground, old)
    new.produce(ground.rows("new"))
    new.commit_main(TransactionRecords(commit(1), progress(1)))
    eventually(lambda: ground.committed() == ["new"])


def test_a_fence_that_was_met_between_two_calls_is_told_as_one_by_the_next(ground: Ground) -> None:
    old = ground.take_over().publisher
    ground.take_over()
    old.produce(ground.rows("late"))
    client = old._main._alive

    def refused() -> bool:
        """The broker's answer to the first rows has arrived; librdkafka takes no more."""
        (record,) = records = [{"key": b"k", "value": b"a probe"}]
        client.produce_batch(ground.table, records, partition=0)
        return "_error" in record

    eventually(refused)
    with pytest.raises(Fenced):
        old.produce(ground.rows("more"))


def test_of_two_that_fence_at_once_at_most_one_goes_on(ground: Ground) -> None:
    def attempt(_: int) -> Publisher | None:
        try:
            return ground_fence()
        except TwofoldError:
            return None

    def ground_fence() -> Publisher:
        return ground.take_over(pool=3).publisher

    for turn in range(1, 6):
        with ThreadPoolExecutor(2) as both:
            rivals = [p for p in both.map(attempt, range(2)) if p is not None]
        went_on = 0
        for rival in rivals:
            rival.produce(ground.rows(str(turn)))
            try:
                rival.commit_main(TransactionRecords(commit(turn), progress(turn)))
            except (Fenced, RunEnded):
                continue
            went_on += 1
        assert went_on <= 1
        ground.take_over()  # whatever came of it, the next one recovers


def test_a_larger_pool_of_the_predecessor_is_fenced_too(ground: Ground) -> None:
    old = ground.take_over(pool=4).publisher
    old.commit_main(TransactionRecords(None, progress(0, pool=4)))
    old.open(3, [ground.rows("in doubt")])
    new = ground.take_over(pool=1).publisher
    assert len(new._pool) == 1
    new.produce(ground.rows("new"))
    new.commit_main(TransactionRecords(commit(1), progress(1, pool=1)))
    eventually(lambda: ground.committed() == ["new"])  # nothing is open in front of it
    with pytest.raises(Fenced):
        old.commit_prepared(3, TransactionRecords(commit(1, "prepared"), progress(1)))


@pytest.mark.parametrize("within_s", [0.001, 20])
def test_fencing_goes_on_where_it_was_begun_also_if_it_was_through_by_then(ground: Ground, within_s: float) -> None:
    producer = TransactionalProducer(ground.names.main_ids[0], ground.settings, ground.watch)
    ground.ending.callback(producer.destroy)
    producer.start_init(within_s)
    producer.init()
    producer.begin()


def test_a_first_start_finds_nothing(ground: Ground) -> None:
    recovered = ground.take_over().recovered
    assert (recovered.progress, recovered.pins, recovered.unresolved, recovered.last_commit) == (None, {}, {}, None)


def test_the_ledger_names_what_is_in_doubt_until_its_outcome(ground: Ground) -> None:
    publisher = ground.take_over().publisher
    in_doubt = {f"{n}:0/1": Prepared(n, f"g{n}", 1, 0, "parked" if n % 2 else "open", 1) for n in range(4)}
    publisher.commit_main(TransactionRecords(None, progress(0), ledger=in_doubt))
    publisher.commit_main(
        TransactionRecords(
            None,
            progress(0),
            ledger={
                "0:0/1": Prepared(0, "g0", 1, 0, "committed", 1),
                "1:0/1": Prepared(1, "g1", 1, 0, "rolled_back", 1),
            },
        )
    )
    fencing = ground.take_over()
    assert set(fencing.recovered.unresolved) == {"2:0/1", "3:0/1"}
    assert fencing.recovered.ended == ("0:0/1", "1:0/1")
    committed = Prepared(2, "g2", 1, 0, "committed", 1)
    fencing.publisher.commit_main(TransactionRecords(None, progress(0), ledger={"0:0/1": None, "2:0/1": committed}))
    recovered = ground.take_over().recovered
    assert (set(recovered.unresolved), recovered.ended) == ({"3:0/1"}, ("1:0/1", "2:0/1"))


def test_a_transaction_that_the_broker_timed_out_ends_the_run_and_is_gone(ground: Ground) -> None:
    ground.options["transaction_timeout_ms"] = 1000
    publisher = ground.take_over().publisher
    publisher.produce(ground.rows("late"))
    publisher._main.flush()
    ground.options["transaction_timeout_ms"] = 60_000
    ground.bystander().commit()
    eventually(lambda: ground.committed() == ["bystander"], within_s=60)  # the broker has given the partition back
    with pytest.raises((Fenced, RunEnded)):
        publisher.commit_main(TransactionRecords(commit(1), progress(1)))
    assert ground.take_over().recovered.progress is None
    assert ground.committed() == ["bystander"]


def test_prepared_ones_that_the_broker_timed_out_ask_for_more_time(ground: Ground) -> None:
    """The run would open them again in the same way, and again, until their outcomes come."""
    ground.options["transaction_timeout_ms"] = 1000
    publisher = ground.take_over().publisher
    ground.open(publisher, 0, ground.rows("aborted"))
    ground.open(publisher, 1, ground.rows("committed"))
    ground.options["transaction_timeout_ms"] = 60_000
    ground.bystander().commit()
    eventually(lambda: ground.committed() == ["bystander"], within_s=60)
    with pytest.raises(TransactionTimedOut, match="the next try has four times that timeout"):
        publisher.abort(0)
    with pytest.raises(TransactionTimedOut, match="the next try has four times that timeout"):
        publisher.commit_prepared(1, TransactionRecords(commit(1, "prepared"), progress(1)))
    assert ground.committed() == ["bystander"]


def test_a_timeout_above_the_brokers_is_refused_with_the_setting(ground: Ground) -> None:
    limit = int(ground.topics().broker_limits().transaction_timeout_s * 1000)
    ground.options["transaction_timeout_ms"] = limit + 1000
    with pytest.raises(SetupError, match=r"transaction\.max\.timeout\.ms"):
        ground.take_over()


def test_recovery_waits_for_what_is_open_in_its_topics_and_names_it(ground: Ground) -> None:
    publisher = ground.take_over().publisher
    publisher.commit_main(TransactionRecords(None, progress(1)))
    other = ground.bystander(ground.names.progress)
    publisher.commit_main(TransactionRecords(None, progress(2)))  # behind it, so not visible
    ground.options["call_timeout_s"] = 1
    with pytest.raises(Unreachable, match=f"find-hanging --topic {ground.names.progress}"):
        ground.take_over()
    other.abort()
    ground.options["call_timeout_s"] = 30
    assert ground.take_over().recovered.progress == progress(2)
