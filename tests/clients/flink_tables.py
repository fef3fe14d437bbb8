"""Flink SQL's two ways to read a topic: as changes of Debezium, and as a table that is upserted by
key.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, Final

from clients.rows import CannotReadError, Rows, fold_changelog, value_of
from clients.samples import Sample
from clients.tables import Table
from helpers.flink.gateway import FlinkError, FlinkGateway

DECLARED: Final = "times declared as BIGINT, `numeric` without bounds as STRING"
DUPLICATES: Final = "PRIMARY KEY declared and `table.exec.source.cdc-events-duplicate = true`"
LISTS: Final = "looks at `special`"

TIMESTAMP_OF_MICROSECONDS: Final = (
    "CAST(DATE_FORMAT(TO_TIMESTAMP_LTZ(FLOOR({column} / CAST(1000000 AS DECIMAL(20, 6))), 0), 'yyyy-MM-dd HH:mm:ss') "
    "|| '.' || LPAD(CAST(MOD(MOD({column}, 1000000) + 1000000, 1000000) AS STRING), 6, '0') AS TIMESTAMP(6))"
)
"""SQL for a column that is declared BIGINT, in a session whose `table.local-time-zone` is UTC."""

_NATURAL: Final = {
    "boolean": "BOOLEAN",
    "smallint": "SMALLINT",
    "integer": "INT",
    "int": "INT",
    "bigint": "BIGINT",
    "real": "FLOAT",
    "double precision": "DOUBLE",
    "numeric": "DECIMAL(38, 18)",
    "cents": "DECIMAL(9, 2)",
    "bytea": "BYTES",
    "date": "DATE",
    "time": "TIME",
    "timestamp": "TIMESTAMP(6)",
    "timestamptz": "TIMESTAMP_LTZ(6)",
}
_SPECIAL: Final = "ARRAY<ROW<`row` STRING, `column` STRING, `text` STRING>>"


def declared(type_: str, way: str) -> str:
    """Flink's type: the one with the same name, or with a setting the one that works. What is text
    in the schema is STRING.
    """
    if type_.endswith("[]"):
        return f"ARRAY<{declared(type_.removesuffix('[]'), way)}>"
    name, _, modifier = type_.partition("(")
    if way and name in ("time", "timestamp", "timestamptz"):
        return "BIGINT"
    if way and type_ == "numeric":
        return "STRING"
    if modifier and name in ("numeric", "timestamp"):
        return f"{'DECIMAL' if name == 'numeric' else 'TIMESTAMP'}({modifier}"
    return _NATURAL.get(name, "STRING")


def value(shown: Any, declaration: str, type_: str) -> Any:
    """The value that the gateway shows in JSON."""
    if declaration == "BYTES" and shown is not None:
        return base64.b64decode(shown)
    return value_of(shown, type_) if "BIGINT" in declaration else shown


class FlinkReader:
    """What both ways share: a declaration, a bounded SELECT, and the fold of its changes."""

    name: str
    at_once = 1

    def ways(self, table: Table) -> tuple[str, ...]:
        raise NotImplementedError

    def __init__(self, gateway: FlinkGateway, bootstrap: str, registry: str, prefix: str) -> None:
        self._gateway = gateway
        self._registry = registry
        self._prefix = prefix
        self._kafka = {
            "properties.bootstrap.servers": bootstrap,
            "properties.isolation.level": "read_committed",
            "scan.bounded.mode": "latest-offset",
        }

    def read(self, way: str, table: Table, samples: Sequence[Sample]) -> Rows:
        declarations = [declared(sample.type, way) for sample in samples]
        columns = [f"`{s.column}` {type_}" for s, type_ in zip(samples, declarations, strict=True)]
        try:
            self._gateway.run("DROP TABLE IF EXISTS changes")
            self._gateway.run(self._declaration(way, f"{self._prefix}.public.{table.table}", columns))
            found = self._gateway.run(self._query(way, samples))
        except FlinkError as error:
            raise CannotReadError(str(error)) from error
        shown = [(kind, self._row(way, fields, samples, declarations)) for kind, fields in found]
        return fold_changelog(shown, ["n", *(sample.column for sample in samples)])

    def _row(
        self, way: str, fields: list[Any], samples: Sequence[Sample], declarations: Sequence[str]
    ) -> tuple[Any, ...]:
        key, n, *values = fields[: len(samples) + 2]
        special = (
            {each["column"]: each["text"] for each in fields[-1] if each["row"] == "after"} if way == LISTS else {}
        )
        row = (
            special.get(sample.column, value(shown, declaration, sample.type))
            for shown, declaration, sample in zip(values, declarations, samples, strict=True)
        )
        return key, n, *row

    def _declaration(self, way: str, topic: str, columns: Sequence[str]) -> str:
        raise NotImplementedError

    def _query(self, way: str, samples: Sequence[Sample]) -> str:
        raise NotImplementedError


class DebeziumFormat(FlinkReader):
    """Connector `kafka`, format `debezium-avro-confluent`."""

    name = "Flink, `debezium-avro-confluent`"

    def ways(self, table: Table) -> tuple[str, ...]:
        return ("", DECLARED) if table.name == "every" else ("", DUPLICATES)

    def read(self, way: str, table: Table, samples: Sequence[Sample]) -> Rows:
        self._gateway.run(f"SET 'table.exec.source.cdc-events-duplicate' = '{str(way == DUPLICATES).lower()}'")
        return super().read(way, table, samples)

    def _declaration(self, way: str, topic: str, columns: Sequence[str]) -> str:
        settings = {
            "connector": "kafka",
            "topic": topic,
            **self._kafka,
            "scan.startup.mode": "earliest-offset",
            "format": "debezium-avro-confluent",
            "debezium-avro-confluent.url": self._registry,
        }
        key = ["PRIMARY KEY (id) NOT ENFORCED"] if way == DUPLICATES else []
        return _create(["id INT", "n INT", *columns, *key], settings)

    def _query(self, way: str, samples: Sequence[Sample]) -> str:
        return "SELECT * FROM changes"


class UpsertKafka(FlinkReader):
    """Connector `upsert-kafka`, the envelope as it is, `after` of what is no delete."""

    name = "Flink, `upsert-kafka`"

    def ways(self, table: Table) -> tuple[str, ...]:
        return ("", DECLARED, LISTS) if table.name == "every" else ("",)

    def _declaration(self, way: str, topic: str, columns: Sequence[str]) -> str:
        settings = {
            "connector": "upsert-kafka",
            "topic": topic,
            **self._kafka,
            "key.format": "avro-confluent",
            "key.avro-confluent.url": self._registry,
            "key.fields-prefix": "key_",
            "value.format": "avro-confluent",
            "value.avro-confluent.url": self._registry,
            "value.fields-include": "EXCEPT_KEY",
        }
        row = f"after ROW<{', '.join(['id INT', 'n INT', *columns])}>"
        special = [f"special {_SPECIAL}"] if way == LISTS else []
        return _create(["key_id INT", "op STRING", row, *special, "PRIMARY KEY (key_id) NOT ENFORCED"], settings)

    def _query(self, way: str, samples: Sequence[Sample]) -> str:
        chosen = ["key_id", "after.n", *(f"after.`{sample.column}`" for sample in samples)]
        special = ["special"] if way == LISTS else []
        return f"SELECT {', '.join(chosen + special)} FROM changes WHERE op <> 'd'"


def _create(columns: Sequence[str], settings: dict[str, str]) -> str:
    options = ", ".join(f"'{name}' = '{chosen}'" for name, chosen in settings.items())
    return f"CREATE TABLE changes ({', '.join(columns)}) WITH ({options})"
