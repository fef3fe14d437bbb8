"""JSON as Avro, by a schema that somebody else has written: the payloads of outbox events.

    JsonEncoder(id, schema).encode(b'{"order": 17}')     a framed message

Plain JSON, not Avro's JSON encoding: a value of a union stands there without its branch's name, and
becomes the first branch that it fits. Strict, because nothing of a payload may get lost: a value
that does not fit exactly is a `Misfit`, and so is a field that the schema lacks, or a digit beyond
its precision. A field that is missing takes the schema's default.

Needs fastavro: the extra `records`. Pure.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import fastavro

from twofold_avro import wire
from twofold_avro.errors import Misfit, UnfitSchema
from twofold_avro.json_scalars import PRIMITIVE, Fit, enum_of, logical, misfit, string
from twofold_avro.types import Avro


class JsonEncoder:
    """One schema of the registry."""

    def __init__(self, schema_id: int, schema: str) -> None:
        """UnfitSchema: it is no Avro schema, or has a type that JSON has no values for."""
        self.schema_id = schema_id
        named: dict[str, Any] = {}
        try:
            self._schema = fastavro.parse_schema(json.loads(schema), named_schemas=named)
        except (ValueError, TypeError, KeyError, fastavro.schema.SchemaParseException) as error:
            raise UnfitSchema(f"it cannot be parsed: {error!r}") from None
        self._named: dict[str, Fit] = {}
        for name, each in named.items():
            self._named[name] = self._of_named(each)
        self._fit = self._of(self._schema)

    def encode(self, payload: bytes) -> bytes:
        """Return the framed message. Misfit: the payload is no value of the schema."""
        out = io.BytesIO()
        out.write(wire.header(self.schema_id))
        try:
            value = json.loads(payload, parse_float=Decimal)
            fastavro.schemaless_writer(out, self._schema, self._fit(value, ""))
        except json.JSONDecodeError as error:
            raise Misfit("", f"is no JSON: {error}") from None
        except RecursionError:
            raise Misfit("", "is nested too deeply") from None
        return out.getvalue()

    def _of(self, schema: Avro) -> Fit:
        if isinstance(schema, list):
            return self._union([(_branch(each), self._of(each)) for each in schema])
        if isinstance(schema, str):
            return PRIMITIVE.get(schema) or self._reference(schema)
        return logical(schema) or self._of_type(schema)

    def _of_type(self, schema: Mapping[str, Any]) -> Fit:
        match schema["type"]:
            case "record" | "error" | "enum" | "fixed":
                return self._reference(schema["name"])
            case "array":
                return self._array(self._of(schema["items"]))
            case "map":
                return self._map(self._of(schema["values"]))
            case kind:
                return self._of(kind)

    def _of_named(self, schema: Mapping[str, Any]) -> Fit:
        match schema["type"]:
            case "record" | "error":
                return self._record(schema)
            case "enum":
                return enum_of(frozenset(schema["symbols"]))
            case kind:
                if (of_fixed := logical(schema)) is None:
                    raise UnfitSchema(f"the type {kind} of {schema['name']} has no values in JSON")
                return of_fixed

    def _reference(self, name: str) -> Fit:
        """A named type, which may be in the middle of its own definition."""
        if name == "bytes":
            raise UnfitSchema("the type bytes has no values in JSON")

        def fit(value: Any, path: str) -> Any:
            return self._named[name](value, path)

        return fit

    def _record(self, schema: Mapping[str, Any]) -> Fit:
        fields = {field["name"]: (self._of(field["type"]), field) for field in schema["fields"]}

        def fit(value: Any, path: str) -> Any:
            if not isinstance(value, dict):
                raise misfit(path, value, f"is no record {schema['name']}")
            if more := value.keys() - fields:
                raise Misfit(f"{path}.{min(more)}", f"is no field of {schema['name']}")
            found = {}
            for name, (of_field, field) in fields.items():
                if name not in value and "default" not in field:
                    raise Misfit(f"{path}.{name}", "is missing, and the schema has no default")
                found[name] = of_field(value[name] if name in value else field["default"], f"{path}.{name}")
            return found

        return fit

    @staticmethod
    def _array(of_item: Fit) -> Fit:
        def fit(value: Any, path: str) -> Any:
            if not isinstance(value, list):
                raise misfit(path, value, "is no array")
            return [of_item(item, f"{path}[{at}]") for at, item in enumerate(value)]

        return fit

    @staticmethod
    def _map(of_value: Fit) -> Fit:
        def fit(value: Any, path: str) -> Any:
            if not isinstance(value, dict):
                raise misfit(path, value, "is no map")
            return {string(key, path): of_value(each, f"{path}{{}}") for key, each in value.items()}

        return fit

    @staticmethod
    def _union(branches: list[tuple[str, Fit]]) -> Fit:
        others = [name for name, _ in branches if name != "null"]

        def fit(value: Any, path: str) -> Any:
            for name, of_branch in branches:
                try:
                    return name, of_branch(value, path)
                except Misfit:
                    if value is not None and [name] == others:
                        raise
            raise misfit(path, value, f"is none of {', '.join(name for name, _ in branches)}")

        return fit


def _branch(schema: Avro) -> str:
    """Return the name by which fastavro knows a branch of a union."""
    if isinstance(schema, dict):
        return str(schema.get("name", schema["type"]))
    return str(schema)
