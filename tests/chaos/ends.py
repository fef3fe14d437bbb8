"""The ends of Kafka transactions, from the log that Kafka's coordinators keep of them
(`__transaction_state`), and the check that each holds what belongs together.

The topics alone do not show whether a commit record came into sight with its rows or later: in both
cases a commit's marker stands behind the rows. The coordinators' log does: it names the partitions
of every transaction that was committed, without any clock. So it is a witness of what a reader saw
in between, and no reader has to watch all the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from chaos.reading import read_all
from late.frames import Primitives

TOPIC: Final = "__transaction_state"
_PREPARE_COMMIT: Final = 2
"""Kafka's state of a transaction that is committed, whatever happens to its markers."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A Kafka transaction that was committed."""

    transactional_id: str
    producer: int
    epoch: int
    begun_ms: int
    places: frozenset[tuple[str, int]]
    """The partitions that were named to the coordinator before the end."""


def parted(prefix: str, committed: Iterable[Ended], commit_records: int) -> Iterator[str]:
    """Kafka transactions that show rows without their commit record, or a commit record without its
    rows.
    """
    commits, bookkeeping = f"{prefix}.commits", {f"{prefix}.progress", f"{prefix}.prepared"}
    records = 0
    for each in committed:
        topics = {topic for topic, _ in each.places}
        records += commits in topics
        rows = topics - bookkeeping - {commits}
        if rows and commits not in topics:
            yield f"a Kafka transaction of {each.transactional_id} (epoch {each.epoch}, begun at {each.begun_ms}) was committed with rows of {sorted(rows)} and without a commit record"  # fmt: skip
    if records != commit_records:
        yield f"{records} Kafka transactions were committed with a commit record, and there are {commit_records} commit records"


def read_ends(bootstrap: str, prefix: str) -> tuple[Ended, ...]:
    """All of the prefix, in no particular order.

    A coordinator that was interrupted writes the same end again: it counts once.
    """
    ends = (decode(record.key, record.value) for record in read_all(bootstrap, bytes_as_they_are, [TOPIC]))
    return tuple({each for each in ends if each is not None and each.transactional_id.startswith(f"{prefix}.")})


def bytes_as_they_are(data: bytes | None) -> bytes | None:
    return data


def decode(key: Any, value: Any) -> Ended | None:
    """One record of the log, if it says that a transaction is committed."""
    if value is None:
        return None
    reader = Primitives(value, 0, False)
    reader.flexible = reader.number("h") >= 1
    producer, epoch, _, state = (reader.number(code) for code in "qhib")
    if state != _PREPARE_COMMIT:
        return None
    places = set()
    for _ in range(reader.count()):
        topic = reader.text() or ""
        places |= {(topic, reader.number("i")) for _ in range(reader.count())}
        reader.tags()
    _, begun = reader.number("q"), reader.number("q")
    name = Primitives(key, 2, False).text()  # behind its version
    return Ended(name or "", producer, epoch, begun, frozenset(places))
