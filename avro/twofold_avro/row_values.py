"""Records of tables as values for people and for JSON, whatever version of the schema wrote them.

Columns have PostgreSQL's names. What JSON has no value for is a text: decimals, times, uuids, and
bytes in PostgreSQL's hex form. Needs fastavro: the extra `records`. Pure.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from datetime import date, datetime, time
from functools import cache
from math import isfinite
from typing import Any

import fastavro

from twofold_avro import wire
from twofold_avro.errors import MalformedRecord
from twofold_avro.names import postgres_name


class RowValues:
    """A reader of framed records that knows their schemas by their ids."""

    def __init__(self, schema_of: Callable[[int], str]) -> None:
        self._schema_of = cache(schema_of)
        self._parse = cache(lambda text: fastavro.parse_schema(json.loads(text)))

    def read(self, message: bytes) -> Any:
        """Return the record as JSON values. NotFramed or MalformedRecord: it is none."""
        schema_id, body = wire.unframe(message)
        text = self._schema_of(schema_id)
        try:
            return _as_json(fastavro.schemaless_reader(io.BytesIO(body), self._parse(text), None))
        except Exception as error:  # fastavro's are of a dozen classes, EOFError and IndexError among them
            raise MalformedRecord(f"its bytes contradict schema {schema_id} ({type(error).__name__})") from error


def _as_json(value: Any) -> Any:
    match value:
        case dict():
            return {postgres_name(name): _as_json(each) for name, each in value.items()}
        case list():
            return [_as_json(each) for each in value]
        case bytes():
            return "\\x" + value.hex()
        case datetime() | date() | time():
            return value.isoformat()
    is_plain = value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and isfinite(value))
    return value if is_plain else str(value)
