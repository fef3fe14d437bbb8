"""Outcomes of branches are believed of the members that the configuration names; what cannot be
read of theirs is named, and the rest is shown.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from fuzz.hostile_records import IDS, VALUES, Registry
from twofold.group.ledgers import Ledgers
from twofold.kafka.client import PARTITION_EOF
from twofold_avro.records import Commit, Prepared

ENTRY = next(value for value in VALUES if isinstance(value, Prepared))
COMMIT = next(value for value in VALUES if isinstance(value, Commit))


class Message:
    def __init__(self, topic: str, offset: int, value: bytes | None) -> None:
        self._said = topic, offset, value

    def topic(self) -> str:
        return self._said[0]

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._said[1]

    def value(self) -> bytes | None:
        return self._said[2]

    def error(self) -> Any:
        return None if self._said[2] is not None else SimpleNamespace(code=lambda: PARTITION_EOF)


class Kafka:
    """The topics of a cluster."""

    def __init__(self, topics: dict[str, list[bytes]]) -> None:
        self.topics = topics
        self.assigned: list[str] = []

    def list_topics(self, timeout: float) -> Any:
        return SimpleNamespace(topics=self.topics)

    def offsets_for_times(self, places: list[Any], timeout: float) -> list[Any]:
        return places

    def assign(self, places: list[Any]) -> None:
        self.assigned = [place.topic for place in places]

    def consume(self, *_: Any) -> list[Message]:
        found = [Message(t, n, value) for t in self.assigned for n, value in enumerate(self.topics[t])]
        return [*found, *(Message(topic, 9, None) for topic in self.assigned)]

    def close(self) -> None: ...


def test_other_prefixes_are_not_believed_and_garbage_is_named() -> None:
    mine = ENTRY.to_bytes(IDS[Prepared])
    committed = replace(ENTRY, state="committed", gid="evil").to_bytes(IDS[Prepared])
    outcome = COMMIT.to_bytes(IDS[Commit])
    kafka = Kafka(
        {
            "mine.prepared": [b"global garbage", mine],
            "mine.commits": [outcome, outcome[:-2]],
            "evil.prepared": [committed, b"garbage global"],
            "evil.commits": [outcome],
        }
    )
    secrets = SimpleNamespace(open=lambda *_: kafka)
    settings = SimpleNamespace(call_timeout_s=5.0, secrets=secrets, consumer=dict)
    found = Ledgers(cast("Any", settings), cast("Any", Registry()), ["mine", "west"]).branches(["global"], 0)
    assert {(each.prefix, each.gid, each.state) for each in found.found} == {("mine", "gid", "committed")}
    assert [each.partition(" cannot be read")[0] for each in found.unread] == [
        "mine.commits: the record in mine.commits [0] at offset 1",
        "mine.prepared: the record in mine.prepared [0] at offset 0",
    ]
