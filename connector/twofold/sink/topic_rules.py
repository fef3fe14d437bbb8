"""What a topic must be like: with which settings it is made, and what is wrong with one that is there. Pure: `topics` asks Kafka.

Each refusal names the command that mends it. Nothing here changes a topic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from twofold.errors import RESET_REPAIR, Refused, SetupError, UsageError

Kind = Literal["table", "messages", "commits", "progress", "prepared"]

_COMPACTED: frozenset[Kind] = frozenset({"progress", "prepared"})
_SMALL_SEGMENTS = {
    # One key is written at every commit, and the active segment is never compacted: small ones keep recovery's read short.
    "cleanup.policy": "compact",
    "segment.bytes": str(8 << 20),
    "min.cleanable.dirty.ratio": "0.1",
    "max.compaction.lag.ms": str(3_600_000),
}
_DAY_MS = 86_400_000
_ROLL_MS = 8 * _DAY_MS
"""A row stays beyond its retention until its segment is rolled, 7 days at most by default. Commit records outlive that."""


@dataclass(frozen=True, slots=True)
class TopicPolicy:
    """How topics are made, and the least that existing ones must offer."""

    replication: int = 3
    min_insync_replicas: int = 2
    retention_ms: int = 7 * _DAY_MS
    """Of the topics that hold rows; -1 keeps all. Commit records are kept longer."""

    def __post_init__(self) -> None:
        if not 1 <= self.min_insync_replicas <= self.replication:
            raise UsageError(
                f"kafka.min_insync_replicas is {self.min_insync_replicas} and kafka.replication {self.replication}:"
                " nothing could be written; use at least 1 and at most the replication"
            )

    def config(self, kind: Kind) -> dict[str, str]:
        """With what a topic is made."""
        common = {"min.insync.replicas": str(self.min_insync_replicas)}
        if kind in _COMPACTED:
            return {**common, **_SMALL_SEGMENTS}
        kept = self.retention_ms + (_ROLL_MS if kind == "commits" and self.retention_ms >= 0 else 0)
        return {**common, "cleanup.policy": "delete", "retention.ms": str(kept), "retention.bytes": "-1"}


@dataclass(frozen=True, slots=True)
class RequiredTopic:
    """A topic that must be there."""

    name: str
    kind: Kind
    partitions: int = 1
    pinned: bool = False
    """It was there before, with these partitions: rows lie in it that cannot be made again without a reload."""
    table: str = ""
    """`schema.table`, for the command in a message."""

    @property
    def reload(self) -> str:
        return f"twofold backfill start {self.table}"


class TopicConfig:
    """Settings of a topic or a broker as Kafka tells them. Services are known to leave some out."""

    def __init__(self, of: str, told: Mapping[str, str]) -> None:
        self._of = of
        self._told = told

    def __getitem__(self, name: str) -> str:
        value = self._told.get(name)
        if value is None:
            raise SetupError(
                f"Kafka does not tell {name} of {self._of}, which must be known before anything is written:"
                " grant DescribeConfigs, or ask who runs Kafka to show it"
            )
        return value


@dataclass(frozen=True, slots=True)
class ExistingTopic:
    """A topic as Kafka describes it."""

    partitions: int
    replication: int
    config: TopicConfig


def check(w: RequiredTopic, topic: ExistingTopic, policy: TopicPolicy) -> None:
    compacted = "compact" in topic.config["cleanup.policy"]
    if compacted != (w.kind in _COMPACTED) or (w.kind in _COMPACTED and topic.config["cleanup.policy"] != "compact"):
        should = "compact" if w.kind in _COMPACTED else "delete"
        raise Refused(
            f"the topic {w.name} has cleanup.policy={topic.config['cleanup.policy']}, and must have {should}",
            at_stake="compaction takes away rows that consumers have yet to read"
            if compacted
            else "retention takes away what recovery must read: rows would be lost or repeated",
            repair=_alter(w.name, f"cleanup.policy={should}")
            + (f"; then {w.reload}, for rows may be gone already" if w.kind == "table" and compacted else ""),
        )
    expected = 1 if w.kind != "table" else w.partitions if w.pinned else topic.partitions
    if topic.partitions != expected:
        raise Refused(
            f"the topic {w.name} has {topic.partitions} partitions, and must have {expected}"
            + (" as before" if w.pinned else ""),
            at_stake="rows of one key would lie in two partitions, and their order would be lost",
            repair=f"{w.reload} (it starts the table's topic anew)"
            if w.kind == "table"
            else f"delete the topic {w.name} if nothing was written to it, or choose another prefix",
        )
    if topic.replication < policy.replication or int(topic.config["min.insync.replicas"]) < policy.min_insync_replicas:
        raise SetupError(
            f"the topic {w.name} has {topic.replication} replicas and min.insync.replicas={topic.config['min.insync.replicas']}; the configuration asks for"
            f" {policy.replication} and {policy.min_insync_replicas}: {_alter(w.name, f'min.insync.replicas={policy.min_insync_replicas}')}, reassign its replicas, or lower"
            " kafka.replication and kafka.min_insync_replicas"
        )


def check_retention(asked: Mapping[str, RequiredTopic], found: Mapping[str, ExistingTopic]) -> None:
    """Commit records are kept at least as long as the rows they speak of: a mirror reads the rows by them."""

    def kept(kind: Kind, setting: str) -> dict[str, float]:
        values = {name: int(found[name].config[setting]) for name, w in asked.items() if w.kind == kind}
        return {name: float("inf") if value < 0 else value for name, value in values.items()}

    for commits, limit in kept("commits", "retention.bytes").items():
        if limit != float("inf"):
            raise _short(commits, f"keeps only {limit:.0f} bytes (retention.bytes)", "retention.bytes=-1")
    longest = max(kept("table", "retention.ms").values(), default=0.0)
    for commits, limit in kept("commits", "retention.ms").items():
        if limit < longest:
            raise _short(
                commits, f"keeps its records for {limit:.0f} ms, less than the tables' topics", "retention.ms=-1"
            )


def _short(commits: str, what: str, mend: str) -> Refused:
    return Refused(
        f"the topic {commits} {what}",
        at_stake="a mirror that lags would never learn where rows lie that are still there",
        repair=_alter(commits, mend),
    )


def deleted(w: RequiredTopic) -> Refused:
    what = f"the topic {w.name} was in use and is gone"
    if w.kind == "table":
        return Refused(what, at_stake="its rows are lost to every consumer that had not read them", repair=w.reload)
    return Refused(
        what,
        at_stake="what Twofold knew of its progress or its commits is lost with it",
        repair=f"restore it, and the other topics of its prefix from the same moment; or start over: {RESET_REPAIR}",
    )


def _alter(topic: str, setting: str) -> str:
    return f"kafka-configs --bootstrap-server ... --alter --topic {topic} --add-config {setting}"
