"""What the connector has published of each table: rows, the time of the last change, the state of
its load, errors that name it.

Counted from the ranges of commit records, once a Kafka transaction: a row costs nothing here. A
commit may have a thousand ranges, so that a range costs two additions. Not for two threads at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from twofold_avro.records import Pin, Range
from twofold_common.positions import format_lsn
from twofold_common.table_names import reload_command


@dataclass(slots=True)
class TableCount:
    """What was published of one table since the process began or last stood by."""

    topic: str
    table: str
    load: str
    """As the table's pin has it: ready, waiting, running, paused."""
    schema_id: int | None = None
    """The registry's id of the envelope's schema, as it is published now."""
    gone: bool = False
    """No such table is published any more; rows that do not fit its topic are passed over."""
    stale: str = ""
    """Why its topic may lack changes that PostgreSQL did not send; empty: nothing is known."""
    lacks: tuple[str, ...] = ()
    """The positions of rows that its topic lacks because a person had them skipped."""
    repair: str = ""
    """The command that reloads a stale table, or one that lacks a row."""
    rows: int = 0
    """Records in its topic: the tombstone behind a delete is one."""
    changed_at: float | None = None
    errors: int = 0
    error: str = ""
    """The last error that named the table."""


@dataclass(frozen=True, slots=True)
class TableChange:
    """What a commit has changed of a table itself, for the journal."""

    what: str
    text: str
    is_load: bool = False


class TableCounts:
    """All tables that have a topic."""

    def __init__(self) -> None:
        self._tables: dict[str, TableCount] = {}

    def copy(self) -> list[TableCount]:
        """Return the present counts of all tables."""
        return [replace(each) for each in self._tables.values()]

    def know(self, pins: Mapping[str, Pin]) -> None:
        """Take over the tables that recovery found. The counts of earlier runs stay."""
        self._tables = {topic: self._pinned(topic, pin) for topic, pin in tuple(pins.items())}

    def repin(self, pins: Mapping[str, Pin]) -> Iterator[TableChange]:
        """Take over the pins of a commit; yield what has changed of the tables."""
        for topic, pin in pins.items():
            before, now = self._tables.get(topic), self._pinned(topic, pin)
            self._tables[topic] = now
            yield from _changes(before, now)

    def count(self, ranges: Iterable[Range], now: float) -> None:
        """Add the rows of a commit."""
        for each in ranges:
            if (known := self._tables.get(each.topic)) is not None:
                known.rows += each.count
                known.changed_at = now

    @property
    def stale(self) -> int:
        """How many tables' topics may lack something."""
        return sum(bool(each.stale) for each in self._tables.values())

    def blame(self, error: str) -> None:
        """Note an error at the tables that it names."""
        words = set(re.findall(r"[^\s,;:()'\"]+", error))
        for topic, known in self._tables.items():
            if topic in words or known.table in words:
                known.errors += 1
                known.error = error

    def _pinned(self, topic: str, pin: Pin) -> TableCount:
        known = self._tables.get(topic) or TableCount(topic, f"{pin.schema}.{pin.table}", pin.backfill)
        return replace(
            known,
            load=pin.backfill,
            schema_id=pin.value_schema_id,
            gone=pin.is_passed_over,
            stale=pin.stale or "",
            lacks=tuple(format_lsn(row.lsn) for row in pin.skipped),
            repair=reload_command(pin.schema, pin.table) if pin.stale or pin.skipped else "",
        )


def _changes(before: TableCount | None, now: TableCount) -> Iterator[TableChange]:
    if before is None:
        yield TableChange("published", f"{now.table} in {now.topic} (schema {now.schema_id})")
    elif before.schema_id != now.schema_id and before.schema_id is not None:
        yield TableChange("new version", f"{now.table} (schema {now.schema_id} after {before.schema_id})")
    if now.gone and not (before and before.gone):
        yield TableChange("not published any more", now.table)
    if now.stale and not (before and before.stale == now.stale):
        yield TableChange("stale", f"{now.table}: {now.stale}")
    if new := [each for each in now.lacks if not (before and each in before.lacks)]:
        yield TableChange("row skipped", f"{now.table}: at {', '.join(new)}")
    was = before.load if before else "ready"
    if now.load == was:
        return
    if now.load == "ready":
        yield TableChange("load ended", now.table, is_load=True)
    elif now.load == "paused":
        yield TableChange("load paused", now.table, is_load=True)
    elif was == "paused":
        yield TableChange("load resumed", now.table, is_load=True)
    elif was == "ready":
        yield TableChange("load begun", now.table, is_load=True)
