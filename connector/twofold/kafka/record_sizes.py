"""The limits on a record's size along its way, and the refusal of a record that exceeds them. Pure.

The topics of the bookkeeping are made for records up to `RECORD_BYTES`, and every producer takes
that much: a commit record names each partition that its transaction wrote to, and a source
transaction is never split.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

from twofold.errors import Refused
from twofold.kafka.row_batch import Record

RECORD_BYTES = 8 << 20
"""The size that services allow for the records of a topic."""
CLIENT_BYTES_MAX = 1_000_000_000
"""librdkafka's own bound of message.max.bytes."""
REQUEST_BYTES = 100 << 20
"""The brokers' socket.request.max.bytes, if nobody has set it."""
_MEMORY, _MEMORY_NAMED = 6, 512 << 20
"""The factor between a row's size and the connector's memory that the row takes (PostgreSQL's
client, the row, the record, and what the producer sends and compresses), and the size from which on
the refusal says so: a small container would be killed again and again.
"""
_MIB = 1 << 20
_value = itemgetter("value")


def largest_value(records: Sequence[Record]) -> int:
    """Return the size of the largest value. Every row passes this loop, which is C's."""
    return max(map(len, filter(None, map(_value, records))), default=0)


def largest_record(records: Sequence[Record]) -> Record:
    """Return the record with the largest value."""
    return max(records, key=lambda record: len(record["value"] or b""))


def queue_kbytes(message_bytes: int, least: int) -> int:
    """Return how much a producer may hold unsent: at least two of the largest records."""
    return max(least, message_bytes * 2 // 1024)


def too_large(topic: str, partition: int, size: int, bootstrap: str) -> Refused:
    """Refuse a record, and name every limit that it meets, on both sides."""
    problem = f"a record of {topic} [{partition}] is too large for Kafka: it has {size} bytes"
    at_stake = "the row cannot be delivered, and skipping it would lose it"
    needed = (size // _MIB + 2) * _MIB
    if needed > CLIENT_BYTES_MAX:
        return Refused(
            f"{problem}, and no producer sends more than {CLIENT_BYTES_MAX}",
            at_stake=at_stake,
            repair='leave the column out: [[policy.columns]] with column = "SCHEMA.TABLE.COLUMN" and action = "drop"; then twofold run',
        )
    steps = [
        f"kafka-configs --bootstrap-server {bootstrap} --alter --topic {topic} --add-config max.message.bytes={needed}"
    ]
    if needed > RECORD_BYTES:
        steps.insert(0, f'set "message.max.bytes" = {needed} in [kafka.options]')
    if needed > REQUEST_BYTES:
        steps.append(
            f"set socket.request.max.bytes={needed + _MIB} in server.properties of every broker, whose heap must hold several such requests, and restart it"
        )
    if size * _MEMORY > _MEMORY_NAMED:
        steps.append(
            f"let the connector have {size * _MEMORY // _MIB} MiB of memory (resources.limits.memory in Kubernetes, MemoryMax in systemd)"
        )
    several = "all of these, then twofold run: " if len(steps) > 1 else ""
    repair = f"{several}{'; '.join(steps)}" + ("" if several else "; then twofold run")
    return Refused(problem, at_stake=at_stake, repair=repair)


class RecordTooLarge(Refused):
    """A record that Kafka, or its client, does not take; `record`: None if it is not known."""

    def __init__(self, topic: str, partition: int, size: int, record: Record | None, bootstrap: str) -> None:
        refusal = too_large(topic, partition, size, bootstrap)
        super().__init__(refusal.what, at_stake=refusal.at_stake, repair=refusal.repair)
        self.topic = topic
        self.record = record
