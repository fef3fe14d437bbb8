"""Waits until a position is visible, with a connector's own settings: `twofold_reader.waiting`."""

from __future__ import annotations

from twofold.config import Config
from twofold.kafka.kafka_settings import kafka_settings, registry_settings
from twofold.kafka.metadata import ask_brokers
from twofold.kafka.schema_registry import Registry
from twofold_reader import PositionWaiter


def open_waiter(config: Config) -> PositionWaiter:
    """Return what waits for positions of the connector's prefix; its user closes it."""
    settings = kafka_settings(config)
    ask_brokers(settings)
    return PositionWaiter(config.prefix, settings.open_consumer, Registry(registry_settings(config)).schema)
