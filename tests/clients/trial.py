"""What a reader does with a table, column by column: right, right with a setting, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import psycopg
from psycopg import sql

from clients.rows import CannotReadError, Rows, literal
from clients.samples import Sample
from clients.tables import Table

RIGHT = "right"


class TopicReader(Protocol):
    """A program that reads topics."""

    @property
    def name(self) -> str: ...
    @property
    def at_once(self) -> int:
        """How many reads may run side by side."""

    def ways(self, table: Table) -> Sequence[str]:
        """The settings that it is tried with, in turn; the first is none."""

    def read(self, way: str, table: Table, samples: Sequence[Sample]) -> Rows:
        """The table's rows with these columns, and `n`.

        CannotReadError: the reader has ended, or shows no table.
        """


class Trial:
    """Compares what readers show with what PostgreSQL has; PostgreSQL reads the literals."""

    def __init__(self, dsn: str, rows: Callable[[Table], Rows]) -> None:
        self._dsn = dsn
        self._rows = rows
        self._without: dict[tuple[str, str, str], bool] = {}
        """Whether a reader fails with a table's rows, whatever their columns are."""

    def verdicts(self, reader: TopicReader, table: Table) -> dict[str, str]:
        """By sample: `right`, `right: <the setting>` or `cannot: <why>`."""
        found: dict[str, str] = {}
        # Types of one kind fail together: then few halves are tried.
        left = sorted(table.samples, key=lambda sample: (sample.type.endswith("[]"), sample.type))
        for way in reader.ways(table):
            if not left:
                break
            for name, verdict in self._tried(reader, way, table, left).items():
                found[name] = f"{RIGHT}: {way}" if way and verdict == RIGHT else verdict
            left = [sample for sample in left if not found[sample.name].startswith(RIGHT)]
        return found

    def _tried(self, reader: TopicReader, way: str, table: Table, samples: Sequence[Sample]) -> dict[str, str]:
        """A failure is a column's if the error names it or the column is alone; else each half is
        tried.
        """
        try:
            rows = reader.read(way, table, samples)
        except CannotReadError as error:
            verdict = f"cannot: {error}"
            named = next((sample for sample in samples if f'"{sample.column}"' in str(error)), None)
            if named is None and len(samples) > 1 and self._fails_without_columns(reader, way, table):
                return {sample.name: verdict for sample in samples}
            alone = {named.name: verdict} if named else {samples[0].name: verdict} if len(samples) == 1 else {}
            others = [sample for sample in samples if sample.name not in alone]
            halves = [half for half in (others[: len(others) // 2], others[len(others) // 2 :]) if half]
            with ThreadPoolExecutor(reader.at_once) as pool:
                for found in pool.map(lambda half: self._tried(reader, way, table, half), halves):
                    alone |= found
            return alone
        wanted = self._rows(table)
        return {sample.name: self._compared(rows, wanted, sample) for sample in samples}

    def _fails_without_columns(self, reader: TopicReader, way: str, table: Table) -> bool:
        if (reader.name, way, table.table) not in self._without:
            try:
                reader.read(way, table, ())
                fails = False
            except CannotReadError:
                fails = True
            self._without[reader.name, way, table.table] = fails
        return self._without[reader.name, way, table.table]

    def _compared(self, rows: Rows, wanted: Rows, sample: Sample) -> str:
        if missing := wanted.keys() - rows.keys():
            return f"cannot: {len(missing)} rows are missing"
        if more := rows.keys() - wanted.keys():
            return f"cannot: {len(more)} rows are there that should not be"
        for key, want in sorted(wanted.items()):
            shown = rows[key]
            if shown["n"] != want["n"]:
                return "cannot: a row is not as it was changed"
            got, text = literal(shown[sample.column]), want[sample.column]
            if got is None and text is not None:
                return "cannot: NULL"
            if got != text and self._canonical(got, sample.type) != text:
                return f"cannot: {(got or 'NULL')[:40]} for {(text or 'NULL')[:40]}"
        return RIGHT

    def _canonical(self, text: str | None, type_: str) -> str | None:
        """As PostgreSQL writes a value of the type."""
        query = sql.SQL("SELECT %s::text::{}::text").format(sql.SQL(type_))
        with psycopg.connect(self._dsn, options="-c timezone=UTC") as connection:
            try:
                row = connection.execute(query, [text]).fetchone()
            except psycopg.DataError:
                return f"no {type_}"
        return row[0] if row else None
