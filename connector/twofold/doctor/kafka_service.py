"""Recognises a managed Kafka by its brokers' names and the cluster's id, and says how rights and
settings change there. Pure; what it says is from the vendors' documentation (docs/services/).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KafkaService:
    """The service that runs Kafka."""

    name: str
    page: str = ""
    within: tuple[str, ...] = ()
    """Parts of the names of its brokers that no other has."""
    id_prefix: str = ""
    """The beginning of the service's cluster ids."""
    broker_settings: str = ""
    """How a broker's setting changes, where there is no server.properties."""


APACHE_KAFKA = KafkaService("Apache Kafka")

SERVICES = (
    KafkaService(
        "Amazon MSK Serverless",
        "docs/services/kafka.md",
        (".kafka-serverless.",),
        broker_settings="MSK sets the brokers' settings of serverless clusters, and nobody else can",
    ),
    KafkaService(
        "Amazon MSK",
        "docs/services/kafka.md",
        (".kafka.", ".amazonaws.com"),
        broker_settings="set {setting} = {value} in a custom MSK configuration",
    ),
    KafkaService(
        "Confluent Cloud",
        "docs/services/kafka.md",
        (".confluent.cloud",),
        broker_settings="Confluent sets {setting}; only some settings of Dedicated clusters can be changed",
    ),
    KafkaService(
        "Redpanda",
        "docs/services/kafka.md",
        id_prefix="redpanda.",
        broker_settings="Redpanda has cluster properties in place of {setting}",
    ),
)
"""The first that fits. WarpStream and AutoMQ are on brokers of the user's own names: no sign."""

IAM_ACTIONS = {
    "CREATE": "CreateTopic",
    "DESCRIBE": "DescribeTopic",
    "DESCRIBE_CONFIGS": "DescribeTopicDynamicConfiguration",
    "READ": "ReadData",
    "WRITE": "WriteData",
}
"""MSK's action for each right on topics. Kafka's ACLs mean nothing to IAM roles there."""


def recognise(cluster_id: str | None, addresses: Iterable[str]) -> KafkaService:
    """Return the service of a cluster, from its id and the `host:port` of its brokers."""
    hosts = [address.strip().rpartition(":")[0].lower() for address in addresses]
    for service in SERVICES:
        by_id = service.id_prefix and (cluster_id or "").startswith(service.id_prefix)
        by_name = service.within and any(all(part in host for part in service.within) for host in hosts)
        if by_id or by_name:
            return service
    return APACHE_KAFKA


def iam_actions(rights: Iterable[str]) -> str:
    """Name the actions of an IAM policy that give these rights on topics."""
    return ", ".join(f"kafka-cluster:{IAM_ACTIONS[right]}" for right in rights)
