"""What many new tables cost the registry and Kafka: each question once, and not one after the
other.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from helpers.connector.configs import make_config
from twofold.errors import Refused
from twofold.kafka.registrar import Registrar
from twofold.kafka.topic_rules import KnownTopic, RequiredTopic
from twofold.source import messages as m
from twofold.tables.data_policy import DataPolicy
from twofold.tables.tables import Tables
from twofold_avro.shapes import ColumnShape, TableShape, TypeShape

TABLES = 24
TOGETHER = 8


class Catalog:
    def shape(self, relation: m.Relation, described: None = None) -> TableShape:
        column = ColumnShape("id", TypeShape(20, "pg_catalog", "int8"), in_key=True, in_identity=True)
        return TableShape(relation.oid, relation.schema, relation.table, (column,), relation.replica_identity)

    def add_comments(self, shape: TableShape) -> TableShape:
        return shape


class Registry:
    """It answers the first questions of each kind only once several wait for their answers."""

    def __init__(self) -> None:
        self.asked: Counter[tuple[str, str]] = Counter()
        self.refused: frozenset[str] = frozenset()
        self._together = {kind: threading.Barrier(TOGETHER) for kind in ("versions", "register")}

    def _wait(self, kind: str, subject: str) -> None:
        self.asked[kind, subject] += 1
        if not self.refused and subject.endswith("-value"):  # a multiple of TOGETHER
            self._together[kind].wait(20)

    def versions(self, subject: str) -> list[str]:
        self._wait("versions", subject)
        return []

    def register(self, subject: str, _text: str) -> int:
        self._wait("register", subject)
        if subject in self.refused:
            raise Refused(f"the registry refuses {subject}", at_stake="", repair="")
        return 100 + int(subject.removeprefix("p.app.t").partition("-")[0])


class Topics:
    def __init__(self) -> None:
        self.requests = 0

    def ensure(
        self, wanted: Iterable[RequiredTopic], while_created: Callable[[], None] = lambda: None
    ) -> dict[str, KnownTopic]:
        self.requests += 1
        while_created()
        return {each.name: KnownTopic(each.partitions) for each in wanted}


def relation(number: int) -> m.Relation:
    return m.Relation(number + 1, "app", f"t{number}", "default", (m.RelationColumn("id", 20, -1, True),))


def tables(registry: Any, topics: Any) -> Tables:
    catalog: Any = Catalog()
    config, registrar = make_config("p"), Registrar(registry, topics, "p")
    return Tables(config, "db", {}, catalog=catalog, registrar=registrar, policy=DataPolicy(config))


def test_new_tables_are_registered_side_by_side_with_three_questions_each() -> None:
    registry, topics = Registry(), Topics()
    made = tables(registry, topics)
    made.announce(map(relation, range(TABLES)))
    for number in range(TABLES):
        pin = made.pins[f"p.app.t{number}"]
        assert (pin.partitions, pin.key_schema_id, pin.value_schema_id) == (6, 100 + number, 100 + number)
    assert topics.requests == 1
    # This registry does not remember, as the real one's client does: the key's id is asked twice.
    assert {kind: n for (kind, subject), n in registry.asked.items() if subject == "p.app.t7-value"} == {
        "versions": 1,
        "register": 1,
    }
    made.announce(map(relation, range(TABLES)))
    assert topics.requests == 1


def test_the_first_refused_table_is_named_and_nothing_is_pinned() -> None:
    registry = Registry()
    registry.refused = frozenset({"p.app.t3-value", "p.app.t20-value"})
    made = tables(registry, Topics())
    with pytest.raises(Refused, match=r"p\.app\.t3-value"):
        made.announce(map(relation, range(TABLES)))
    assert not made.pins.all


def test_what_a_subject_has_counts_for_one_registration_only() -> None:
    """Somebody may have registered another version since."""
    registry = Registry()
    registry.refused = frozenset({"another"})  # one question after the other
    asks: Any = registry
    registrar, topic, asked = Registrar(asks, asks, "p"), "p.app.t0", ("versions", "p.app.t0-value")
    shape = Catalog().shape(relation(0))
    with registrar.knowing_versions([topic]):
        registrar.like_before(shape, topic, None)
        registrar.register_envelope(shape, topic, None)
        assert registry.asked[asked] == 1
        registrar.register_envelope(shape, topic, None)
        assert registry.asked[asked] == 2
    with registrar.knowing_versions([topic]):
        pass
    registrar.like_before(shape, topic, None)
    assert registry.asked[asked] == 4
