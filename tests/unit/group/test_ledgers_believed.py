"""Outcomes of branches are believed of the members that the configuration names; what cannot be
read of theirs is named, and the rest is shown.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from typing import Any, cast

import pytest

from fuzz.hostile_records import IDS, VALUES, Registry
from twofold.errors import SetupError, TwofoldError
from twofold.group import ledgers
from twofold.kafka.topic_reader import PartitionId, Stretches
from twofold_avro.records import Commit, Prepared

ENTRY = next(value for value in VALUES if isinstance(value, Prepared))
COMMIT = next(value for value in VALUES if isinstance(value, Commit))


class Message:
    def __init__(self, place: PartitionId, offset: int, value: bytes) -> None:
        self._said = place, offset, value

    def topic(self) -> str:
        return self._said[0].topic

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._said[1]

    def value(self) -> bytes:
        return self._said[2]

    def timestamp(self) -> tuple[int, int]:
        return 1, 5_000


class Reader:
    """The topics of a cluster; one of them may be read by nobody."""

    def __init__(self, topics: dict[str, list[bytes]], denied: str) -> None:
        self._topics, self._denied = topics, denied

    def partitions_of(self, topics: Collection[str]) -> list[PartitionId]:
        return [PartitionId(topic, 0) for topic in self._topics if topic in topics]

    def visible(self, places: Iterable[PartitionId]) -> dict[PartitionId, tuple[int, int]]:
        return {place: (0, len(self._topics[place.topic])) for place in places}

    def offsets_since(self, places: Iterable[PartitionId], _: int) -> dict[PartitionId, int]:
        return dict.fromkeys(places, 0)

    def read(self, stretches: Stretches, *, failed: dict[PartitionId, TwofoldError]) -> Iterator[Message]:
        for place, (start, end) in stretches.items():
            if place.topic == self._denied:
                failed[place] = SetupError("grant Read")
                continue
            yield from (Message(place, n, self._topics[place.topic][n]) for n in range(start, end))


def test_other_prefixes_are_not_believed_and_garbage_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = ENTRY.to_bytes(IDS[Prepared])
    committed = replace(ENTRY, state="committed", gid="evil").to_bytes(IDS[Prepared])
    outcome = COMMIT.to_bytes(IDS[Commit])
    topics = {
        "mine.prepared": [b"global garbage", mine],
        "mine.commits": [outcome, outcome[:-2]],
        "west.prepared": [mine],
        "west.commits": [],
        "east.commits": [outcome],
        "evil.prepared": [committed, b"garbage global"],
        "evil.commits": [outcome],
    }
    monkeypatch.setattr(ledgers, "TopicReader", lambda _: Reader(topics, "west.prepared"))
    believed = ["mine", "west", "east"]
    found = ledgers.Ledgers(cast("Any", None), cast("Any", Registry()), believed, ()).branches(["global"], 0)
    assert {(each.prefix, each.gid, each.state) for each in found.found} == {("mine", "gid", "committed")}
    assert [each.partition(" cannot be read")[0] for each in found.unread] == [
        "mine.commits: the record in mine.commits [0] at offset 1",
        "mine.prepared: the record in mine.prepared [0] at offset 0",
        "west.prepared: grant Read",
    ]


FORMER = replace(ENTRY, gid="again", prepare_lsn=100, xid=2)
LATER = replace(FORMER, prepare_lsn=200, xid=4, state="open")
FORMER_COMMIT = replace(COMMIT, prepared=(COMMIT.prepared[0]._replace(gid="again", prepare_lsn=100, xid=2),))


@pytest.mark.parametrize(
    ("ledger", "commits", "state"),
    [
        ([replace(FORMER, state="rolled_back"), LATER], [], "open"),
        ([LATER], [FORMER_COMMIT], "open"),
        ([LATER, replace(FORMER, state="committed")], [], "open"),
        ([replace(FORMER, state="rolled_back"), replace(LATER, state="rolled_back")], [FORMER_COMMIT], "rolled_back"),
        ([FORMER], [FORMER_COMMIT], "committed"),
    ],
)
def test_of_a_gid_that_is_used_again_the_last_prepare_counts(
    monkeypatch: pytest.MonkeyPatch, ledger: list[Prepared], commits: list[Commit], state: str
) -> None:
    topics = {
        "west.prepared": [entry.to_bytes(IDS[Prepared]) for entry in ledger],
        "west.commits": [record.to_bytes(IDS[Commit]) for record in commits],
    }
    monkeypatch.setattr(ledgers, "TopicReader", lambda _: Reader(topics, ""))
    found = ledgers.Ledgers(cast("Any", None), cast("Any", Registry()), ["west"], ()).branches(["global"], 0).found
    assert [(each.gid, each.state) for each in found] == [("again", state)]
