"""PostgreSQL's text of values in binary form, and the elements of an array from its text. Pure.

Few values come this way: keys, numerics without bounds, and values that their Avro type cannot
hold. PostgreSQL itself would send the same text with DateStyle ISO and TimeZone UTC, so a key is
the same however it was read.
"""

from __future__ import annotations

from twofold_avro.types import How

SECOND_US = 1_000_000
DAY_US = 86_400 * SECOND_US
_INFINITE_DATE = 0x7FFFFFFF
_INFINITE_TIMESTAMP = 0x7FFFFFFFFFFFFFFF
_DAYS_TO_2000 = 730_425  # from 0000-03-01 to 2000-01-01
_NUMERIC_SPECIAL = {0xC000: "NaN", 0xD000: "Infinity", 0xF000: "-Infinity"}
_NUMERIC_NEGATIVE = 0x4000
NO_DIGITS = "a numeric with a digit that is not below 10,000"


def binary_text(how: int, data: bytes) -> str:
    """Return the text of a value in PostgreSQL's binary form."""
    match how:
        case How.NUMERIC | How.DECIMAL:
            return numeric_text(data)
        case How.DATE:
            return date_text(_signed(data, 4))
        case How.TIME:
            return time_text(_signed(data, 8))
        case How.TIMESTAMP:
            return timestamp_text(_signed(data, 8))
        case How.TIMESTAMPTZ:
            return timestamp_text(_signed(data, 8), "+00")
        case _:
            raise ValueError("came in binary form, which has no text: read this table without the option binary")


def numeric_text(data: bytes) -> str:
    """Return a numeric's text, from digits to the base 10,000 and the shown decimals."""
    if len(data) < 8:
        raise ValueError("a numeric of less than 8 bytes")
    count, weight, sign, scale = (int.from_bytes(data[at : at + 2], "big") for at in (0, 2, 4, 6))
    weight = (weight ^ 0x8000) - 0x8000
    if sign in _NUMERIC_SPECIAL:
        return _NUMERIC_SPECIAL[sign]
    if len(data) != 8 + 2 * count:
        raise ValueError(f"a numeric of {count} digits in {len(data)} bytes")
    digits = [int.from_bytes(data[at : at + 2], "big") for at in range(8, len(data), 2)]
    if digits and max(digits) > 9999:
        raise ValueError(NO_DIGITS)
    groups = [f"{digit:04d}" for digit in digits]
    before = "".join(groups[: max(weight + 1, 0)]) + "0000" * max(weight + 1 - count, 0)
    after = "0000" * max(-weight - 1, 0) + "".join(groups[max(weight + 1, 0) :])
    whole = before.lstrip("0") or "0"
    shown = f"{whole}.{after[:scale]:0<{scale}}" if scale else whole
    return f"-{shown}" if sign == _NUMERIC_NEGATIVE else shown


def date_text(days: int) -> str:
    """Return a date's text, from days since 2000-01-01."""
    if days in {_INFINITE_DATE, -_INFINITE_DATE - 1}:
        return "infinity" if days > 0 else "-infinity"
    date, bc = _date(days)
    return date + bc


def time_text(us: int) -> str:
    """Return the text of a time of day, or of the day's end, from microseconds."""
    seconds, fraction = divmod(us, SECOND_US)
    clock = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return f"{clock}.{fraction:06d}".rstrip("0") if fraction else clock


def timestamp_text(us: int, zone: str = "") -> str:
    """Return a timestamp's text, from microseconds since 2000-01-01."""
    if us in {_INFINITE_TIMESTAMP, -_INFINITE_TIMESTAMP - 1}:
        return "infinity" if us > 0 else "-infinity"
    days, rest = divmod(us, DAY_US)
    date, bc = _date(days)
    return f"{date} {time_text(rest)}{zone}{bc}"


def array_elements(text: bytes, delimiter: bytes) -> list[bytes | None] | None:
    """Return the elements of an array of one dimension that starts at 1; None for others."""
    if not text.startswith(b"{"):
        if text.startswith(b"["):
            return None  # bounds are written only when they do not start at 1
        raise ValueError("an array that does not start with a brace")
    if not text.endswith(b"}"):
        raise ValueError("an array that does not end with a brace")
    if text == b"{}":
        return []
    if b'"' not in text and b"\\" not in text:
        inner = text[1:-1]
        if b"{" in inner:
            return None
        return [None if item == b"NULL" else item for item in inner.split(delimiter)]
    return _quoted_elements(text, delimiter[0])


def _quoted_elements(text: bytes, delimiter: int) -> list[bytes | None] | None:
    """Return the elements of a text in which some are in quotes, with backslashes inside."""
    elements: list[bytes | None] = []
    item = bytearray()
    in_quotes = was_quoted = False
    at, last = 1, len(text) - 1
    while at <= last:
        byte = text[at]
        if byte == 0x5C and at < last:  # a backslash
            at += 1
            item.append(text[at])
        elif byte == 0x22:  # a quote
            in_quotes = not in_quotes
            was_quoted = True
        elif in_quotes:
            item.append(byte)
        elif byte == 0x7B:  # a brace: a dimension more
            return None
        elif byte == delimiter or at == last:
            elements.append(None if not was_quoted and item == b"NULL" else bytes(item))
            item.clear()
            was_quoted = False
        else:
            item.append(byte)
        at += 1
    if in_quotes:
        raise ValueError("an array with a quote that does not end")
    return elements


def _date(days: int) -> tuple[str, str]:
    """Return a proleptic Gregorian date: year, month, day, and the suffix before year 1."""
    eras, day = divmod(days + _DAYS_TO_2000, 146_097)
    year = (day - day // 1460 + day // 36_524 - day // 146_096) // 365
    day -= 365 * year + year // 4 - year // 100
    month = (5 * day + 2) // 153  # from March
    day -= (153 * month + 2) // 5
    year += eras * 400 + (month >= 10)
    month += 3 if month < 10 else -9
    shown = year if year > 0 else 1 - year
    return f"{shown:04d}-{month:02d}-{day + 1:02d}", "" if year > 0 else " BC"


def _signed(data: bytes, size: int) -> int:
    if len(data) != size:
        raise ValueError(f"{len(data)} bytes where its binary form has {size}")
    return int.from_bytes(data, "big", signed=True)
