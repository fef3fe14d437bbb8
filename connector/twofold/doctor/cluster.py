"""Kafka as the checks see it: brokers, the prefix's topics, and the rights on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    ResourceType,
)

from twofold.config import Config
from twofold.doctor.kafka_service import APACHE_KAFKA, KafkaService, recognise
from twofold.errors import SetupError
from twofold.kafka.client import sorted_errors
from twofold.kafka.kafka_settings import kafka_settings, names_of
from twofold.kafka.metadata import ask_brokers, existing_topics
from twofold.kafka.names import Names

CALL_S_MAX = 10.0


@dataclass(frozen=True, slots=True)
class Topic:
    name: str
    partitions: int
    replicas: int
    """The fewest that a partition has; `in_sync` likewise."""
    in_sync: int
    leaderless: int
    config: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Cluster:
    """Kafka at one moment."""

    config: Config
    names: Names
    brokers: int
    broker_config: Mapping[str, str]
    """Empty if we may not see it."""
    topics: Mapping[str, Topic]
    """The prefix's topics that this user may see."""
    may: Mapping[str, frozenset[str]]
    """Our rights on each of them."""
    principal: str
    hidden: frozenset[str] = frozenset()
    """Topics of the bookkeeping that exist and are not shown."""
    service: KafkaService = APACHE_KAFKA

    @property
    def tables(self) -> list[Topic]:
        return [topic for name, topic in self.topics.items() if name not in self.names.own]


def describe_cluster(config: Config) -> Cluster:
    """Ask Kafka; raise an error that says why it cannot be asked."""
    call_s = min(config.kafka.call_timeout, CALL_S_MAX)
    settings = kafka_settings(config)
    admin, metadata = ask_brokers(settings, call_s)
    with sorted_errors("looking at the cluster"):
        found = {name: topic for name, topic in metadata.topics.items() if name.startswith(f"{config.prefix}.")}
        hidden = _hidden(admin, call_s, names_of(config), found)
        broker = ConfigResource(ResourceType.BROKER, str(min(metadata.brokers)))
        may = _rights(admin, call_s, list(found))
        readable = [name for name, operations in may.items() if "DESCRIBE_CONFIGS" in operations]
        configs = _configs(admin, call_s, [broker, *(ConfigResource(ResourceType.TOPIC, name) for name in readable)])
    topics = {
        name: Topic(
            name,
            len(topic.partitions),
            min((len(p.replicas) for p in topic.partitions.values()), default=0),
            min((len(p.isrs) for p in topic.partitions.values()), default=0),
            sum(p.leader < 0 for p in topic.partitions.values()),
            configs[name],
        )
        for name, topic in found.items()
        if name in configs
    }
    principal = str(settings.client.get("sasl.username", "<principal>"))
    service = recognise(
        metadata.cluster_id,
        [*config.kafka.bootstrap.split(","), *(f"{each.host}:{each.port}" for each in metadata.brokers.values())],
    )
    return Cluster(
        config,
        names_of(config),
        len(metadata.brokers),
        configs.get(broker.name, {}),
        topics,
        may,
        principal,
        hidden,
        service,
    )


def _hidden(admin: AdminClient, call_s: float, names: Names, found: Mapping[str, Any]) -> frozenset[str]:
    """Return topics that exist and are not shown: the broker is behind, or hides them."""
    try:
        return frozenset(existing_topics(admin, names.own - found.keys(), call_s))
    except SetupError:
        return frozenset()  # we may not create topics, and so cannot ask: the rights are looked at by themselves


def _rights(admin: AdminClient, call_s: float, topics: list[str]) -> dict[str, frozenset[str]]:
    if not topics:
        return {}
    asked = admin.describe_topics(TopicCollection(topics), include_authorized_operations=True, request_timeout=call_s)
    return {
        name: frozenset(operation.name for operation in future.result().authorized_operations or ())
        for name, future in asked.items()
    }


def _configs(admin: AdminClient, call_s: float, resources: list[Any]) -> dict[str, dict[str, str]]:
    # One request for a broker and one for topics: a request goes to the node that it is about.
    futures: dict[Any, Any] = {}
    for kind in (ResourceType.BROKER, ResourceType.TOPIC):
        if asked := [resource for resource in resources if resource.restype == kind]:
            futures |= admin.describe_configs(asked, request_timeout=call_s)
    found = {}
    for resource, future in futures.items():
        try:
            settings = future.result().items()
            found[resource.name] = {key: entry.value for key, entry in settings if entry.value is not None}
        except KafkaException as error:
            if (
                resource.restype != ResourceType.BROKER
                or error.args[0].code() != KafkaError.CLUSTER_AUTHORIZATION_FAILED
            ):
                raise
    return found
