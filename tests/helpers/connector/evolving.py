"""A table that a test changes while a connector carries it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fixtures.connector import Installation
from helpers.avro.schema_readers import SchemaReader, Subject
from helpers.connector.topics import Reader, Seen, Tail

COLUMNS = "id int PRIMARY KEY, v int, big bigint, small real, note varchar(10), price numeric(10,2)"
FIRST = "(1, 10, 100, 1.5, 'one', 1.25)"


class Evolving:
    """A table of the schema `e`, all of which is published, with its topic and its subject."""

    def __init__(self, here: Installation, name: str) -> None:
        self.here = here
        self.table = name
        self.name = f"e.{name}"
        self.topic = f"{here.prefix}.e.{name}"
        self.subject = Subject(here.reader.registry_url, self.topic)

    def made(self, columns: str = COLUMNS, first: str = FIRST) -> Tail:
        """Made, with a first row that is in the topic."""
        return self.made_of(*self.statements(columns, first))

    def statements(self, columns: str = COLUMNS, first: str = FIRST) -> tuple[str, str]:
        """That make it, with a first row."""
        return f"CREATE TABLE {self.name} ({columns})", f"INSERT INTO {self.name} VALUES {first}"

    def is_row(self, key: int) -> Callable[[Seen], bool]:
        """Among the rows of several tables."""
        return lambda s: s.topic == self.topic and is_row(key)(s)

    def made_of(self, *statements: str) -> Tail:
        """By these, the last of which writes row 1."""
        self.sql(*statements)
        tail = self.here.reader.tail([self.topic])
        self.here.at_end(tail.close)
        assert tail.wait_for(is_row(1))
        return tail

    def sql(self, *statements: str) -> None:
        self.here.sql(*statements)

    def rows(self, version: int | None = None, records: list[Seen] | None = None) -> dict[int, Any]:
        """What a reader that knows one version of the schema has as each row's last `after`;
        without: as it was written.

        `records`: what RawReader has read of all topics; else the topic is read.
        """
        plain = self.here.reader
        if records is None:
            records = RawReader(plain.bootstrap, plain.registry_url).read([self.topic])
        mine = [s for s in records if s.topic == self.topic]
        if version is None:
            return _rows(plain, mine)
        with SchemaReader(plain.bootstrap, plain.registry_url, self.subject.schema(version)) as reader:
            return _rows(reader, mine)

    def prepare(self, gid: str, *statements: str) -> None:
        """A prepared transaction that the connector has met."""
        self.here.prepare(gid, *statements)
        ledger = self.here.reader.tail([f"{self.here.prefix}.prepared"])
        try:
            assert ledger.wait_for(lambda s: bool(s.value and s.value["gid"] == gid))
        finally:
            ledger.close()


def is_row(key: int) -> Callable[[Seen], bool]:
    return lambda s: bool(s.value and s.value["after"] and s.value["after"]["id"] == key)


class RawReader(Reader):
    """Leaves the decoding to readers of several schemas."""

    def decode(self, data: bytes | None) -> Any:
        return data


def _rows(reader: Reader, records: list[Seen]) -> dict[int, Any]:
    values = (reader.decode(s.value) for s in records)
    return {value["after"]["id"]: value["after"] for value in values if value and value["after"]}
