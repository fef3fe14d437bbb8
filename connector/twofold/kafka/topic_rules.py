"""The rules for topics: the settings of a new topic, and the checks of an existing one.

Pure: `topics` queries Kafka. Each refusal names the command that repairs the topic. Nothing here
changes a topic.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from twofold.errors import RESET_REPAIR, Refused, SetupError, UsageError
from twofold.kafka.record_sizes import RECORD_BYTES
from twofold_avro.records import Pin
from twofold_common.table_names import table_argument

Kind = Literal["table", "events", "messages", "commits", "progress", "prepared", "frontiers"]

_COMPACTED: frozenset[Kind] = frozenset({"progress", "prepared", "frontiers"})
_BOOKKEEPING: frozenset[Kind] = _COMPACTED | {"commits"}
_SMALL_SEGMENTS = {
    # One key is written at every commit, and the active segment is never compacted: small segments
    # keep recovery's read short.
    "cleanup.policy": "compact",
    "segment.bytes": str(8 << 20),
    "min.cleanable.dirty.ratio": "0.1",
    "max.compaction.lag.ms": str(3_600_000),
}
_INDEXED_BYTES = str(256 << 10)
"""A broker writes two index entries after so many bytes of a partition. By Kafka's default, 4 KiB,
that is after nearly each record batch. Where partitions are many and new, the first entries were
two thirds of the broker's work. Who seeks reads as many bytes of headers.
"""
_CREATED_TOPICS, _CREATED_PARTITIONS = 200, 2_000
"""The most topics and partitions in one request. Kafka accepts four times as many, but shows none
before it has made all.
"""
_DAY_MS = 86_400_000
_ROLL_MS = 8 * _DAY_MS
"""The additional retention of commit records. A row outlives its retention until its segment is
rolled, after 7 days at most by default, and commit records outlive the row.
"""


@dataclass(frozen=True, slots=True)
class TopicPolicy:
    """The settings of new topics, and the minimum for existing ones."""

    replication: int = 3
    min_insync_replicas: int = 2
    retention_ms: int = 7 * _DAY_MS
    """The retention of topics with rows; -1 keeps all. Commit records are kept longer."""

    def __post_init__(self) -> None:
        if not 1 <= self.min_insync_replicas <= self.replication:
            raise UsageError(
                f"kafka.min_insync_replicas is {self.min_insync_replicas} and kafka.replication is {self.replication}, so nothing could be written:"
                " set kafka.min_insync_replicas to at least 1 and at most kafka.replication"
            )

    def config(self, kind: Kind) -> dict[str, str]:
        """Return the settings of a new topic."""
        # The brokers' clock, and not that of the machine which happens to carry: retention goes by
        # it, and brokers refuse a record whose own time is far from theirs.
        common = {
            "min.insync.replicas": str(self.min_insync_replicas),
            "message.timestamp.type": "LogAppendTime",
            "index.interval.bytes": _INDEXED_BYTES,
        }
        if kind in _BOOKKEEPING:
            common["max.message.bytes"] = str(RECORD_BYTES)
        if kind in _COMPACTED:
            return {**common, **_SMALL_SEGMENTS}
        kept = self.retention_ms + (_ROLL_MS if kind == "commits" and self.retention_ms >= 0 else 0)
        return {**common, "cleanup.policy": "delete", "retention.ms": str(kept), "retention.bytes": "-1"}


@dataclass(frozen=True, slots=True)
class RequiredTopic:
    """A topic that must exist."""

    name: str
    kind: Kind
    partitions: int = 1
    pinned: bool = False
    """The topic existed before, with these partitions: its rows cannot be restored without a
    reload."""
    id: str | None = None
    """The id that it had then, if that is known."""
    table: str = ""
    """`schema.table`, for the command in a message."""

    @classmethod
    def of_pin(cls, topic: str, pin: Pin) -> RequiredTopic:
        """Return the topic that the pin requires."""
        name = table_argument(pin.schema, pin.table)
        return cls(topic, "table", pin.partitions, pinned=True, id=pin.topic_id, table=name)

    @property
    def reload(self) -> str:
        return f"twofold backfill start {self.table}"


@dataclass(frozen=True, slots=True)
class BrokerLimits:
    """The brokers' limits."""

    transaction_timeout_s: float
    request_bytes: int | None
    """The largest request; None: the brokers do not tell."""


def split_for_creation(missing: Sequence[RequiredTopic]) -> Iterator[list[RequiredTopic]]:
    """Yield the topics in batches that Kafka creates with one request.

    Kafka's controller refuses a request that makes more than 10,000 records: one for each topic,
    each of its settings and each of its partitions.
    """
    few: list[RequiredTopic] = []
    partitions = 0
    for required in missing:
        if few and (len(few) == _CREATED_TOPICS or partitions + required.partitions > _CREATED_PARTITIONS):
            yield few
            few, partitions = [], 0
        few.append(required)
        partitions += required.partitions
    if few:
        yield few


class TopicConfig:
    """The settings of a topic or a broker as Kafka reports them; some services omit some."""

    def __init__(self, owner: str, reported: Mapping[str, str]) -> None:
        self._owner = owner
        self._reported = reported

    def __getitem__(self, name: str) -> str:
        value = self._reported.get(name)
        if value is None:
            raise SetupError(
                f"Kafka does not report {name} of {self._owner}, which the connector must know before it writes:"
                " grant DescribeConfigs, or ask Kafka's operator to expose the setting"
            )
        return value


class KnownTopic(NamedTuple):
    """What a pin keeps of a topic."""

    partitions: int
    id: str | None = None
    """Kafka's identity of the topic: one of its name that is made later has another. None: the
    brokers do not tell."""


@dataclass(frozen=True, slots=True)
class ExistingTopic:
    """A topic as Kafka describes it."""

    known: KnownTopic
    replication: int
    config: TopicConfig

    @property
    def partitions(self) -> int:
        return self.known.partitions


def is_another(required: RequiredTopic, topic: ExistingTopic) -> bool:
    """Whether the pinned topic was deleted, and made again under its name."""
    return required.id is not None and topic.known.id not in {None, required.id}


def check(required: RequiredTopic, topic: ExistingTopic, policy: TopicPolicy) -> None:
    """Raise the refusal of a topic that breaks its rules."""
    compacted = "compact" in topic.config["cleanup.policy"]
    if compacted != (required.kind in _COMPACTED) or (
        required.kind in _COMPACTED and topic.config["cleanup.policy"] != "compact"
    ):
        should = "compact" if required.kind in _COMPACTED else "delete"
        raise Refused(
            f"the topic {required.name} has cleanup.policy={topic.config['cleanup.policy']}, but must have {should}",
            at_stake="compaction deletes rows that consumers have not read yet"
            if compacted
            else "retention deletes records that recovery must read: rows would be lost or repeated",
            repair=_alter(required.name, f"cleanup.policy={should}")
            + (
                f"; rows may have been deleted already, so then run {required.reload}"
                if required.kind == "table" and compacted
                else ""
            ),
        )
    if is_another(required, topic):
        raise made_again(required)
    own = required.kind in {"table", "events"} and not required.pinned
    expected = topic.partitions if own else required.partitions
    if topic.partitions != expected:
        raise Refused(
            f"the topic {required.name} has {topic.partitions} partitions, but must have {expected}"
            + (" as before" if required.pinned else ""),
            at_stake="rows of one key would lie in two partitions, and their order would be lost",
            repair=f"reload the table with the present partitions: {required.reload}"
            if required.kind == "table"
            else f"delete the topic {required.name} if nothing was written to it, or set another kafka.prefix",
        )
    if topic.replication < policy.replication or int(topic.config["min.insync.replicas"]) < policy.min_insync_replicas:
        raise SetupError(
            f"the topic {required.name} has {topic.replication} replicas and min.insync.replicas={topic.config['min.insync.replicas']}; the configuration requires"
            f" {policy.replication} and {policy.min_insync_replicas}: lower kafka.replication and kafka.min_insync_replicas, or reassign the topic's replicas and run"
            f" {_alter(required.name, f'min.insync.replicas={policy.min_insync_replicas}')}"
        )

    if required.kind in _BOOKKEEPING and int(topic.config["max.message.bytes"]) < RECORD_BYTES:
        raise SetupError(
            f"the topic {required.name} has max.message.bytes={topic.config['max.message.bytes']}, and one record about a wide transaction, or about many in doubt, may have"
            f" {RECORD_BYTES}: run {_alter(required.name, f'max.message.bytes={RECORD_BYTES}')}"
        )


def check_retention(asked: Mapping[str, RequiredTopic], found: Mapping[str, ExistingTopic]) -> None:
    """Refuse commit records that are kept for less time than their rows.

    A mirror finds the rows by the commit records.
    """

    def kept(kind: Kind, setting: str) -> dict[str, float]:
        values = {name: int(found[name].config[setting]) for name, required in asked.items() if required.kind == kind}
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


def _short(commits: str, problem: str, setting: str) -> Refused:
    return Refused(
        f"the topic {commits} {problem}",
        at_stake="a lagging mirror would miss rows that the topics still hold, because it finds them by the commit records",
        repair=_alter(commits, setting),
    )


def deleted(required: RequiredTopic) -> Refused:
    """Refuse to recreate a topic that was in use."""
    problem = f"the topic {required.name} was in use and is gone"
    if required.kind == "table":
        return _lost_rows(required, problem)
    return Refused(
        problem,
        at_stake="Twofold's record of its progress or its commits is lost with the topic",
        repair=f"restore this topic and all others of its prefix from the same moment, or start over: {RESET_REPAIR}",
    )


def made_again(required: RequiredTopic) -> Refused:
    """Refuse an empty topic in the place of one that was in use."""
    return _lost_rows(required, f"the topic {required.name} was deleted and made again")


def _lost_rows(required: RequiredTopic, problem: str) -> Refused:
    return Refused(
        problem, at_stake="its rows are lost to every consumer that had not read them", repair=required.reload
    )


def _alter(topic: str, setting: str) -> str:
    return f"kafka-configs --bootstrap-server ... --alter --topic {topic} --add-config {setting}"
