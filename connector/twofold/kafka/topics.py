"""Creates missing topics as configured; checks existing topics and never changes them.

Every problem of a topic is found here, before a row is written, and reported with the command that
repairs it. A pinned topic that no longer exists is refused, not recreated: its rows are lost, and
an empty topic of the same name would hide that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from confluent_kafka import KafkaError, TopicCollection, Uuid
from confluent_kafka.admin import ConfigResource, NewTopic, ResourceType, TopicMetadata  # type: ignore[attr-defined]

from twofold.errors import Refused, SetupError, Unreachable
from twofold.kafka.client import (
    TOPIC_ALREADY_EXISTS,
    TOPIC_EXCEPTION,
    UNKNOWN_TOPIC,
    KafkaSettings,
    error_code,
    kafka_error_of,
    sort_error,
    sorted_errors,
)
from twofold.kafka.metadata import PAUSE_S, cluster_metadata, existing_topics
from twofold.kafka.topic_rules import (
    BrokerLimits,
    ExistingTopic,
    KnownTopic,
    RequiredTopic,
    TopicConfig,
    TopicPolicy,
    check,
    check_retention,
    deleted,
    is_another,
    made_again,
    split_for_creation,
)

_UNACCEPTABLE = {
    TOPIC_EXCEPTION,
    KafkaError.INVALID_REPLICATION_FACTOR,
    KafkaError.INVALID_PARTITIONS,
    KafkaError.INVALID_CONFIG,
    KafkaError.POLICY_VIOLATION,
}
"""Errors that Kafka repeats however often it is asked to create the topic."""


_DESCRIBED = 200
"""The most topics in one request for settings."""


_SETTLED_S = 3.0
"""A broker that was frozen answers from its earlier state for a moment."""
_NO_ID = str(Uuid(0, 0))
"""The id of topics from brokers that have none."""
_NAMED = 3
"""The number of topics that a message names."""


class Topics:
    """The administrator's view.

    `AdminClient` stays referenced here while its futures run, as required.
    """

    def __init__(self, settings: KafkaSettings, policy: TopicPolicy) -> None:
        self._policy = policy
        self._bootstrap = settings.client["bootstrap.servers"]
        self._timeout_s = settings.call_timeout_s
        self._replicated = False
        """Whether a topic has the configured replicas: the cluster has enough brokers then."""
        self._admin = settings.open_admin()

    def ensure(
        self, wanted: Iterable[RequiredTopic], while_created: Callable[[], None] = lambda: None
    ) -> dict[str, KnownTopic]:
        """Create the missing topics, and check the existing ones.

        Return each topic as it is: an existing table's topic keeps its partitions. `while_created`
        is called once, while the brokers make the new topics.
        """
        asked = {required.name: required for required in wanted}
        existing = self._describe_known(asked)
        for name, topic in existing.items():
            check(asked[name], topic, self._policy)
            self._replicated = True
        for name in self._absent(
            required.name for required in asked.values() if required.pinned and required.name not in existing
        ):
            raise deleted(asked[name])
        missing = [required for required in asked.values() if required.name not in existing]
        if missing:
            for few in split_for_creation(missing):
                self._create(few)
        while_created()
        if missing:
            created = self._await_created([required.name for required in missing])
            for name, topic in created.items():
                check(asked[name], topic, self._policy)  # somebody else may have created it a moment ago
            existing |= created
        check_retention(asked, existing)
        return {name: topic.known for name, topic in existing.items()}

    def mismatched(self, wanted: Collection[RequiredTopic]) -> list[tuple[str, Refused]]:
        """Return the existing topics that break their rules, each with its refusal."""
        existing = self._describe_known({required.name: required for required in wanted}) if wanted else {}
        refusals = []
        for required in wanted:
            try:
                if required.name in existing:
                    check(required, existing[required.name], self._policy)
            except Refused as refusal:
                refusals.append((required.name, refusal))
        return refusals

    def lost(self, wanted: Collection[RequiredTopic]) -> list[tuple[str, Refused]]:
        """Return the pinned topics that were deleted, or also made again, each with its refusal.

        Settings are not asked for: status is asked often, and they are the larger answer.
        """
        asked = {required.name: required for required in wanted}
        deadline = time.monotonic() + _SETTLED_S
        while True:
            with sorted_errors(f"reading the topics at {self._bootstrap}"):
                ids = self._ids(asked)
            others = [each for name, each in asked.items() if each.id and ids.get(name) not in {None, each.id}]
            if not others or time.monotonic() > deadline:
                break
            time.sleep(PAUSE_S)
        absent = sorted(self._absent(asked.keys() - ids.keys()))
        return [
            *((name, deleted(asked[name])) for name in absent),
            *((required.name, made_again(required)) for required in others),
        ]

    def missing(self, names: Iterable[str]) -> set[str]:
        """Return the topics that do not exist."""
        wanted = set(names)
        return self._absent(wanted - self._describe(wanted).keys()) if wanted else wanted

    def broker_limits(self) -> BrokerLimits:
        """Return the brokers' limits that the configuration must respect."""
        with sorted_errors("reading the broker's configuration"):
            broker = min(cluster_metadata(self._admin, self._timeout_s).brokers)
            resource = ConfigResource(ResourceType.BROKER, str(broker))
            config = self._admin.describe_configs([resource], request_timeout=self._timeout_s)[resource].result()
        settings = TopicConfig(f"broker {broker}", {name: entry.value for name, entry in config.items()})
        request_bytes = config.get("socket.request.max.bytes")  # some services do not tell
        return BrokerLimits(
            int(settings["transaction.max.timeout.ms"]) / 1000,
            None if request_bytes is None else int(request_bytes.value),
        )

    def _absent(self, names: Iterable[str]) -> set[str]:
        """Return the topics that do not exist, of those that were not found.

        Unreachable: some of them exist, but the asked broker does not show them.
        """
        wanted = set(names)
        with sorted_errors("asking whether topics exist"):
            hidden = existing_topics(self._admin, wanted, self._timeout_s)
        if hidden:
            raise Unreachable(
                f"Kafka has {_some(hidden)} but does not show them: a broker is behind its controller, or this user may not describe them;"
                " wait and retry, or grant Describe on the prefix's topics"
            )
        return wanted

    def _describe_known(self, asked: Mapping[str, RequiredTopic]) -> dict[str, ExistingTopic]:
        """Describe the existing topics; an answer with another id than the pinned one counts only
        if it stays.
        """
        deadline, existing = time.monotonic() + _SETTLED_S, self._describe(asked)
        while any(is_another(asked[name], topic) for name, topic in existing.items()) and time.monotonic() < deadline:
            time.sleep(PAUSE_S)
            existing = self._describe(asked)
        return existing

    def _describe(self, names: Collection[str]) -> dict[str, ExistingTopic]:
        deadline = time.monotonic() + self._timeout_s
        while (existing := self._try_describe(names)) is None:
            if time.monotonic() > deadline:
                raise Unreachable("Kafka lists topics that its brokers do not know; see its controller's log")
            time.sleep(PAUSE_S)
        return existing

    def _try_describe(self, names: Collection[str]) -> dict[str, ExistingTopic] | None:
        """Describe the existing topics.

        None: one broker lists a topic that another does not know, yet or any more. A moment later
        the brokers agree.
        """
        with sorted_errors(f"reading the topics at {self._bootstrap}"):
            listed = self._list(names)
            configs, ids = dict[str, TopicConfig](), dict[str, str | None]()
            for few in _portions([*listed]):
                resources = [ConfigResource(ResourceType.TOPIC, name) for name in few]
                futures = self._admin.describe_configs(resources, request_timeout=self._timeout_s)
                described = self._ids(few)
                if len(described) < len(few) or UNKNOWN_TOPIC in [error_code(f.exception()) for f in futures.values()]:
                    return None
                for resource, future in futures.items():
                    settings = {name: entry.value for name, entry in future.result().items()}
                    configs[resource.name] = TopicConfig(f"topic {resource.name}", settings)
                ids |= described
        return {
            name: ExistingTopic(
                KnownTopic(len(t.partitions), ids[name]),
                min(len(p.replicas) for p in t.partitions.values()),
                configs[name],
            )
            for name, t in listed.items()
        }

    def _ids(self, names: Collection[str]) -> dict[str, str | None]:
        """Return the ids of the existing topics; None: the brokers do not tell."""
        ids = dict[str, str | None]()
        for few in _portions([*names]):
            described = self._admin.describe_topics(TopicCollection(few), request_timeout=self._timeout_s)
            for name, future in described.items():
                if error_code(future.exception()) != UNKNOWN_TOPIC:
                    told = str(future.result().topic_id)
                    ids[name] = None if told == _NO_ID else told
        return ids

    def _list(self, names: Collection[str]) -> dict[str, TopicMetadata]:
        """Return the topics of these names that exist, by one broker's view."""
        topics = cluster_metadata(self._admin, self._timeout_s).topics
        return {name: topics[name] for name in names if name in topics and topics[name].partitions}

    def _create(self, missing: list[RequiredTopic]) -> None:
        policy = self._policy
        new = [
            NewTopic(required.name, required.partitions, policy.replication, config=policy.config(required.kind))
            for required in missing
        ]
        with sorted_errors("creating topics"):
            for name, future in self._admin.create_topics(new, request_timeout=self._timeout_s).items():
                error = future.exception()
                kafka_error, code = kafka_error_of(error), error_code(error)
                if error is None or code == TOPIC_ALREADY_EXISTS:
                    continue
                if kafka_error is None or code not in _UNACCEPTABLE:
                    raise sort_error(error, f"creating the topic {name}") from error
                if code == TOPIC_EXCEPTION:
                    raise SetupError(
                        f"Kafka refuses to create the topic {name}: {kafka_error.str()}; names that differ only in . and _ collide: rename one of the two tables or remove it from the publication;"
                        " if it has rows in Kafka already, then run `twofold reset` and `twofold init`"
                    ) from error
                if code == KafkaError.INVALID_REPLICATION_FACTOR and self._replicated:
                    raise Unreachable(
                        f"Kafka cannot create the topic {name} now: {kafka_error.str()}; start the missing brokers"
                    ) from error
                raise SetupError(
                    f"Kafka refuses to create the topic {name}: {kafka_error.str()}; create it by hand, or correct kafka.replication ({self._policy.replication})"
                ) from error

    def _await_created(self, names: list[str]) -> dict[str, ExistingTopic]:
        """Wait until every broker's metadata has the new topics.

        A broker makes some hundred partitions a second, so each topic that appears begins the
        timeout again.
        """
        deadline, fewest = time.monotonic() + self._timeout_s, len(names) + 1
        while True:
            began = time.monotonic()
            with sorted_errors(f"reading the topics at {self._bootstrap}"):
                hidden = set(names) - self._list(names).keys()
            took_s = time.monotonic() - began
            if not hidden:  # settings are the larger answer: they are not asked for in vain
                existing = self._describe(names)
                hidden = set(names) - existing.keys()
            if not hidden:
                return existing
            if len(hidden) < fewest:
                deadline, fewest = time.monotonic() + self._timeout_s, len(hidden)
            if time.monotonic() > deadline:
                raise Unreachable(
                    f"Kafka created {_some(hidden)} but does not show them for {self._timeout_s:.0f} s; see its controller's log"
                )
            time.sleep(max(PAUSE_S, 4 * took_s))  # the broker that answers is the one that makes them


def _some(topics: set[str]) -> str:
    """Name topics, the first of many."""
    more = len(topics) - _NAMED
    names = ", ".join(sorted(topics)[:_NAMED])
    return f"the topics {names}" + (f" and {more} more" if more > 0 else "")


def _portions(names: list[str]) -> Iterator[list[str]]:
    """Yield the topics in parts whose settings are asked for together. An answer has about ten
    thousand bytes a topic, and takes ten times as much memory.
    """
    for start in range(0, len(names), _DESCRIBED):
        yield names[start : start + _DESCRIBED]
