"""`RowBatch`: encoded records in order, per topic and partition, between transcoder and producer.

A batch has plain lists and dicts, because the transcoder appends to those and `produce_batch` takes
them: no object is made per row beyond the record itself. A batch lives in memory only. After a kill
PostgreSQL sends its rows again, because nothing in the batch was confirmed.
"""

from __future__ import annotations

import marshal
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from twofold_avro import wire

PROVISIONAL_KEY_ID = 0x7F00_0000
"""The id of a key schema that is not registered yet, whatever its table and version. No
registry's ids come near it."""

VOID = ""
"""The topic of rows that nobody is to receive."""

SKIPPED = " "
"""The topic of notes about rows that a person skipped; the merger takes the notes out. No real
topic has this name.
"""

Record = dict[str, Any]
"""`{"key": bytes | None, "value": bytes | None}`."""


@dataclass(frozen=True, slots=True)
class RegisteredTable:
    """A table whose schemas were registered after its rows had got a provisional id."""

    topic: str
    provisional_id: int
    key_id: int
    value_id: int
    partitions: int
    keyless: bool


class RowBatch:
    """Records per topic and partition.

    The writer counts `bytes` itself (`batch.bytes += len(payload)`): it knows the raw message's
    length, and a rough bound suffices.
    """

    __slots__ = ("_topics", "bytes")

    def __init__(self) -> None:
        self._topics: dict[str, list[list[Record]]] = {}
        self.bytes = 0

    def lists(self, topic: str, partitions: int) -> list[list[Record]]:
        """Return the topic's lists, one per partition, to append to.

        The call is cheap, but the result is worth keeping for a turn.
        """
        lists = self._topics.get(topic)
        if lists is None:
            lists = self._topics[topic] = [[] for _ in range(partitions)]
        assert len(lists) == partitions, f"{topic} has {len(lists)} partitions in this batch, not {partitions}"
        return lists

    def fits(self, topic: str, partitions: int) -> bool:
        """Return whether the topic has this number of partitions here, or does not occur."""
        lists = self._topics.get(topic)
        return lists is None or len(lists) == partitions

    @property
    def records(self) -> int:
        """Count the records, tombstones included, at each call."""
        return sum(len(records) for lists in self._topics.values() for records in lists)

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that have at least one record."""
        return tuple(topic for topic, lists in self._topics.items() if any(lists))

    def partitions(self) -> Iterator[tuple[str, int, list[Record]]]:
        """Yield every topic and partition with records, in a fixed order."""
        for topic, lists in self._topics.items():
            for partition, records in enumerate(lists):
                if records:
                    yield topic, partition, records

    def take_topic(self, topic: str) -> RowBatch | None:
        """Remove and return the topic's records as a batch; None if there are none."""
        lists = self._topics.pop(topic, None)
        if not lists or not any(lists):
            return None
        taken = RowBatch()
        taken._topics[topic] = lists
        return taken

    def add(self, other: RowBatch) -> None:
        """Append the other batch's records and bytes; the other batch must not be used any more."""
        for topic, theirs in other._topics.items():
            if topic not in self._topics:
                self._topics[topic] = theirs
                continue
            for mine, records in zip(self.lists(topic, len(theirs)), theirs, strict=True):
                if records:
                    mine.extend(records)
        self.bytes += other.bytes

    def clear(self) -> None:
        """Empty the batch; lists that `lists` returned before are no longer part of it."""
        self._topics.clear()
        self.bytes = 0

    def put_registered_ids(self, tables: Iterable[RegisteredTable]) -> None:
        """Replace provisional schema ids by real ones.

        The key's id is part of the bytes that choose the partition. So the rows are distributed
        again, and each key's rows keep their order.
        """
        for table in tables:
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
        """Serialise the batch for the spool's files, which only this process reads."""
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
    """Put each record into its key's partition.

    A record without a key (a truncate) is in every list, before and after, at the same place among
    such records.
    """
    if partitions == 1 == len(lists):
        return lists
    new: list[list[Record]] = [[] for _ in range(partitions)]
    iterators = [iter(records) for records in lists]
    while True:
        truncates = []
        for remaining in iterators:
            for record in remaining:
                if record["key"] is None:
                    truncates.append(record)
                    break
                new[wire.partition_of(record["key"], partitions)].append(record)
        if not truncates:
            return new
        for records in new:
            records.append(dict(truncates[0]))
