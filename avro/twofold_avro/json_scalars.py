"""The scalar values of JSON in Avro, each exactly or not at all; `json_values` has the rest.

Pure.
"""

from __future__ import annotations

import math
import re
import struct
import uuid
from collections.abc import Callable, Mapping
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from twofold_avro.errors import Misfit

Fit = Callable[[Any, str], Any]
"""From a JSON value, and its place in the payload, to the value that fastavro writes."""

_BEYOND_MICROSECONDS = re.compile(r"[.,]\d{6}\d*[1-9]")
"""Digits that `fromisoformat` drops."""
_INTEGERS = {"int": 31, "long": 63}
_KINDS = {bool: "a boolean", int: "a number", Decimal: "a number", str: "a string", list: "an array", dict: "an object"}
_FINEST_US = {"timestamp-millis": 1000, "timestamp-micros": 1}


def logical(schema: Mapping[str, Any]) -> Fit | None:
    """Return the function that takes a logical type's values; None for the plain type's."""
    match schema["type"], schema.get("logicalType"):
        case "bytes" | "fixed", "decimal":
            return _decimal(int(schema["precision"]), int(schema.get("scale", 0)))
        case "long", "timestamp-millis" | "timestamp-micros" as kind:
            return _moment(_FINEST_US[kind])
        case "int", "date":
            return _date
        case "string", "uuid":
            return _uuid
    return None


def misfit(path: str, value: Any, what: str) -> Misfit:
    """Return the error about a value, without the value itself: an error is a line of the log."""
    return Misfit(path, f"{what}, but {_KINDS.get(type(value), 'null')}")


def _null(value: Any, path: str) -> Any:
    if value is not None:
        raise misfit(path, value, "is not null")


def _boolean(value: Any, path: str) -> Any:
    if not isinstance(value, bool):
        raise misfit(path, value, "is no boolean")
    return value


def _integer(kind: str) -> Fit:
    limit = 1 << _INTEGERS[kind]

    def fit(value: Any, path: str) -> Any:
        if type(value) is not int or not -limit <= value < limit:
            raise misfit(path, value, f"is no {kind}")
        return value

    return fit


def _double(value: Any, path: str) -> Any:
    if type(value) not in {int, Decimal}:
        raise misfit(path, value, "is no number")
    try:
        found = float(value)
    except OverflowError:
        found = math.inf
    if math.isinf(found):
        raise misfit(path, value, "is too large for a double")
    return found


def _float(value: Any, path: str) -> Any:
    found = _double(value, path)
    try:
        struct.pack("<f", found)
    except OverflowError:
        raise misfit(path, value, "is too large for a float") from None
    return found


def string(value: Any, path: str) -> Any:
    if not isinstance(value, str):
        raise misfit(path, value, "is no string")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise misfit(path, value, "has half of a surrogate pair") from None
    return value


def enum_of(symbols: frozenset[str]) -> Fit:
    def fit(value: Any, path: str) -> Any:
        if not isinstance(value, str) or value not in symbols:
            raise misfit(path, value, f"is none of {', '.join(sorted(symbols))}")
        return value

    return fit


def _decimal(precision: int, scale: int) -> Fit:
    """Return the decimal of a number, or of a string, as which money is often written."""

    def fit(value: Any, path: str) -> Any:
        try:
            found = Decimal(value) if type(value) in {int, Decimal, str} else None
        except InvalidOperation:
            found = None
        if found is None or not found.is_finite():
            raise misfit(path, value, "is no decimal")
        if not found:
            return Decimal(0)
        sign, digits, exponent = found.as_tuple()
        assert isinstance(exponent, int), "it is finite"
        while exponent < -scale and digits[-1] == 0:
            digits, exponent = digits[:-1], exponent + 1
        if exponent < -scale or len(digits) + exponent > precision - scale:
            raise misfit(path, value, f"does not fit a decimal of precision {precision} and scale {scale}")
        return Decimal((sign, digits, exponent))

    return fit


def _moment(finest_us: int) -> Fit:
    """Return the moment of a number as in the bytes, or of ISO 8601 with an offset."""
    number = _integer("long")

    def fit(value: Any, path: str) -> Any:
        if not isinstance(value, str):
            return number(value, path)
        try:
            found = None if _BEYOND_MICROSECONDS.search(value) else datetime.fromisoformat(value)
        except ValueError:
            found = None
        if found is None or found.tzinfo is None or found.microsecond % finest_us:
            raise misfit(path, value, "is no time with an offset, or a finer one than the schema's")
        return found

    return fit


def _date(value: Any, path: str) -> Any:
    if not isinstance(value, str):
        return _integer("int")(value, path)
    try:
        return date.fromisoformat(value)
    except ValueError:
        raise misfit(path, value, "is no date") from None


def _uuid(value: Any, path: str) -> Any:
    try:
        return str(uuid.UUID(string(value, path)))
    except ValueError as error:
        if isinstance(error, Misfit):
            raise
        raise misfit(path, value, "is no uuid") from None


PRIMITIVE: Mapping[str, Fit] = {
    "null": _null,
    "boolean": _boolean,
    "int": _integer("int"),
    "long": _integer("long"),
    "float": _float,
    "double": _double,
    "string": string,
}
