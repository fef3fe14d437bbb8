"""Reads a connector's topics as any consumer would: read_committed, decoded by the registry's
schemas alone. No code of the product.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, cast

from helpers.reading import PATIENCE_S, Schemas, read_to_end

Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a topic, decoded."""

    topic: str
    partition: int
    offset: int
    key: Any
    value: Any
    written_ms: int = 0
    """When its producer wrote it."""
    headers: Headers = ()

    @property
    def place(self) -> tuple[str, int, int]:
        return self.topic, self.partition, self.offset


Decode = Callable[[bytes | None], Any]
_CHECKED = ("op", "before", "after", "unchanged", "transaction", "message")


def avro(registry: str) -> Decode:
    """Confluent's wire format, schemas by their id; what has no frame is text."""
    schemas = Schemas(registry)

    def decode(data: bytes | None) -> Any:
        if data is None or not data.startswith(b"\0"):
            return None if data is None else data.decode()
        return _slim(schemas.decode(data))

    return decode


def _slim(value: Any) -> Any:
    """Of an envelope what is checked; an hour's rows are some millions, and equal strings of theirs
    are kept once.
    """
    if not isinstance(value, dict) or "source" not in value:
        return value
    kept = {name: value[name] for name in _CHECKED if name in value}
    for name in ("before", "after", "transaction"):
        if kept.get(name):
            kept[name] = {k: sys.intern(v) if isinstance(v, str) else v for k, v in kept[name].items()}
    return kept


def read_all(bootstrap: str, decode: Decode, topics: Iterable[str], patience_s: float = PATIENCE_S) -> list[Record]:
    """All that a read_committed reader gets now, in the order of place."""
    found: list[Record] = []
    for message in read_to_end(bootstrap, topics, patience_s=patience_s):
        place = message.topic() or "", message.partition() or 0, message.offset() or 0
        headers = cast("Headers", tuple(message.headers() or ()))
        found.append(Record(*place, decode(message.key()), decode(message.value()), message.timestamp()[1], headers))
    return sorted(found, key=lambda record: record.place)
