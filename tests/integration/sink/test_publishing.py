"""What readers see of the publisher's transactions, and what the commit records say of them."""

from __future__ import annotations

import os
import time

import pytest

from integration.sink.sink_ground import Ground, commit, eventually, progress, read
from twofold.errors import Refused
from twofold.kafka.publisher import TransactionRecords
from twofold.kafka.row_batch import RowBatch
from twofold_avro.records import Commit, Pin, Prepared, Range

pytestmark = pytest.mark.core

LEDGER = Prepared(xid=7, gid="g", prepare_lsn=1, prepared_at=0, state="open", rows=3)


def covered(ground: Ground, record: Commit) -> list[tuple[int, int, str]]:
    """What lies in the record's ranges, for a read_committed reader."""
    rows = ground.read(ground.table, "read_committed")
    return [row for row in rows for r in record.ranges if row[0] == r.partition and r.first <= row[1] <= r.last]


def test_rows_show_at_the_commit_and_not_before(ground: Ground) -> None:
    publisher = ground.take_over().publisher
    publisher.produce(ground.rows("a", "b"))
    publisher.produce(ground.rows("c"))
    assert ground.committed() == []
    publisher.commit_main(TransactionRecords(commit(1), progress(1)))
    eventually(lambda: ground.committed() == ["a", "b", "c"])


def test_the_ranges_of_many_transactions_in_the_same_partitions_hold_exactly_their_rows(ground: Ground) -> None:
    publisher = ground.take_over().publisher
    written: list[tuple[list[str], Commit]] = []
    for n in range(1, 9):
        values = [f"{n}.{k}" for k in range(n)]
        if n % 3 == 0:  # a prepared one, with an aborted one before it: markers and dead rows lie in between
            publisher.open(0, [ground.rows("dead", "dead", "dead", "dead")])
            publisher.open(1, [ground.rows(*values)])
            publisher.abort(0)
            record = publisher.commit_prepared(1, TransactionRecords(commit(n, "prepared"), progress(n)))
        else:
            publisher.produce(ground.rows(*values[: n // 2]))
            publisher.produce(ground.rows(*values[n // 2 :]))
            record = publisher.commit_main(TransactionRecords(commit(n), progress(n)))
        assert record is not None
        written.append((values, record))
    everything = sorted(value for values, _ in written for value in values)
    eventually(lambda: ground.committed() == everything)
    for values, record in written:
        rows = covered(ground, record)
        assert sorted(value for _, _, value in rows) == sorted(values)
        assert record.rows == len(values) == sum(r.count for r in record.ranges)
        for r in record.ranges:
            offsets = [offset for partition, offset, _ in rows if partition == r.partition]
            assert (min(offsets), max(offsets), len(offsets)) == (r.first, r.last, r.count)


def test_the_commit_record_that_is_returned_is_the_one_in_kafka(ground: Ground) -> None:
    fencing = ground.take_over()
    fencing.publisher.produce(ground.rows("a", "b"))
    record = fencing.publisher.commit_main(TransactionRecords(commit(1), progress(1)))
    assert ground.take_over().recovered.last_commit == record


def test_order_in_a_partition_is_the_order_of_production_through_a_queue_that_is_full(ground: Ground) -> None:
    ground.options["client"] = {"queue.buffering.max.messages": 1000}
    publisher = ground.take_over().publisher
    batch = RowBatch()
    records = batch.lists(ground.table, 3)[1]
    records.extend({"key": b"k", "value": b"%d" % n} for n in range(25_000))
    publisher.produce(batch)
    publisher.commit_main(TransactionRecords(commit(1), progress(1)))
    eventually(lambda: len(ground.committed()) == 25_000)
    rows = ground.read(ground.table, "read_committed")
    assert [int(value) for _, _, value in sorted(rows)] == list(range(25_000))
    assert records[0] == {"key": b"k", "value": b"0"}, "a batch is as it was, so that it can be published again"
    assert records[-1] == {"key": b"k", "value": b"24999"}


def test_a_prepare_is_real(ground: Ground) -> None:
    publisher = ground.take_over().publisher
    rows = [f"{n:02d}" for n in range(12)]
    ground.open(publisher, 1, ground.rows(*rows[:9]), ground.rows(*rows[9:]))
    assert ground.uncommitted() == rows
    assert ground.committed() == []
    publisher.produce(RowBatch())
    publisher.commit_main(TransactionRecords(None, progress(0), ledger={"7:0/1": LEDGER}))
    assert ground.committed() == []
    record = publisher.commit_prepared(1, TransactionRecords(commit(1, "prepared"), progress(1)))
    eventually(lambda: ground.committed() == rows)
    assert record is not None
    assert [r.count for r in record.ranges] == [4, 4, 4]


def test_a_prepare_is_not_open_if_a_row_in_its_middle_was_not_taken(ground: Ground) -> None:
    ground.options["client"] = {"message.max.bytes": 3_000_000}
    publisher = ground.take_over().publisher
    batch = RowBatch()
    for size in (1, 2_000_000, 1):
        batch.lists(ground.table, 3)[0].append({"key": b"k", "value": os.urandom(size)})
    with pytest.raises(Refused, match=r"--topic .* --add-config max\.message\.bytes=3145728"):
        ground.open(publisher, 0, batch)


def test_nothing_of_an_aborted_prepare_is_ever_visible(ground: Ground) -> None:
    publisher = ground.take_over().publisher
    for _ in range(30):  # right after one another: an abort that overtakes its rows would kill the producer
        publisher.open(0, [ground.rows("dead")])
        publisher.abort(0)
    publisher.produce(ground.rows("alive"))
    publisher.commit_main(TransactionRecords(commit(1), progress(1)))
    eventually(lambda: ground.committed() == ["alive"])


def test_others_commit_while_a_prepared_transactions_rows_are_on_their_way(ground: Ground) -> None:
    """Only what follows them in their partition waits until they are acknowledged."""
    publisher = ground.take_over().publisher
    ground.open(publisher, 0, ground.rows_in(0, "2"))
    publisher.open(1, [ground.rows_in(1, "4a", "4b")])
    publisher.produce(ground.rows_in(2, "1"))
    records = [publisher.commit_main(TransactionRecords(commit(1), progress(1)))]
    records.append(publisher.commit_prepared(0, TransactionRecords(commit(2, "prepared"), progress(2))))
    assert publisher._sent.are_of(publisher._pool[1]), "nobody has waited for them"
    publisher.produce(ground.rows_in(1, "3"))
    assert not publisher._sent.are_of(publisher._pool[1]), "they lie before it in its partition"
    records.append(publisher.commit_main(TransactionRecords(commit(3), progress(3))))
    records.append(publisher.commit_prepared(1, TransactionRecords(commit(4, "prepared"), progress(4))))
    eventually(lambda: ground.committed() == ["1", "2", "3", "4a", "4b"])
    for n, record in enumerate(records, start=1):
        assert record is not None
        assert {value[0] for _, _, value in covered(ground, record)} == {str(n)}


def test_rows_of_two_prepared_transactions_follow_each_other_in_a_partition(ground: Ground) -> None:
    publisher = ground.take_over().publisher
    publisher.open(0, [ground.rows_in(0, "1")])
    publisher.open(1, [ground.rows_in(0, "2")])
    assert not publisher._sent.are_of(publisher._pool[0])
    publisher.commit_prepared(0, TransactionRecords(commit(1, "prepared"), progress(1)))
    publisher.abort(1)
    eventually(lambda: ground.committed() == ["1"])


def test_an_abort_right_after_the_rows_leaves_the_producer_alive(ground: Ground) -> None:
    main = ground.take_over().publisher._main
    for n in range(150):
        main.begin()
        main.produce(ground.table, 0, [{"key": b"k", "value": b"alive%03d" % n}])
        main.commit()
        main.begin()
        main.produce(ground.table, 0, [{"key": b"k", "value": b"dead"}])
        main.abort()
    eventually(lambda: ground.committed() == [f"alive{n:03d}" for n in range(150)])


def test_the_main_producer_must_have_committed_before_another_one_writes(ground: Ground) -> None:
    publisher = ground.take_over().publisher
    publisher.produce(ground.rows("a"))
    with pytest.raises(AssertionError, match="main producer commits"):
        publisher.open(0, [ground.rows("b")])
    assert ground.uncommitted() in ([], ["a"])


def test_the_progress_says_where_recovery_goes_on(ground: Ground) -> None:
    publisher = ground.take_over().publisher
    publisher.produce(ground.rows("a"))
    pin = Pin("public", "a", 3, key_schema='"long"', value_schema_id=9, backfill="running", bound=b"\x01")
    publisher.commit_main(
        TransactionRecords(commit(1), progress(1), ledger={"7:0/1": LEDGER}, pins={ground.table: pin})
    )
    publisher.commit_main(TransactionRecords(None, progress(2)))
    recovered = ground.take_over().recovered
    assert recovered.progress == progress(2)
    assert recovered.pins == {ground.table: pin}
    assert recovered.unresolved == {"7:0/1": LEDGER}
    assert recovered.last_commit is not None
    assert recovered.last_commit.sequence == 1


def test_the_last_commit_record_is_found_behind_many_that_were_aborted(ground: Ground) -> None:
    publisher = ground.take_over().publisher
    publisher.produce(ground.rows("a"))
    record = publisher.commit_main(TransactionRecords(commit(1), progress(1)))
    main = publisher._main
    for _ in range(120):
        main.begin()
        main.produce(ground.names.commits, 0, [{"key": None, "value": b"never"}])
        main.abort()
    assert ground.take_over().recovered.last_commit == record


def test_keys_values_and_tombstones_arrive_as_they_were_given(ground: Ground) -> None:
    publisher = ground.take_over().publisher
    batch = RowBatch()
    batch.lists(ground.table, 3)[0].extend(
        [{"key": None, "value": b""}, {"key": b"", "value": None}, {"key": b"k", "value": None}]
    )
    publisher.produce(batch)
    record = publisher.commit_main(TransactionRecords(commit(1), progress(1)))
    assert record is not None
    assert [r.count for r in record.ranges] == [3]


def test_a_row_that_is_too_large_is_refused_with_topic_size_and_setting_and_without_its_key(ground: Ground) -> None:
    publisher = ground.take_over().publisher
    batch = RowBatch()
    batch.lists(ground.table, 3)[0].extend(
        [{"key": b"a", "value": b"1"}, {"key": b"\x02\xff", "value": b"x" * 9_000_000}]
    )
    with pytest.raises(Refused, match=r"message\.max\.bytes") as refused:
        publisher.produce(batch)
    assert f"{ground.table} [0]" in str(refused.value)
    assert "9000000 bytes" in str(refused.value)
    assert "02ff" not in str(refused.value)
    publisher.close()
    assert ground.committed() == []


def test_a_row_that_the_topic_alone_finds_too_large_is_refused(ground: Ground) -> None:
    ground.options["client"] = {"message.max.bytes": 3_000_000}
    publisher = ground.take_over().publisher
    batch = RowBatch()
    # The topic's limit is of compressed bytes.
    batch.lists(ground.table, 3)[0].append({"key": b"a", "value": os.urandom(2_000_000)})
    publisher.produce(batch)
    with pytest.raises(Refused, match=r"--topic .* --add-config max\.message\.bytes=3145728"):
        publisher.commit_main(TransactionRecords(commit(1), progress(1)))
    assert ground.committed() == []


@pytest.mark.parametrize(
    "sending",
    [
        {},
        # The last row is not sent before the middle one was refused: its report, "purged", is then
        # the first to come.
        {"batch.num.messages": 1, "max.in.flight": 1},
    ],
    ids=["together", "one by one"],
)
def test_a_row_in_the_middle_that_the_topic_finds_too_large_is_told_at_once(
    ground: Ground, sending: dict[str, int]
) -> None:
    """Only the first and the last row of a partition ask for a delivery report, and a failed
    transaction never drains.
    """
    ground.options["client"] = {"message.max.bytes": 3_000_000, **sending}
    publisher = ground.take_over().publisher
    batch = RowBatch()
    for size in (1, 2_000_000, 1):
        batch.lists(ground.table, 3)[0].append({"key": b"k", "value": os.urandom(size)})
    publisher.produce(batch)
    begun = time.monotonic()
    with pytest.raises(Refused, match=r"--topic .* --add-config max\.message\.bytes=3145728"):
        publisher.commit_main(TransactionRecords(commit(1), progress(1)))
    publisher.close()
    assert time.monotonic() - begun < 20, "not at the end of the call's bound, 30 s"
    ground.bystander().commit()
    eventually(lambda: ground.committed() == ["bystander"])


def test_rows_behind_a_row_that_was_found_too_large_are_not_blamed_for_it(ground: Ground) -> None:
    """librdkafka refuses them with "erroneous state" before the large row's report was read: taken
    for the cause, it made the run recover for ever.
    """
    ground.options["client"] = {"message.max.bytes": 3_000_000}
    publisher = ground.take_over().publisher
    batch = RowBatch()
    batch.lists(ground.table, 3)[0].append({"key": b"a", "value": os.urandom(2_000_000)})
    publisher.produce(batch)

    def has_failed() -> bool:
        try:
            publisher._main._check_state()
        except Refused:
            return True
        return False

    eventually(has_failed)
    with pytest.raises(Refused, match=r"--topic .* --add-config max\.message\.bytes=3145728"):
        publisher.produce(ground.rows("behind"))


def test_closing_gives_the_topics_back_to_their_readers(ground: Ground) -> None:
    publisher = ground.take_over().publisher
    publisher.produce(ground.rows("open"))
    publisher._main.flush()
    publisher.close()
    ground.bystander().commit()
    eventually(lambda: ground.committed() == ["bystander"])


def test_ranges_cover_the_partitions_that_were_written_and_no_others(ground: Ground) -> None:
    publisher = ground.take_over().publisher
    batch = RowBatch()
    batch.lists(ground.table, 3)[2].append({"key": b"k", "value": b"v"})
    publisher.produce(batch)
    record = publisher.commit_main(TransactionRecords(commit(1), progress(1)))
    assert record is not None
    assert record.ranges == (Range(ground.table, 2, 0, 0, 1),)
    assert read(ground.bootstrap, ground.names.commits, "read_committed") != []
