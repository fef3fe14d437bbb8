"""Makes the sink's values from the configuration: names, client settings, topics."""

from __future__ import annotations

import tomllib
from typing import Any

from twofold.config import Config
from twofold.errors import UsageError
from twofold.sink.client import KafkaSettings
from twofold.sink.names import Names
from twofold.sink.schema_registry import RegistrySettings
from twofold.sink.topic_rules import RequiredTopic, TopicPolicy


def names_of(config: Config) -> Names:
    return Names(config.prefix, config.name)


def kafka_settings(config: Config) -> KafkaSettings:
    client: dict[str, Any] = {"bootstrap.servers": config.kafka.bootstrap, **config.kafka.options}
    if config.kafka.options_file:
        try:
            client |= tomllib.loads(config.kafka.options_file.read_text())
        except (OSError, tomllib.TOMLDecodeError) as error:
            raise UsageError(f"kafka.options_file {config.kafka.options_file} cannot be used: {error}") from None
    return KafkaSettings(
        client=client,
        transaction_timeout_ms=int(config.kafka.transaction_timeout * 1000),
        call_timeout_s=config.kafka.call_timeout,
    )


def registry_settings(config: Config) -> RegistrySettings:
    registry = config.registry
    return RegistrySettings(registry.url, registry.timeout, registry.basic, registry.bearer, registry.ca_file)


def topic_policy(config: Config) -> TopicPolicy:
    kafka = config.kafka
    retention_ms = -1 if kafka.retention < 0 else int(kafka.retention * 1000)
    return TopicPolicy(kafka.replication, kafka.min_insync_replicas, retention_ms)


def bookkeeping(config: Config, *, pinned: bool) -> list[RequiredTopic]:
    """Return the topics without rows.

    They are pinned: `init` made them, and a missing one means lost content. Frontiers are not: the
    next one says all.
    """
    names = names_of(config)
    frontiers = [RequiredTopic(names.frontiers, "frontiers")] if config.group.name else []
    return [
        RequiredTopic(names.progress, "progress", pinned=pinned),
        RequiredTopic(names.commits, "commits", pinned=pinned),
        RequiredTopic(names.prepared, "prepared", pinned=pinned),
        RequiredTopic(names.messages, "messages", pinned=pinned),
        *frontiers,
    ]
