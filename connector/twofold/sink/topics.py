"""Topics: made as configured where they are missing; where they are, checked and never changed.

Whatever is wrong with a topic is found here, before a row is written, and told with the command that mends it. A topic that is pinned and gone is refused, not made again: its rows are gone, and
an empty topic of the same name would hide that.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from confluent_kafka import KafkaError
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from twofold.errors import START_ANEW, MissingGround, Refused, Unreachable, UsageError
from twofold.sink.client import (
    TOPIC_ALREADY_EXISTS,
    TOPIC_EXCEPTION,
    UNKNOWN_TOPIC,
    KafkaSettings,
    kafka_error_of,
    sort_error,
    sorted_errors,
)
from twofold.sink.metadata import PAUSE_S, cluster_metadata, existing_topics

Kind = Literal["table", "messages", "commits", "progress", "prepared"]

_COMPACTED: frozenset[Kind] = frozenset({"progress", "prepared"})
_SMALL_SEGMENTS = {
    # One key is written at every commit, and the active segment is never compacted: small ones keep recovery's read short.
    "cleanup.policy": "compact",
    "segment.bytes": str(8 << 20),
    "min.cleanable.dirty.ratio": "0.1",
    "max.compaction.lag.ms": str(3_600_000),
}
_UNACCEPTABLE = {
    KafkaError.INVALID_REPLICATION_FACTOR,
    KafkaError.INVALID_PARTITIONS,
    KafkaError.INVALID_CONFIG,
    KafkaError.POLICY_VIOLATION,
}
"""Why Kafka will not make a topic however often it is asked."""
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
class Wanted:
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


@dataclass(frozen=True, slots=True)
class _Found:
    partitions: int
    replication: int
    config: Mapping[str, str]


class Topics:
    """The administrator's view. `AdminClient` stays referenced here while its futures run, as it must."""

    def __init__(self, settings: KafkaSettings, policy: TopicPolicy) -> None:
        self._policy = policy
        self._bootstrap = settings.client["bootstrap.servers"]
        self._timeout_s = settings.call_timeout_s
        self._replicated = False
        """A topic has as many replicas as are configured: the cluster has enough brokers, though some may be away."""
        with sorted_errors("making the admin client"):
            self._admin = AdminClient(settings.admin())

    def ensure(self, wanted: Iterable[Wanted]) -> dict[str, int]:
        """Make what is missing, check what is there. Returns each topic's partitions: an existing table's topic keeps its own."""
        asked = {w.name: w for w in wanted}
        found = self._describe(asked)
        for name, topic in found.items():
            _check(asked[name], topic, self._policy)
            self._replicated = True
        for name in self._absent(w.name for w in asked.values() if w.pinned and w.name not in found):
            raise _deleted(asked[name])
        missing = [w for w in asked.values() if w.name not in found]
        if missing:
            self._create(missing)
            made = self._await_made([w.name for w in missing])
            for name, topic in made.items():
                _check(asked[name], topic, self._policy)  # somebody else may have made it a moment ago
            found |= made
        _check_retention(asked, found)
        return {name: topic.partitions for name, topic in found.items()}

    def unlike(self, wanted: Collection[Wanted]) -> list[tuple[str, Refused]]:
        """Those that are there and are not as they must be, each with what would be said of it."""
        found = self._describe({w.name for w in wanted}) if wanted else {}
        refusals = []
        for w in wanted:
            try:
                if w.name in found:
                    _check(w, found[w.name], self._policy)
            except Refused as refusal:
                refusals.append((w.name, refusal))
        return refusals

    def missing(self, names: Iterable[str]) -> set[str]:
        """Those that are not there."""
        wanted = set(names)
        return self._absent(wanted - self._describe(wanted).keys()) if wanted else wanted

    def transaction_max_timeout_ms(self) -> int:
        """The broker's bound on a transaction's timeout: `kafka.transaction_timeout` must not be above it."""
        with sorted_errors("reading the broker's configuration"):
            broker = min(cluster_metadata(self._admin, self._timeout_s).brokers)
            resource = ConfigResource(ResourceType.BROKER, str(broker))
            config = self._admin.describe_configs([resource], request_timeout=self._timeout_s)[resource].result()
        return int(config["transaction.max.timeout.ms"].value)

    def _absent(self, names: Iterable[str]) -> set[str]:
        """Those of the topics not found that do not exist. Unreachable: some exist, and the broker that was asked does not show them."""
        wanted = set(names)
        with sorted_errors("asking whether topics exist"):
            hidden = existing_topics(self._admin, wanted, self._timeout_s)
        if hidden:
            raise Unreachable(
                f"Kafka has the topics {', '.join(sorted(hidden))} and does not show them: a broker is behind its controller, or we may not describe them"
                " (grant Describe on the prefix's topics)"
            )
        return wanted

    def _describe(self, names: Collection[str]) -> dict[str, _Found]:
        deadline = time.monotonic() + self._timeout_s
        while (found := self._look(names)) is None:
            if time.monotonic() > deadline:
                raise Unreachable("Kafka lists topics that its brokers do not know; look into its controller's log")
            time.sleep(PAUSE_S)
        return found

    def _look(self, names: Collection[str]) -> dict[str, _Found] | None:
        """None: one broker lists a topic that another does not know, yet or any more; a moment later they agree."""
        with sorted_errors(f"reading the topics at {self._bootstrap}"):
            topics = cluster_metadata(self._admin, self._timeout_s).topics
            there = {name: topics[name] for name in names if name in topics and topics[name].partitions}
            resources = [ConfigResource(ResourceType.TOPIC, name) for name in there]
            futures = self._admin.describe_configs(resources, request_timeout=self._timeout_s) if resources else {}
            errors = [kafka_error_of(future.exception()) for future in futures.values()]
            if any(error is not None and error.code() == UNKNOWN_TOPIC for error in errors):
                return None
            configs = {r.name: {k: e.value for k, e in f.result().items()} for r, f in futures.items()}
        return {
            name: _Found(len(t.partitions), min(len(p.replicas) for p in t.partitions.values()), configs[name])
            for name, t in there.items()
        }

    def _create(self, missing: list[Wanted]) -> None:
        policy = self._policy
        new = [NewTopic(w.name, w.partitions, policy.replication, config=policy.config(w.kind)) for w in missing]
        with sorted_errors("making topics"):
            for name, future in self._admin.create_topics(new, request_timeout=self._timeout_s).items():
                error = future.exception()
                if error is None:
                    continue
                found = kafka_error_of(error)
                if found is not None and found.code() == TOPIC_EXCEPTION:
                    raise MissingGround(
                        f"Kafka does not make the topic {name}: {found.str()}; it takes . and _ in names for the same: rename one of the two tables or take it out of the publication,"
                        " and if rows were written to it already, twofold reset and twofold init after that"
                    ) from error
                if found is not None and found.code() == TOPIC_ALREADY_EXISTS:
                    continue
                if found is not None and found.code() == KafkaError.INVALID_REPLICATION_FACTOR and self._replicated:
                    raise Unreachable(
                        f"Kafka cannot make the topic {name} now: {found.str()}; start the brokers that are away"
                    ) from error
                if found is None or found.code() not in _UNACCEPTABLE:
                    raise sort_error(error, f"making the topic {name}") from error
                raise MissingGround(
                    f"Kafka does not make the topic {name}: {found.str()}; make it by hand, or mend kafka.replication ({self._policy.replication})"
                ) from error

    def _await_made(self, names: list[str]) -> dict[str, _Found]:
        """A topic is in every broker's metadata a moment after it was made."""
        deadline = time.monotonic() + self._timeout_s
        while len(found := self._describe(names)) < len(names):
            if time.monotonic() > deadline:
                raise Unreachable(
                    f"Kafka made the topics {', '.join(set(names) - set(found))} and does not show them; look into its controller's log"
                )
            time.sleep(PAUSE_S)
        return found


def _check(w: Wanted, topic: _Found, policy: TopicPolicy) -> None:
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
        raise MissingGround(
            f"the topic {w.name} has {topic.replication} replicas and min.insync.replicas={topic.config['min.insync.replicas']}; the configuration asks for"
            f" {policy.replication} and {policy.min_insync_replicas}: {_alter(w.name, f'min.insync.replicas={policy.min_insync_replicas}')}, reassign its replicas, or lower"
            " kafka.replication and kafka.min_insync_replicas"
        )


def _check_retention(asked: Mapping[str, Wanted], found: Mapping[str, _Found]) -> None:
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


def _deleted(w: Wanted) -> Refused:
    what = f"the topic {w.name} was in use and is gone"
    if w.kind == "table":
        return Refused(what, at_stake="its rows are lost to every consumer that had not read them", repair=w.reload)
    return Refused(
        what,
        at_stake="what Twofold knew of its progress or its commits is lost with it",
        repair=f"restore it, and the other topics of its prefix from the same moment; or start anew: {START_ANEW}",
    )


def _alter(topic: str, setting: str) -> str:
    return f"kafka-configs --bootstrap-server ... --alter --topic {topic} --add-config {setting}"
