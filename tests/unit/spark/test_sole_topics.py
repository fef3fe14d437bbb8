"""How the commit records of one source become batches: all of them, in order, a bounded part at a
time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from twofold_spark.errors import Refused
from twofold_spark.sources import member_topics
from twofold_spark.sources.commit_records import NO_COMMIT, CommitIdentity
from twofold_spark.sources.commit_topic import CommitTopic
from twofold_spark.sources.kafka_client import Kafka, KafkaAdmin
from twofold_spark.sources.member_topics import UNKNOWN, SoleTopics
from twofold_spark.sources.registry import Registry

SPARK = cast("SparkSession", None)


def commit_row(sequence: int, rows: int = 1, ranges: int = 1, *, stream_id: str = "s") -> Any:
    """A record of the commits topic, which has a marker behind each of them."""
    stretch = {"topic": "bank.public.t", "partition": 0, "first": sequence, "last": sequence, "count": 1}
    return {
        "sequence": sequence, "applied_lsn": sequence * 10, "us": sequence, "stream_id": stream_id, "rows": rows,
        "kind": "plain", "backfilling": (), "transactions": 1, "stale": (), "skipped": (), "ranges": [stretch] * ranges,
        "offset": 2 * sequence,
    }  # fmt: skip


@dataclass
class Log:
    """The commits topic, without a broker."""

    rows: list[Any] = field(default_factory=list)
    first: int = 0
    end: int = 0
    reads: list[tuple[int, int]] = field(default_factory=list)

    def read_rows(self, _spark: object, first: int, end: int) -> Iterator[Any]:
        self.reads.append((first, end))
        yield from (row for row in self.rows if max(first, self.first) <= row["offset"] < end)


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    log = Log()
    monkeypatch.setattr(KafkaAdmin, "list_stable_offsets", lambda *_: {("bank.commits", 0): log.end})
    monkeypatch.setattr(KafkaAdmin, "list_first_offsets", lambda *_: {("bank.commits", 0): log.first})
    monkeypatch.setattr(CommitTopic, "read_rows", lambda _self, *what: log.read_rows(*what))
    return log


def make_topics(refused: list[Refused] | None = None) -> SoleTopics:
    judge = (refused if refused is not None else []).append
    return SoleTopics(KafkaAdmin(SPARK, Kafka("nowhere")), cast("Registry", None), "bank", judge)


def take_batch(topics: SoleTopics, rows: int, ranges: int) -> list[int]:
    limit = topics.find_limit(rows, ranges)
    batch = topics.find_records(limit)
    assert batch is not None
    topics.advance_to(limit)
    return [record.sequence for record in batch]


def take_batches(topics: SoleTopics, rows: int = 100, ranges: int = 100) -> list[list[int]]:
    batches = []
    while batch := take_batch(topics, rows, ranges):
        batches.append(batch)
    return batches


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 9)), max_size=30), st.integers(1, 60), st.integers(1, 20))
def test_batches_are_all_commits_in_order_and_bounded(sizes: list[tuple[int, int]], rows: int, ranges: int) -> None:
    topics = make_topics()
    assert topics.take_commits([commit_row(n, *size) for n, size in enumerate(sizes, 1)])
    batches = take_batches(topics, rows, ranges)
    assert [n for batch in batches for n in batch] == list(range(1, len(sizes) + 1))
    for batch in batches:
        assert len(batch) == 1 or sum(sizes[n - 1][0] for n in batch) <= rows
        assert len(batch) == 1 or sum(sizes[n - 1][1] for n in batch) <= ranges


def test_a_batch_ends_before_a_gap() -> None:
    topics = make_topics()
    topics.start_from(0, UNKNOWN, NO_COMMIT)
    assert topics.take_commits([commit_row(n) for n in (4, 5, 7, 8, 10)])
    assert take_batches(topics) == [[4, 5], [7, 8], [10]]


def test_a_read_ends_where_there_is_no_room_and_the_next_goes_on(monkeypatch: pytest.MonkeyPatch, log: Log) -> None:
    monkeypatch.setattr(member_topics, "RANGES_PER_BATCH", 10)
    log.rows, log.end = [commit_row(n, 1, 4) for n in range(1, 6)], 12
    log.rows[2] = commit_row(3, 1, 50)
    topics, batches = make_topics(), []
    while not topics.read(SPARK):
        batches += take_batches(topics)
    assert [*batches, *take_batches(topics)] == [[1, 2], [3], [4, 5]], "one alone has room, however large it is"
    assert log.reads == [(0, 12), (4, 12), (6, 12)]
    assert topics.read(SPARK)
    assert len(log.reads) == 3, "nothing is new"


def test_where_there_is_no_room_a_read_has_no_more_offsets(monkeypatch: pytest.MonkeyPatch, log: Log) -> None:
    monkeypatch.setattr(member_topics, "RANGES_PER_BATCH", 2)
    monkeypatch.setattr(member_topics, "_OFFSETS_PER_READ", 8)
    log.rows, log.end = [commit_row(n) for n in range(1, 8)], 16
    topics, batches = make_topics(), []
    while not topics.read(SPARK):
        batches += take_batches(topics)
    assert [*batches, *take_batches(topics)] == [[1, 2], [3, 4], [5, 6], [7]]
    assert log.reads == [(0, 8), (4, 12), (8, 16), (12, 16)]


def test_a_read_has_a_bounded_number_of_offsets(monkeypatch: pytest.MonkeyPatch, log: Log) -> None:
    """Between are more aborted records than one read has."""
    monkeypatch.setattr(member_topics, "_OFFSETS_PER_READ", 10)
    log.rows, log.first, log.end = [commit_row(n) for n in (7, 8, 30)], 14, 62
    topics, batches = make_topics(), []
    while not topics.read(SPARK):
        batches += take_batches(topics)
    assert [*batches, *take_batches(topics)] == [[7, 8], [30]]
    assert log.reads == [(14, 24), (16, 34), (16, 44), (16, 54), (16, 62)]


@pytest.mark.parametrize(("first", "is_judged"), [(0, False), (9, True)], ids=["never any", "retention took all"])
def test_a_topic_without_a_commit_record_is_judged_once(log: Log, first: int, is_judged: bool) -> None:
    """More aborted records, which have offsets, say nothing of retention."""
    log.first = log.end = first
    refused: list[Refused] = []
    topics = make_topics(refused)
    for _ in range(3):
        assert topics.read(SPARK)
        log.end += 2
    assert ["retention has removed all that there were" in str(each) for each in refused] == [True] * is_judged
    log.rows, log.end = [commit_row(8)], 18
    assert topics.read(SPARK)
    assert take_batches(topics) == [[8]]


@pytest.mark.parametrize(("first", "is_judged"), [(202, False), (240, True)], ids=["idle", "retention took others"])
def test_commit_records_that_retention_took_behind_the_last_one_are_judged(
    log: Log, first: int, is_judged: bool
) -> None:
    log.first = log.end = first
    refused: list[Refused] = []
    topics = make_topics(refused)
    topics.start_from(100, 200, CommitIdentity(100, 1000, 100, "s"))
    assert topics.read(SPARK)
    assert ["behind 100 any more" in str(each) for each in refused] == [True] * is_judged


def test_another_stream_is_refused(log: Log) -> None:
    """After a restart, whatever its commit records are."""
    log.rows, log.end = [commit_row(n) for n in (1, 2, 3)], 8
    topics = make_topics()
    assert topics.read(SPARK)
    assert take_batches(topics) == [[1, 2, 3]]
    for many in range(1, 6):
        log.rows, log.end = [commit_row(n, stream_id="next") for n in range(1, many)], 2 * many
        restarted = make_topics()
        restarted.start_from(3, 6, topics._known)
        with pytest.raises(Refused, match="the topics of this prefix were recreated"):
            restarted.read(SPARK)
