"""Topics: made as configured where they are missing; where they are, checked and never changed.

Whatever is wrong with a topic is found here, before a row is written, and told with the command that mends it. A topic that is pinned and gone is refused, not made again: its rows are gone, and
an empty topic of the same name would hide that.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable

from confluent_kafka import KafkaError
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from twofold.errors import Refused, SetupError, Unreachable
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
from twofold.sink.topic_rules import (
    ExistingTopic,
    RequiredTopic,
    TopicConfig,
    TopicPolicy,
    check,
    check_retention,
    deleted,
)

_UNACCEPTABLE = {
    KafkaError.INVALID_REPLICATION_FACTOR,
    KafkaError.INVALID_PARTITIONS,
    KafkaError.INVALID_CONFIG,
    KafkaError.POLICY_VIOLATION,
}
"""Why Kafka will not make a topic however often it is asked."""


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

    def ensure(self, wanted: Iterable[RequiredTopic]) -> dict[str, int]:
        """Make what is missing, check what is there. Returns each topic's partitions: an existing table's topic keeps its own."""
        asked = {w.name: w for w in wanted}
        found = self._describe(asked)
        for name, topic in found.items():
            check(asked[name], topic, self._policy)
            self._replicated = True
        for name in self._absent(w.name for w in asked.values() if w.pinned and w.name not in found):
            raise deleted(asked[name])
        missing = [w for w in asked.values() if w.name not in found]
        if missing:
            self._create(missing)
            made = self._await_made([w.name for w in missing])
            for name, topic in made.items():
                check(asked[name], topic, self._policy)  # somebody else may have made it a moment ago
            found |= made
        check_retention(asked, found)
        return {name: topic.partitions for name, topic in found.items()}

    def mismatched(self, wanted: Collection[RequiredTopic]) -> list[tuple[str, Refused]]:
        """Those that are there and are not as they must be, each with what would be said of it."""
        found = self._describe({w.name for w in wanted}) if wanted else {}
        refusals = []
        for w in wanted:
            try:
                if w.name in found:
                    check(w, found[w.name], self._policy)
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
        told = TopicConfig(f"broker {broker}", {name: entry.value for name, entry in config.items()})
        return int(told["transaction.max.timeout.ms"])

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

    def _describe(self, names: Collection[str]) -> dict[str, ExistingTopic]:
        deadline = time.monotonic() + self._timeout_s
        while (found := self._look(names)) is None:
            if time.monotonic() > deadline:
                raise Unreachable("Kafka lists topics that its brokers do not know; look into its controller's log")
            time.sleep(PAUSE_S)
        return found

    def _look(self, names: Collection[str]) -> dict[str, ExistingTopic] | None:
        """None: one broker lists a topic that another does not know, yet or any more; a moment later they agree."""
        with sorted_errors(f"reading the topics at {self._bootstrap}"):
            topics = cluster_metadata(self._admin, self._timeout_s).topics
            there = {name: topics[name] for name in names if name in topics and topics[name].partitions}
            resources = [ConfigResource(ResourceType.TOPIC, name) for name in there]
            futures = self._admin.describe_configs(resources, request_timeout=self._timeout_s) if resources else {}
            errors = [kafka_error_of(future.exception()) for future in futures.values()]
            if any(error is not None and error.code() == UNKNOWN_TOPIC for error in errors):
                return None
            configs = {
                r.name: TopicConfig(f"topic {r.name}", {k: e.value for k, e in f.result().items()})
                for r, f in futures.items()
            }
        return {
            name: ExistingTopic(len(t.partitions), min(len(p.replicas) for p in t.partitions.values()), configs[name])
            for name, t in there.items()
        }

    def _create(self, missing: list[RequiredTopic]) -> None:
        policy = self._policy
        new = [NewTopic(w.name, w.partitions, policy.replication, config=policy.config(w.kind)) for w in missing]
        with sorted_errors("making topics"):
            for name, future in self._admin.create_topics(new, request_timeout=self._timeout_s).items():
                error = future.exception()
                if error is None:
                    continue
                found = kafka_error_of(error)
                if found is not None and found.code() == TOPIC_EXCEPTION:
                    raise SetupError(
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
                raise SetupError(
                    f"Kafka does not make the topic {name}: {found.str()}; make it by hand, or mend kafka.replication ({self._policy.replication})"
                ) from error

    def _await_made(self, names: list[str]) -> dict[str, ExistingTopic]:
        """A topic is in every broker's metadata a moment after it was made."""
        deadline = time.monotonic() + self._timeout_s
        while len(found := self._describe(names)) < len(names):
            if time.monotonic() > deadline:
                raise Unreachable(
                    f"Kafka made the topics {', '.join(set(names) - set(found))} and does not show them; look into its controller's log"
                )
            time.sleep(PAUSE_S)
        return found
