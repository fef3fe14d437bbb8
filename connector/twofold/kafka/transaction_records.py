"""What a Kafka transaction says about its rows: commit record, ledger, pins, progress and a
frontier. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from twofold.kafka.names import Names
from twofold.kafka.row_batch import Record
from twofold.kafka.schema_registry import SchemaIds
from twofold_avro.records import Commit, Frontier, Pin, Prepared, Progress, Range


class TransactionRecords(NamedTuple):
    """All of it. `ledger` is by downstream id, and None removes an entry; `pins` are by topic."""

    commit: Commit | None
    progress: Progress
    ledger: Mapping[str, Prepared | None]
    pins: Mapping[str, Pin]
    overcomes: tuple[bytes, ...] = ()
    """The keys of the progress topic that count no more."""
    frontier: Frontier | None = None

    def with_ranges(self, ranges: tuple[Range, ...]) -> TransactionRecords:
        """Return it with these ranges, and their rows, in the commit record."""
        if self.commit is None:
            assert not ranges, "rows without a commit record"
            return self
        return self._replace(commit=replace(self.commit, ranges=ranges, rows=sum(r.count for r in ranges)))

    def behind_the_commit_record(self, names: Names, ids: SchemaIds) -> Iterator[tuple[str, list[Record]]]:
        """Yield topic and records, in the order in which they are written; each topic has one
        partition.
        """
        ledger: list[Record] = [
            {"key": key.encode(), "value": None if entry is None else entry.to_bytes(ids.prepared)}
            for key, entry in self.ledger.items()
        ]
        yield names.prepared, ledger
        progress: list[Record] = [
            {"key": names.pin_key(topic), "value": pin.to_bytes(ids.pin)} for topic, pin in self.pins.items()
        ]
        progress.append({"key": names.progress_key, "value": self.progress.to_bytes(ids.progress)})
        progress += ({"key": key, "value": None} for key in self.overcomes)
        yield names.progress, progress
        if self.frontier is not None:
            assert ids.frontier is not None, "a frontier of a connector that is in no source group"
            value = self.frontier.to_bytes(ids.frontier)
            yield names.frontiers, [{"key": names.progress_key, "value": value}]
