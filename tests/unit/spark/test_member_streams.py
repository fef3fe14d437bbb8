"""What a frontier has seen of a stream that a member no longer has says nothing of the new one."""

from __future__ import annotations

from typing import Any, cast

from twofold_common.global_cut import Frontier
from twofold_spark.sources.kafka_client import Kafka, KafkaAdmin
from twofold_spark.sources.member_topics import MemberTopics


def take_frontier(*seen: tuple[str, int, str]) -> MemberTopics:
    topics = MemberTopics(KafkaAdmin(cast("Any", None), Kafka("nowhere")), "west")
    rows: Any = [
        {
            "sequence": 7,
            "lsn": 100,
            "offset": 3,
            "in_doubt": [],
            "seen": [{"prefix": p, "sequence": n, "stream_id": s} for p, n, s in seen],
        }
    ]
    topics.take_frontiers(rows)
    return topics


def seen(topics: MemberTopics, **streams: str) -> object:
    frontier = topics.as_member(streams).frontier
    assert isinstance(frontier, Frontier)
    return frontier.seen


def test_a_number_counts_for_its_own_stream_alone() -> None:
    topics = take_frontier(("east", 500, "former"), ("north", 4, "north's"))
    assert seen(topics, east="former", north="north's") == {"east": 500, "north": 4}
    assert seen(topics, east="new", north="north's") == {"north": 4}
    assert seen(topics, north="north's") == {"north": 4}, "nothing was read of the east"
