"""A row as Iceberg's specification writes single values: fields by their ids."""

from __future__ import annotations

import datetime as dt

from twofold_spark.sinks.iceberg_commits import to_single_value

TABLE = {
    "type": "struct",
    "fields": [{"id": 3, "name": "name", "type": "string"}, {"id": 4, "name": "version", "type": "long"}],
}
SCHEMA = {
    "type": "struct",
    "fields": [
        {"id": 1, "name": "number", "type": "long"},
        {"id": 2, "name": "tables", "type": {"type": "list", "element-id": 5, "element": TABLE}},
        {"id": 6, "name": "at", "type": "timestamptz"},
        {"id": 7, "name": "stopped", "type": {"type": "list", "element-id": 8, "element": "string"}},
    ],
}


def test_fields_go_by_their_ids() -> None:
    at = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
    row = {"at": at, "number": 7, "tables": [{"version": 17, "name": "it's"}], "stopped": ("x",)}
    assert to_single_value(SCHEMA, row) == {
        "1": 7,
        "2": [{"3": "it's", "4": 17}],
        "6": "2026-01-02T03:04:05.000000+00:00",
        "7": ["x"],
    }
