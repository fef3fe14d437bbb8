"""Which tables a session begins with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

import pytest

from helpers.connector.configs import make_config
from twofold.kafka.registrar import Registrar
from twofold.kafka.topic_rules import KnownTopic, RequiredTopic
from twofold.tables.data_policy import DataPolicy
from twofold.tables.tables import Tables
from twofold_avro.records import Pin

TOPIC = "bank.public.account"


class NoTopics:
    """Kafka has none of the tables'."""

    def missing(self, names: Iterable[str]) -> set[str]:
        return set(names)

    def mismatched(self, wanted: Iterable[RequiredTopic]) -> list[Any]:
        assert not list(wanted)
        return []

    def ensure(
        self, wanted: Iterable[RequiredTopic], while_created: Callable[[], None] = lambda: None
    ) -> dict[str, KnownTopic]:
        while_created()
        assert not list(wanted)
        return {}


@pytest.mark.parametrize("state", ["waiting", "running", "paused"])
@pytest.mark.parametrize("wished", [[], [TOPIC]])
def test_a_table_in_backfill_that_is_published_no_more_and_whose_topic_is_gone(state: Any, wished: list[str]) -> None:
    """It is forgotten whole: there is nothing to load."""
    nothing = cast("Any", None)
    config, registrar = make_config("bank"), Registrar(nothing, cast("Any", NoTopics()), "bank")
    pins = {TOPIC: Pin("public", "account", 1, '"bytes"', backfill=state)}
    tables = Tables(config, "d", pins, catalog=nothing, registrar=registrar, policy=DataPolicy(config))
    tables.restart_topics(wished, [])
    tables.check([])
    tables.announce([])
    assert TOPIC not in tables.pins
    assert not tables.lives.is_in_backfill(TOPIC)
