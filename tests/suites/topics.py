"""Reads a connector's topics as any consumer would: read_committed, decoded by the registry's
schemas alone. No code of the product.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from helpers.reading import Schemas, make_consumer, read_to_end, topics_of

OF_NO_TABLE = ("commits", "progress", "prepared", "messages")


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a table's topic. The key is the bytes that it is: Kafka knows no more of it."""

    topic: str
    key: bytes | None
    value: Any
    columns: tuple[str, ...]
    """What the schema's rows have, whether this record has a row or not."""


class Topics:
    """Of one prefix."""

    def __init__(self, bootstrap: str, registry_url: str, prefix: str) -> None:
        self._bootstrap = bootstrap
        self._schemas = Schemas(registry_url)
        self._prefix = prefix
        self._columns: dict[bytes, tuple[str, ...]] = {}
        """By the schema's id."""

    def records(self) -> Iterator[Record]:
        """All records of tables that a reader gets now; those of a partition in their order."""
        with closing(make_consumer(self._bootstrap)) as reader:
            names = {*topics_of(reader, self._prefix)} - {f"{self._prefix}.{name}" for name in OF_NO_TABLE}
        for message in read_to_end(self._bootstrap, names):
            value = message.value()
            if value is None:
                yield Record(message.topic() or "", message.key(), None, ())
            else:
                decoded, number = self._schemas.decode(value), value[1:5]
                columns = self._columns.get(number) or _columns(self._schemas.find(value))
                self._columns[number] = columns
                yield Record(message.topic() or "", message.key(), decoded, columns)


def _columns(envelope: dict[str, Any]) -> tuple[str, ...]:
    """The fields of `before`, whose type is a union of null and the row's record."""
    before = next(field for field in envelope["fields"] if field["name"] == "before")
    row = next(branch for branch in before["type"] if isinstance(branch, dict))
    return tuple(field.get("postgres.name", field["name"]) for field in row["fields"])
