"""What a job that runs knows of the registry's subjects, which may be deleted, recreated, or come
later."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from helpers.spark.writer import table
from twofold_avro import schemas
from twofold_spark.mirror.table_merge import TableMerger
from twofold_spark.sources.kafka_client import Kafka, KafkaAdmin
from twofold_spark.sources.registry import Registry

TOPIC = "shop.public.t"
SHAPE = table("t", {"id": "int8", "region": "text"})


class _Registry(Registry):
    """Answers from here."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:9")
        self.there: dict[str, dict[int, tuple[int, Any]]] = {}
        self.asked = 0

    def _get(self, path: str, *, is_registered: bool = False) -> Any:
        self.asked += 1
        _, _, subject, _, *number = path.split("/")
        versions = self.there.get(subject)
        if versions is None or not number:
            return versions and list(versions)
        identifier, schema = versions[int(number[0])]
        return {"id": identifier, "schema": json.dumps(schema)}


@pytest.fixture
def registry() -> _Registry:
    registry = _Registry()
    registry.there[f"{TOPIC}-value"] = {1: (11, schemas.envelope_schema(SHAPE, "shop"))}
    return registry


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_subject_that_was_deleted_and_recreated_is_learned(registry: _Registry, number: int) -> None:
    int_, long, string = ({"type": name} for name in ("int", "long", "string"))
    registry.there["s"] = {1: (1, int_), 2: (2, long)}
    known = registry.find_subject("s")
    assert known is not None
    assert known.ids == {1, 2}
    registry.there["s"] = {number: (7, string)}
    found = registry.refresh_subject("s")
    assert found is not None
    assert found.versions == ((1, int_), (2, long), (7, string)), "older records may be there yet"
    registry.there["s"] = {number: (7, string), number + 1: (1, int_)}
    found = registry.refresh_subject("s")
    assert found is not None
    assert found.ids == {1, 2, 7}
    assert found.latest == int_


def test_a_key_is_asked_for_once_and_at_a_reload(registry: _Registry) -> None:
    merger = TableMerger(KafkaAdmin(cast("Any", None), Kafka("nowhere:1")), registry, "shop", "stop")

    def key(*, reloaded: bool = False) -> tuple[str, ...]:
        return merger.describe_table(TOPIC, reloaded=reloaded).key

    assert key() == ()
    asked = registry.asked
    assert key() == ()
    assert registry.asked == asked, "that there is none is known as well"

    registry.there[f"{TOPIC}-key"] = {1: (12, schemas.key_schema(SHAPE, "shop"))}
    assert key() == ()
    assert key(reloaded=True) == key() == ("id",)
    both = table("t", {"id": "int8", "region": "text"}, key=("id", "region"))
    registry.there[f"{TOPIC}-key"][2] = (13, schemas.key_schema(both, "shop"))
    assert key() == ("id",)
    assert key(reloaded=True) == key() == ("id", "region")
    del registry.there[f"{TOPIC}-key"]
    assert key(reloaded=True) == key() == ()
