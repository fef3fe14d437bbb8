"""Folds a topic into the rows that it leaves, by the rules of docs/reference/envelope.md.

No code of the product.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from suites.texts import of_avro
from suites.topics import Record

Row = Mapping[str, str]
"""A column's text by its name; what is null is not there."""

OPERATIONS: Final = frozenset("curdtm")


@dataclass
class Folded:
    """A table as its topic tells it."""

    table: str
    keyed: dict[bytes, Row] = field(default_factory=dict)
    whole: Counter[frozenset[tuple[str, str]]] = field(default_factory=Counter)
    """Rows of a table without a key."""
    operations: Counter[str] = field(default_factory=Counter)
    unmatched: int = 0
    """Old rows without a key that were not there."""
    _columns: tuple[str, ...] = ()
    _left: Row = field(default_factory=dict)
    """The row that was deleted last: the one whose key has changed, if an insert has an unchanged
    column.
    """

    def rows(self) -> Iterable[Row]:
        yield from self.keyed.values()
        for row, times in self.whole.items():
            for _ in range(times):
                yield dict(row)

    def take(self, record: Record) -> None:
        value = record.value
        if value is None:  # a tombstone: the delete before it said the same
            if record.key is not None:
                self.keyed.pop(record.key, None)
            return
        operation = value["op"]
        assert operation in OPERATIONS, value
        self.operations[operation] += 1
        self._describe(record.columns)
        if operation == "t":
            self.keyed.clear()
            self.whole.clear()
        elif record.key is None:
            self._take_whole(value)
        elif operation == "d":
            self._left = self.keyed.pop(record.key, {})
        else:
            before = self.keyed.get(record.key, self._left)
            self.keyed[record.key] = _row(value, "after", before)

    def _take_whole(self, value: Any) -> None:
        if value["before"] is not None:
            old = frozenset(_row(value, "before", {}).items())
            if self.whole[old] > 0:
                self.whole[old] -= 1
            else:
                self.unmatched += 1
        if value["after"] is not None:
            self.whole[frozenset(_row(value, "after", {}).items())] += 1

    def _describe(self, columns: tuple[str, ...]) -> None:
        """What a column that was dropped had said of rows without a key is no part of their old
        rows any more.
        """
        if self._columns and set(self._columns) - set(columns):
            folded: Counter[frozenset[tuple[str, str]]] = Counter()
            for row, times in self.whole.items():
                folded[frozenset(pair for pair in row if pair[0] in columns)] += times
            self.whole = folded
        self._columns = columns


def fold(records: Iterable[Record]) -> dict[str, Folded]:
    """The tables by `schema.table`, as the rows themselves name it."""
    topics: dict[str, Folded] = {}
    for record in records:
        if (folded := topics.get(record.topic)) is None:
            source = record.value["source"]
            folded = topics[record.topic] = Folded(f"{source['schema']}.{source['table']}")
        folded.take(record)
    return {folded.table: folded for folded in topics.values()}


def _row(value: Any, which: str, before: Row) -> Row:
    row = {_plain(name): text for name, each in value[which].items() if (text := of_avro(each)) is not None}
    row |= {each["column"]: each["text"] for each in value["special"] if each["row"] == which}
    if which == "after":
        row |= {name: before[name] for name in value["unchanged"] if name in before}
    return row


def _plain(name: str) -> str:
    """PostgreSQL's name of a field: `_x<hex>_` stands for a character that Avro does not allow."""
    parts = name.split("_x")
    plain = parts[0]
    for part in parts[1:]:
        code, _, rest = part.partition("_")
        plain += chr(int(code, 16)) + rest
    return plain
