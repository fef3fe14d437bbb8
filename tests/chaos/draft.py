"""A history that can be changed, and is then written again as a connector would have written it."""

from __future__ import annotations

import copy
import random
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from chaos.checks import History
from chaos.ends import Ended
from chaos.events import is_event
from chaos.reading import Record
from chaos.sample import ended


class Draft:
    """A history that can be changed: rows and events by commit record, in the order in which they
    were written.
    """

    def __init__(self, history: History, rng: random.Random) -> None:
        self.history = history
        self.rng = rng
        self.journal = copy.deepcopy(history.journal)
        self.source = {table: [dict(row) for row in rows] for table, rows in history.source.items()}
        self.commits: list[dict[str, Any]] = [dict(commit.value) for commit in history.commits]
        self.progress = list(history.progress)
        self.ledger = list(history.ledger)
        self.hidden: list[Record] = []
        """Rows that a commit record declares and nobody can see: Kafka has aborted them."""
        self.unsaid: dict[int, list[Record]] = defaultdict(list)
        """Rows in a Kafka transaction of their own without a commit record, before those of the
        commit record by its number.
        """
        self.split: set[int] = set()
        """The numbers of commit records that came in a later Kafka transaction than their rows."""
        by_partition: dict[tuple[str, int], list[Record]] = defaultdict(list)
        for record in (*history.rows, *history.events):
            by_partition[record.topic, record.partition].append(record)
        self.home: dict[int, list[Record]] = {commit["sequence"]: [] for commit in self.commits}
        for commit in self.commits:
            for r in commit["ranges"]:
                rows = by_partition[r["topic"], r["partition"]]
                first = bisect_left(rows, r["first"], key=lambda row: row.offset)
                self.home[commit["sequence"]] += rows[first : first + r["count"]]

    def rows(self, table: str, op: str = "") -> list[tuple[int, Record]]:
        """With the commit records that they are in."""
        topic = f"{self.history.prefix}.public.{table}"
        found = [(sequence, row) for sequence, rows in self.home.items() for row in rows if row.topic == topic]
        return [(n, row) for n, row in found if row.value is not None and (not op or row.value["op"] == op)]

    def transaction(self, *, at_least: int = 2) -> tuple[int, list[Record]]:
        """A committed one with so many rows, the mark among them, and its commit record."""
        found = []
        for sequence, mark in self.rows("marks", "c"):
            rows = [row for row in self.home[sequence] if transaction_of(row) == transaction_of(mark)]
            if len(rows) >= at_least and all(row.value["op"] in {"c", "u"} for row in rows):
                found.append((sequence, rows))
        return self.rng.choice(found)

    def event(self, *, of_a_row: bool = False) -> tuple[int, Record]:
        """An event of a committed transaction, and its commit record; with headers if it was a row
        of the outbox.
        """
        found = [(n, row) for n, rows in self.home.items() for row in rows if is_event(row)]
        return self.rng.choice([(n, row) for n, row in found if row.headers or not of_a_row])

    def drop(self, sequence: int, rows: Sequence[Record]) -> None:
        self.home[sequence] = [row for row in self.home[sequence] if all(row is not other for other in rows)]

    def done(self) -> History:
        """Offsets and, as a connector would declare them, ranges again."""
        written: list[Record] = []
        next_offset: dict[tuple[str, int], int] = defaultdict(int)
        ends: list[Ended] = []

        def write(row: Record) -> int:
            place = row.topic, row.partition
            offset = next_offset[place]
            next_offset[place] += 1
            if all(row is not other for other in self.hidden):
                written.append(replace(row, offset=offset))
            return offset

        def end(rows: Iterable[tuple[str, int]], *, record: bool) -> None:
            ends.append(ended(self.history.prefix, len(ends), rows, record=record))
            for place in rows:
                next_offset[place] += 1  # the commit's marker

        for commit in self.commits:
            ranges: dict[tuple[str, int], dict[str, Any]] = {}
            if unsaid := self.unsaid[commit["sequence"]]:
                for row in unsaid:
                    write(row)
                end({(row.topic, row.partition) for row in unsaid}, record=False)
            rows = self.home[commit["sequence"]]
            for row in rows:
                place, offset = (row.topic, row.partition), write(row)
                r = ranges.setdefault(place, {"topic": place[0], "partition": place[1], "first": offset, "count": 0})
                r["last"], r["count"] = offset, r["count"] + 1
            if commit["sequence"] in self.split:
                end(ranges, record=False)
                end((), record=True)
            else:
                end(ranges, record=True)
            commit["ranges"], commit["rows"] = list(ranges.values()), len(rows)
            if commit["kind"] in {"batch", "prepared"}:
                commit["transactions"] = len({transaction_of(row) for row in rows} - {None})
        commits = [Record(f"{self.history.prefix}.commits", 0, n, None, value) for n, value in enumerate(self.commits)]
        in_place = sorted(written, key=lambda record: record.place)
        return History(
            prefix=self.history.prefix,
            journal=self.journal,
            rows=[record for record in in_place if not is_event(record)],
            commits=commits,
            progress=self.progress,
            ledger=self.ledger,
            source=self.source,
            ends=ends,
            events=[record for record in in_place if is_event(record)],
        )


def transaction_of(row: Record) -> str | None:
    if not isinstance(row.value, dict) or not row.value.get("transaction"):
        return None
    return str(row.value["transaction"]["id"])
