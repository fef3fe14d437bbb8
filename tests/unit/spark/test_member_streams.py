"""What a frontier says of commit records that cannot be read, and of a stream that is gone."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, cast

import pytest

from twofold_common.global_cut import CommittedBranch, Frontier
from twofold_spark.errors import Refused
from twofold_spark.sources.commit_records import CommitIdentity
from twofold_spark.sources.kafka_client import Kafka, KafkaAdmin
from twofold_spark.sources.kafka_reader import EARLIEST
from twofold_spark.sources.member_topics import MemberTopics


def make_topics() -> MemberTopics:
    return MemberTopics(KafkaAdmin(cast("Any", None), Kafka("nowhere")), "west")


def frontier_row(
    *seen: tuple[str, int, str], sequence: int = 7, offset: int = 3, gid_patterns: Sequence[str] = ()
) -> Any:
    return {
        "sequence": sequence,
        "lsn": 100,
        "offset": offset,
        "in_doubt": [],
        "gid_patterns": gid_patterns,
        "seen": [{"prefix": p, "sequence": n, "stream_id": s} for p, n, s in seen],
    }


def take_frontier(*seen: tuple[str, int, str]) -> MemberTopics:
    topics = make_topics()
    topics.take_frontiers([frontier_row(*seen)])
    return topics


def seen(topics: MemberTopics, **streams: str) -> object:
    frontier = topics.as_member(streams).frontier
    assert isinstance(frontier, Frontier)
    return frontier.seen


@pytest.mark.parametrize(("cut", "missing"), [(0, "1 to 7"), (5, "6 to 7"), (7, None)])
def test_commit_records_that_a_frontier_knows_and_kafka_does_not_have_are_refused(
    monkeypatch: pytest.MonkeyPatch, cut: int, missing: str | None
) -> None:
    monkeypatch.setattr(KafkaAdmin, "list_first_offsets", lambda *_: {("west.commits", 0): 100})
    topics = take_frontier()
    topics.start_from(cut, 2 * cut, CommitIdentity(cut, cut, cut, "s"))
    with pytest.raises(Refused, match=f"commit records {missing} of west") if missing else nullcontext():
        topics.take_commits([])


def test_frontiers_of_a_topic_that_was_made_again_are_read_from_its_beginning() -> None:
    topics = take_frontier(("east", 4, "s"))
    assert topics.find_first_frontier(9) == 4
    assert topics.find_first_frontier(2) == EARLIEST, "it ends before the last frontier that was read"
    assert seen(topics, east="s") == {"east": 4}, "the former one counts until then"
    topics.take_frontiers([frontier_row(("east", 5, "s"), offset=0)])
    assert (topics.find_first_frontier(2), seen(topics, east="s")) == (1, {"east": 5})


def test_a_number_counts_for_its_own_stream_alone() -> None:
    topics = take_frontier(("east", 500, "former"), ("north", 4, "north's"))
    assert seen(topics, east="former", north="north's") == {"east": 500, "north": 4}
    assert seen(topics, east="new", north="north's") == {"north": 4}
    assert seen(topics, north="north's") == {"north": 4}, "nothing was read of the east"


def test_branches_have_the_names_that_the_last_frontier_gives_them() -> None:
    """Behind other patterns of gids a commit record has names by which nothing is in doubt."""
    topics = make_topics()
    commit: Any = {
        **dict.fromkeys(("sequence", "applied_lsn", "us"), 1),
        "offset": 0,
        "stream_id": "s",
        "kind": "batch",
        "backfilling": [],
        "loaded_topics": [],
        "rows": 3,
        "range_count": 1,
        "gids": ["t-1", "u-1", "1_YQ==_Yg=="],
        "global_ids": ["t-1", None, "1:a"],
    }
    topics.take_commits([commit])
    assert [name for _, name in topics.as_member({}).branches] == ["t-1", "1:a"]
    topics.take_frontiers([frontier_row(sequence=1, gid_patterns=[r"(?P<branch>\w)-(?P<global>\d)"])])
    topics.take_commits([commit, commit | dict.fromkeys(("sequence", "applied_lsn", "us", "offset"), 2)])
    assert topics.as_member({}).branches == (
        *(CommittedBranch(1, name) for name in ("1", "1", "1:a")),
        *(CommittedBranch(2, name) for name in ("1", "1", "1:a")),
    )
