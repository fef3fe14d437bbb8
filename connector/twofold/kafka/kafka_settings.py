"""Makes the values of `kafka` from the configuration: names, client settings, topics."""

from __future__ import annotations

import tomllib
from functools import partial
from typing import Any

from twofold.config import Config, require_secret_options
from twofold.errors import UsageError
from twofold.kafka.client import KafkaSettings
from twofold.kafka.kafka_secrets import KafkaSecrets, load_token_provider
from twofold.kafka.names import Names
from twofold.kafka.schema_registry import Registry
from twofold.kafka.topic_rules import RequiredTopic, TopicPolicy
from twofold_common.registry_http import ask_credentials


def names_of(config: Config) -> Names:
    return Names(config.prefix, config.name)


def kafka_settings(config: Config) -> KafkaSettings:
    client: dict[str, Any] = {"bootstrap.servers": config.kafka.bootstrap, **config.kafka.options}
    if file := config.kafka.options_file:
        try:
            secrets = tomllib.loads(file.read_text("utf-8-sig"))  # some editors write a mark before the text
        except (OSError, tomllib.TOMLDecodeError) as error:
            raise UsageError(f"kafka.options_file {file} cannot be used: {error}") from None
        except UnicodeDecodeError as error:
            raise UsageError(f"kafka.options_file {file} is not UTF-8, which TOML is: byte {error.start}") from None
        require_secret_options(secrets)
        client |= secrets
    provider = config.kafka.token_provider
    return KafkaSettings(
        client=client,
        secrets=KafkaSecrets(config.kafka.password, load_token_provider(provider) if provider else None),
        transaction_timeout_ms=int(config.kafka.transaction_timeout * 1000),
        call_timeout_s=config.kafka.call_timeout,
    )


def open_registry(config: Config) -> Registry:
    """Return the registry's client; nothing is asked yet."""
    registry = config.registry
    return Registry(
        registry.url,
        registry.timeout,
        credentials=partial(ask_credentials, registry.username, registry.password, registry.token),
        credentials_expire=registry.password is not None or registry.token is not None,
        ca_file=registry.ca_file,
    )


def topic_policy(config: Config) -> TopicPolicy:
    kafka = config.kafka
    retention_ms = -1 if kafka.retention < 0 else int(kafka.retention * 1000)
    return TopicPolicy(kafka.replication, kafka.min_insync_replicas, retention_ms)


def bookkeeping(config: Config, *, pinned: bool) -> list[RequiredTopic]:
    """Return the topics without rows.

    They are pinned: `init` made them, and a missing one means lost content. Frontiers are not
    pinned: the next frontier says everything.
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
