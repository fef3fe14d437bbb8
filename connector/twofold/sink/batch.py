"""`RowBatch`: encoded records in order, per topic and partition, on their way from the transcoder to a producer.

Plain lists and dicts, because that is what the transcoder appends to and what `produce_batch` takes: nothing is made per row beyond the record itself.
A batch lives in memory only. On kill -9 it is gone and PostgreSQL sends its rows again: nothing in it was confirmed.
"""

from __future__ import annotations

import marshal
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from twofold_avro import wire

PROVISIONAL_KEY_ID = 0x7F00_0000
"""Stands for the id of a key's schema that is not registered yet, whatever its table and the table's version; no registry's ids come near it."""

VOID = ""
"""In a topic's place: for rows that nobody is to have."""

Record = dict[str, Any]
"""`{"key": bytes | None, "value": bytes | None}`."""


@dataclass(frozen=True, slots=True)
class Settled:
    """A table whose schemas were registered after its rows had been encoded with a provisional id."""

    topic: str
    provisional_id: int
    key_id: int
    value_id: int
    partitions: int
    keyless: bool


class RowBatch:
    """Records per topic and partition.

    The writer counts `bytes` itself (`batch.bytes += len(payload)`): the raw message's length is at hand there, and a rough bound is all that is wanted.
    """

    __slots__ = ("_topics", "bytes")

    def __init__(self) -> None:
        self._topics: dict[str, list[list[Record]]] = {}
        self.bytes = 0

    def lists(self, topic: str, partitions: int) -> list[list[Record]]:
        """The topic's lists, one a partition, to append to. Cheap, but worth keeping for the length of a turn."""
        lists = self._topics.get(topic)
        if lists is None:
            lists = self._topics[topic] = [[] for _ in range(partitions)]
        assert len(lists) == partitions, f"{topic} has {len(lists)} partitions in this batch, not {partitions}"
        return lists

    def fits(self, topic: str, partitions: int) -> bool:
        """Has it no other number of partitions in this batch?"""
        lists = self._topics.get(topic)
        return lists is None or len(lists) == partitions

    @property
    def records(self) -> int:
        """How many records there are, tombstones included. Counted when asked."""
        return sum(len(records) for lists in self._topics.values() for records in lists)

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that have at least one record."""
        return tuple(topic for topic, lists in self._topics.items() if any(lists))

    def partitions(self) -> Iterator[tuple[str, int, list[Record]]]:
        """Every topic and partition that has records, in a fixed order."""
        for topic, lists in self._topics.items():
            for partition, records in enumerate(lists):
                if records:
                    yield topic, partition, records

    def take(self, topic: str) -> RowBatch | None:
        """The topic's records, which are no longer part of this batch; None if there are none."""
        lists = self._topics.pop(topic, None)
        if not lists or not any(lists):
            return None
        taken = RowBatch()
        taken._topics[topic] = lists
        return taken

    def add(self, other: RowBatch) -> None:
        """Its records behind those that are here, and its bytes; it is not to be used any more."""
        for topic, theirs in other._topics.items():
            for mine, records in zip(self.lists(topic, len(theirs)), theirs, strict=True):
                mine.extend(records)
        self.bytes += other.bytes

    def clear(self) -> None:
        """Empty it; the lists that `lists` gave out before are no longer part of it."""
        self._topics.clear()
        self.bytes = 0

    def settle(self, settled: Iterable[Settled]) -> None:
        """Put real schema ids in the place of provisional ones. The key's id is part of the bytes that choose the partition, so the rows are distributed anew, each key's in their order."""
        for table in settled:
            lists = self._topics.get(table.topic)
            if lists is None:
                continue
            for records in lists:
                for record in records:
                    record["key"] = _with_id(record["key"], PROVISIONAL_KEY_ID, table.key_id)
                    record["value"] = _with_id(record["value"], table.provisional_id, table.value_id)
            if table.keyless:  # its rows stay in the first partition
                self._topics[table.topic] = lists + [[] for _ in range(len(lists), table.partitions)]
            else:
                self._topics[table.topic] = _distributed(lists, table.partitions)

    def to_bytes(self) -> bytes:
        """For the spool's files, which only this process reads."""
        return marshal.dumps((self.bytes, self._topics))

    @classmethod
    def from_bytes(cls, data: bytes) -> RowBatch:
        batch = cls()
        batch.bytes, batch._topics = marshal.loads(data)  # noqa: S302  (written by this process into a file without a name)
        return batch


def _with_id(data: bytes | None, provisional_id: int, real_id: int) -> bytes | None:
    if data is None or not data.startswith(wire.header(provisional_id)):
        return data
    return wire.header(real_id) + data[wire.HEADER_BYTES :]


def _distributed(lists: list[list[Record]], partitions: int) -> list[list[Record]]:
    """Each record into its key's partition; a record without a key (a truncate) stands in every list, at the same place among its like, and so it does afterwards."""
    if partitions == 1 == len(lists):
        return lists
    new: list[list[Record]] = [[] for _ in range(partitions)]
    rest = [iter(records) for records in lists]
    while True:
        truncates = []
        for remaining in rest:
            for record in remaining:
                if record["key"] is None:
                    truncates.append(record)
                    break
                new[wire.partition_of(record["key"], partitions)].append(record)
        if not truncates:
            return new
        for records in new:
            records.append(dict(truncates[0]))
