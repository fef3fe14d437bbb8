"""Checks at the beginning of a session that the pinned topics exist unchanged."""

from __future__ import annotations

import logging

from twofold.kafka.registrar import Registrar
from twofold.kafka.topic_rules import RequiredTopic
from twofold.tables.pins import Pins
from twofold_avro.records import Pin
from twofold_common.table_names import table_argument

_log = logging.getLogger(__name__)


def check_pinned_topics(pins: Pins, registrar: Registrar, in_use: set[str]) -> None:
    """Require every pinned topic to exist unchanged.

    The topic of a table that is no longer published may be missing: rows that do not fit are then
    passed over.
    """
    for topic in registrar.missing(pins.all.keys() - in_use):
        pins.forget(topic)
    registrar.ensure(_required(topic, pin) for topic, pin in pins.all.items() if topic in in_use)
    unused = [_required(topic, pin) for topic, pin in pins.all.items() if topic not in in_use]
    for topic, refusal in registrar.mismatched(unused):
        _log.warning("of a table that is no longer published: %s", refusal.what)
        pins.unpublish(topic)


def _required(topic: str, pin: Pin) -> RequiredTopic:
    """Return the topic that the pin requires."""
    return RequiredTopic(topic, "table", pin.partitions, pinned=True, table=table_argument(pin.schema, pin.table))
