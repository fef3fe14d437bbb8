"""Flink reads the topics: what each of its two ways needs, and what ends it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from clients.flink_gateway import local_gateway
from clients.flink_tables import DECLARED, TIMESTAMP_OF_MICROSECONDS, DebeziumFormat, UpsertKafka
from clients.laboratory import Laboratory, prepare
from clients.samples import SAMPLES
from clients.tables import Table
from clients.trial import RIGHT, Trial
from fixtures.connector import Installation, Maker
from helpers.flink.gateway import FlinkGateway

CHOSEN = tuple(
    s for s in SAMPLES if s.name in {"text", "numeric", "numeric_bounded", "timestamp", "date", "text_array"}
)
TEXT = tuple(sample for sample in CHOSEN if sample.name == "text")
PAGE = Path(__file__).parents[3] / "docs/use/clients.md"
CHANGES = (
    f"INSERT INTO {{t}} VALUES (1, 0, {', '.join(s.value(0) for s in CHOSEN)})",
    f"INSERT INTO {{t}} VALUES (2, 0, {', '.join(s.value(1) for s in CHOSEN)}), (3, 0{', NULL' * len(CHOSEN)})",
    f"UPDATE {{t}} SET n = 1, {', '.join(f'{s.column} = {s.value(1)}' for s in CHOSEN)} WHERE id IN (1, 3)",
    "UPDATE {t} SET id = 4 WHERE id = 1",
    "DELETE FROM {t} WHERE id = 2",
)
DEFAULT, FULL = (Table("every", identity, CHOSEN, CHANGES) for identity in ("default", "full"))
TRUNCATED = Table("truncated", "full", TEXT, ("INSERT INTO {t} VALUES (1, 0, 'a')", "TRUNCATE {t}"))


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlinkGateway]:
    made = local_gateway(tmp_path_factory.mktemp("flink"))
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module")
def here(module_connector: Maker) -> Installation:
    """A connector that has carried the tables."""
    tables = DEFAULT, FULL, TRUNCATED
    made = module_connector(
        init=False,
        source={"tables": ["public.account", *(f"public.{table.table}" for table in tables)]},
        kafka={"partitions": 1},
    )
    prepare(made.conninfo)
    made.sql("CREATE TABLE account (id int PRIMARY KEY, version int, note text)")
    made.sql(*(statement for table in tables for statement in table.creation()))
    assert made.init().returncode == 0
    with made.carrying():
        made.sql(*(statement for table in tables for statement in table.statements(*table.changes)))
        made.caught_up()
    return made


def trial(here: Installation) -> Trial:
    laboratory = Laboratory(here.reader.bootstrap, here.reader.registry_url, here.conninfo, "", ())
    return Trial(here.conninfo, laboratory.rows)


def by_column(verdicts: dict[str, str]) -> dict[str, list[str]]:
    """The columns with each verdict."""
    found: dict[str, list[str]] = {}
    for name, verdict in sorted(verdicts.items()):
        found.setdefault(verdict, []).append(name)
    return found


AS_DECLARED = {
    RIGHT: ["date", "numeric_bounded", "text", "text_array"],
    f"{RIGHT}: {DECLARED}": ["numeric", "timestamp"],
}


def test_debeziums_format_needs_replica_identity_full(here: Installation, gateway: FlinkGateway) -> None:
    reader = DebeziumFormat(gateway, here.reader.bootstrap, here.reader.registry_url, here.prefix)
    assert by_column(trial(here).verdicts(reader, FULL)) == AS_DECLARED
    for why in trial(here).verdicts(reader, DEFAULT).values():
        assert why.startswith('cannot: The "before" field of UPDATE message is null'), why


def test_upsert_kafka_needs_the_key_alone(here: Installation, gateway: FlinkGateway) -> None:
    reader = UpsertKafka(gateway, here.reader.bootstrap, here.reader.registry_url, here.prefix)
    for _ in range(2):  # each start without a savepoint reads everything again
        assert by_column(trial(here).verdicts(reader, DEFAULT)) == AS_DECLARED


def test_a_truncate_ends_one_way_and_is_passed_over_by_the_other(here: Installation, gateway: FlinkGateway) -> None:
    place = here.reader.bootstrap, here.reader.registry_url, here.prefix
    assert trial(here).verdicts(DebeziumFormat(gateway, *place), TRUNCATED) == {
        "text": 'cannot: Unknown "op" value "t".'
    }
    verdicts = trial(here).verdicts(UpsertKafka(gateway, *place), TRUNCATED)
    assert verdicts == {"text": "cannot: 1 rows are there that should not be"}


def test_the_pages_expression_makes_a_timestamp_of_microseconds(gateway: FlinkGateway) -> None:
    made = TIMESTAMP_OF_MICROSECONDS.format(column="changed_at")
    assert made in " ".join(PAGE.read_text().split())
    ((_, found),) = gateway.run(f"SELECT {made} FROM (VALUES (-3786825599999999)) AS t(changed_at)")
    assert found == ["1850-01-01T00:00:00.000001"]
