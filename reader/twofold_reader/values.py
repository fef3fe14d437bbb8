"""Values as psycopg gives them: what Avro's types leave as text becomes Python's own type.

Avro has no type for these, and the schema's attributes name them: `json` and `jsonb`, `inet` and
`cidr`, `interval`, `timetz`, and `numeric` without bounds. A value that Python's type cannot hold,
such as the interval `infinity`, stays text. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import time, timedelta
from decimal import Decimal
from ipaddress import ip_address, ip_interface, ip_network
from typing import Any, Final

Conversion = tuple[str, Callable[[Any], Any]]
"""A column's name in Avro, and what makes its value."""

_INTERVAL: Final = re.compile(
    r"(?:([-+]?\d+) years? ?)?(?:([-+]?\d+) mons? ?)?(?:([-+]?\d+) days? ?)?(?:([-+]?)(\d+):(\d+):(\d+(?:\.\d+)?))?"
)


def find_conversions(columns: Iterable[Mapping[str, Any]]) -> tuple[Conversion, ...]:
    """Return the columns of a record's fields whose values need one."""
    return tuple((each["name"], found) for each in columns if (found := _conversion_of(each["type"])))


def _conversion_of(schema: Any) -> Callable[[Any], Any] | None:
    match schema:
        case ["null", inner]:
            return _conversion_of(inner)
        case {"type": "array", "items": items}:
            inner = _conversion_of(items)
            return None if inner is None else lambda values: [each if each is None else inner(each) for each in values]
        case {"type": "string", "postgres.type": name}:
            return _BY_TYPE.get(name)
        case {"type": "string", "connect.name": "io.debezium.data.Json"}:
            return _parse_json
        case {"type": "string", "connect.parameters": {"__debezium.source.column.type": name}}:
            return _BY_TYPE.get(name.lower())
    return None


def _or_text(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    def parse_if_possible(text: str) -> Any:
        try:
            return parse(text)
        except (ValueError, ArithmeticError):
            return text

    return parse_if_possible


def _parse_interval(text: str) -> timedelta:
    """As psycopg does: a year has 365 days, a month 30."""
    if not text or not (found := _INTERVAL.fullmatch(text)):
        raise ValueError(text)
    years, months, days, sign, hours, minutes, seconds = found.groups()
    of_day = timedelta(hours=int(hours or 0), minutes=int(minutes or 0), seconds=float(seconds or 0))
    whole_days = 365 * int(years or 0) + 30 * int(months or 0) + int(days or 0)
    return timedelta(days=whole_days) + (-of_day if sign == "-" else of_day)


def _parse_inet(text: str) -> Any:
    return ip_interface(text) if "/" in text else ip_address(text)


_parse_json: Final = _or_text(json.loads)
_BY_TYPE: Final[Mapping[str, Callable[[str], Any]]] = {
    "numeric": _or_text(Decimal),
    "interval": _or_text(_parse_interval),
    "timetz": _or_text(time.fromisoformat),
    "inet": _or_text(_parse_inet),
    "cidr": _or_text(ip_network),
}
