"""One text for one value, whether it comes from Avro or from PostgreSQL: how the two are compared.

`of_avro` makes PostgreSQL's text of a value that fastavro has decoded; `canonical` takes what is no
difference out of such a text: how a float is written, and how an array's elements are quoted.
"""

from __future__ import annotations

import json
import re
import struct
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

_LIST: Final = "\0list"
_ELEMENT: Final = r'\s*(?:"((?:[^"\\]|\\.)*)"|((?:\\.|[^"\\{}DELIMITER])*))\s*'


@dataclass(frozen=True, slots=True)
class Kind:
    """What must be known of a column's type: its base type's name, and of an array the mark between
    elements.
    """

    base: str
    delimiter: str = ""


def of_avro(value: Any) -> str | None:
    """PostgreSQL's text; of a list a mark of its own and its elements' texts."""
    match value:
        case None | str():
            return value
        case bool():
            return "t" if value else "f"
        case list():
            return _LIST + json.dumps([of_avro(element) for element in value])
        case bytes():
            return f"\\x{value.hex()}"
        case Decimal():
            return format(value, "f")
        case datetime():
            zone = "" if value.tzinfo is None else "+00"
            return f"{value.date().isoformat()} {_clock(value.time())}{zone}"
        case time():
            return _clock(value)
        case int() | float() | date() | UUID():
            return str(value)
    raise TypeError(f"no text of {type(value)}")


def canonical(text: str | None, kind: Kind) -> str | None:
    """The same for all texts of one value."""
    if text is None:
        return None
    if text.startswith(_LIST):
        return json.dumps([canonical(element, Kind(kind.base)) for element in json.loads(text[len(_LIST) :])])
    if kind.delimiter:
        elements = _elements(text, kind.delimiter)
        return text if elements is None else json.dumps([canonical(element, Kind(kind.base)) for element in elements])
    if kind.base == "float8":
        return repr(float(text))
    if kind.base == "float4":
        return repr(struct.unpack("f", struct.pack("f", float(text)))[0])
    return text


def _elements(text: str, delimiter: str) -> list[str | None] | None:
    """Of an array of one dimension that begins at 1; None of all others, whose text is compared as
    it is.
    """
    if not text.startswith("{") or text.startswith("{{"):
        return None
    inner = text[1:-1]
    found: list[str | None] = []
    if not inner:
        return found
    pattern, at = re.compile(_ELEMENT.replace("DELIMITER", re.escape(delimiter)), re.DOTALL), 0
    while (match := pattern.match(inner, at)) is not None:
        quoted, plain = match.groups()
        if quoted is None and plain.upper() == "NULL":
            found.append(None)
        else:
            found.append(re.sub(r"\\(.)", r"\1", plain if quoted is None else quoted, flags=re.DOTALL))
        at = match.end() + 1
        if match.end() == len(inner):
            break
        assert inner[match.end()] == delimiter, f"no array: {text}"
    return found


def _clock(value: time) -> str:
    fraction = f".{value.microsecond:06}".rstrip("0") if value.microsecond else ""
    return f"{value:%H:%M:%S}{fraction}"
