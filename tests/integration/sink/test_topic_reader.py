"""The one reader of topics: it ends at an end where no record lies, and names what it waits for."""

from __future__ import annotations

import logging

import pytest

from integration.sink.sink_ground import PARTITIONS, Ground, commit, progress
from twofold.errors import Unreachable
from twofold.kafka import topic_reader
from twofold.kafka.publisher import TransactionRecords
from twofold.kafka.topic_reader import PartitionId, TopicFollower, TopicReader


def test_a_read_ends_at_its_end_whatever_lies_there(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Aborted records and markers lie there, or nothing; or records that came later."""
    publisher = ground.take_over().publisher
    publisher.produce(ground.rows_in(0, "a", "b"))
    publisher.commit_main(TransactionRecords(commit(1), progress(1)))
    ground.bystander().abort()
    ground.settle()

    reader = TopicReader(ground.settings)
    places = reader.partitions_of([ground.table, f"{ground.table}.other"])
    assert places == [PartitionId(ground.table, n) for n in range(PARTITIONS)]
    first, *empty = places
    stretches = reader.visible(places)
    assert stretches == {first: (0, 5), **dict.fromkeys(empty, (0, 0))}  # a, b, a marker, an aborted record, a marker

    publisher.produce(ground.rows_in(0, "c"))
    publisher.commit_main(TransactionRecords(commit(2), progress(2)))
    ground.settle()
    assert [each.value() for each in reader.read(stretches)] == [b"a", b"b"]
    assert [each.value() for each in reader.read({first: (1, 6)})] == [b"b", b"c"]
    assert [each.offset() for each in reader.read(stretches, isolation="read_uncommitted")] == [0, 1, 3]
    assert [*reader.read_runs({first: (0, 7)})] == [(first, 0, 1), (first, 5, 5)]

    follower = TopicFollower(ground.settings, {first: 1}, fetch_ms=10)
    followed: list[bytes | None] = []
    while len(followed) < 2:
        followed += [each.value() for each in follower.read_new(0.1)]
    follower.close()
    assert followed == [b"b", b"c"]

    ground.bystander()
    ground.options["call_timeout_s"] = 1
    monkeypatch.setattr(topic_reader, "_REPORT_AFTER_S", 0.0)
    caplog.set_level(logging.INFO, topic_reader.__name__)
    where = f"{first} from offset 7 to 8"
    with pytest.raises(Unreachable) as stuck:
        [*TopicReader(ground.settings).read({first: (0, 8)})]
    assert f"nothing more of {where} for 1 s" in str(stuck.value)
    assert f"find-hanging --topic {first.topic} --partition 0" in str(stuck.value)
    assert f"still reading {where}" in caplog.messages
