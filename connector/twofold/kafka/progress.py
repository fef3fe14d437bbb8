"""Reads what recovery needs: progress and pins, the in-doubt ledger, and the last commit record.

Each topic is read to the high watermark at the beginning of the read, read_committed. After the
fence none of our transactions is open below the watermark, so the last stable offset reaches it
within moments. If it does not, another program's transaction is open there, and the error says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from confluent_kafka import Message

from twofold.errors import Refused
from twofold.kafka.backfill_commands import TopicCommand
from twofold.kafka.decoding import Decoder, RecordPlace, place_of, read_command, read_text
from twofold.kafka.names import Names
from twofold.kafka.schema_registry import Registry
from twofold.kafka.topic_reader import PartitionId, TopicReader
from twofold_avro.records import Commit, Pin, Prepared, Progress


class _Kept(NamedTuple):
    """The last value of a key, its place, and the time of its record."""

    value: bytes
    place: RecordPlace
    at_ms: int

    @property
    def placed(self) -> tuple[bytes, RecordPlace]:
        """The value with its place, as a decoder takes them."""
        return self.value, self.place


_Latest = dict[bytes, _Kept]

_TAIL = 64
"""The number of offsets before the end in which the last commit record is first searched; each
further search goes four times as far.
"""


@dataclass(frozen=True, slots=True)
class RecoveredState:
    """The state that a predecessor left."""

    progress: Progress | None
    """The progress record; None: nothing was ever committed under this name."""
    takeover: str | None
    """The token of the last takeover."""
    refusal: str | None = None
    """The reason why the last run ended by itself, until a later run has committed."""
    pins: dict[str, Pin] = field(default_factory=dict)
    """The pins by topic."""
    unresolved: dict[str, Prepared] = field(default_factory=dict)
    """The ledger's entries without an outcome, by downstream id."""
    ended: tuple[str, ...] = ()
    """The downstream ids of the other entries, in the order of their last writes."""
    commands: tuple[TopicCommand, ...] = ()
    """People's commands about loads that nobody has executed, in their order."""
    skips: tuple[tuple[str, int, str], ...] = ()
    """People's commands to skip a row (topic, position, name) that no commit has executed."""
    progress_at_ms: int = 0
    """The time of the progress record, by the clock that gives rows their time."""
    progress_begin: int = 0
    """The first offset that the progress topic has. Compaction leaves it at 0: beyond that the
    topic was cleaned by deletion for a time, and pins may be gone."""
    progress_end: int = 0
    """The end of the read part of the progress topic."""
    last_commit: Commit | None = None
    """The last commit record; None: there is none, or retention has deleted it."""

    @property
    def to_reload(self) -> frozenset[str]:
        """The topics of tables that a person wants to be loaded from the beginning."""
        return frozenset(command.topic for command in self.commands if command.name == "start")


class ProgressReader:
    """A reader of the bookkeeping topics; it writes nothing. Used by one thread."""

    def __init__(self, reader: TopicReader, names: Names, registry: Registry) -> None:
        self._reader = reader
        self._names = names
        self._decode = Decoder(registry).decode

    def read(self) -> RecoveredState:
        """Read everything that recovery needs. The result is reliable only after the fence."""
        names = self._names
        places = [PartitionId(topic, 0) for topic in (names.progress, names.prepared, names.commits)]
        ends = {place.topic: (each.low, each.high) for place, each in self._reader.bounds(places).items()}
        low, end = ends[names.commits]
        latest_of = self._read({**ends, names.commits: (max(low, end - _TAIL), end)})
        latest, ledger = latest_of[names.progress], latest_of[names.prepared]
        self._refuse_others(latest)
        last = self._last_commit(latest_of[names.commits], low, end)
        progress, takeover = latest.get(names.progress_key), latest.get(names.takeover_key)
        refusal = latest.get(names.refusal_key)
        pinned = {topic: kept for key, kept in latest.items() if (topic := names.pinned_topic(key))}
        pins = {topic: self._decode(Pin, *kept.placed) for topic, kept in pinned.items()}
        entries = {read_text(key, kept.place): self._decode(Prepared, *kept.placed) for key, kept in ledger.items()}
        unresolved = {key: entry for key, entry in entries.items() if entry.state in {"open", "parked"}}
        return RecoveredState(
            commands=_unexecuted(names, latest, pins),
            skips=tuple(skip for key in latest if (skip := names.skipped_row(key))),
            progress_begin=ends[names.progress][0],
            progress_end=ends[names.progress][1],
            progress_at_ms=0 if progress is None else progress.at_ms,
            progress=None if progress is None else self._decode(Progress, *progress.placed),
            takeover=None if takeover is None else read_text(*takeover.placed),
            refusal=None if refusal is None else refusal.value.decode(errors="replace"),
            pins=pins,
            unresolved=unresolved,
            ended=tuple(key for key in entries if key not in unresolved),
            last_commit=None if last is None else self._decode(Commit, *last.placed),
        )

    def _refuse_others(self, latest: _Latest) -> None:
        """Refuse topics that belong to another connector.

        A takeover record alone may stem from a connector that was refused here.
        """
        others = sorted(
            read_text(key, kept.place)
            for key, kept in latest.items()
            if b"/" not in key and key != self._names.progress_key
        )
        if others:
            raise Refused(
                f"the topics {self._names.prefix}.* belong to the connector {others[0]}, but this connector is {self._names.name}",
                at_stake="two sources would share one set of topics: positions, keys and order would mean nothing",
                repair=f"give this connector its own kafka.prefix, or restore its former name: name = {others[0]!r}",
            )

    def _last_commit(self, tail: _Latest, low: int, end: int) -> _Kept | None:
        """Search the last commit record backwards from the end.

        Markers and aborted records take offsets too, so the record may lie some way before the end.
        """
        back = _TAIL
        while not tail and end - back > low:
            back *= 4
            tail = self._read({self._names.commits: (max(low, end - back), end)})[self._names.commits]
        return next(reversed(tail.values()), None)

    def _read(self, stretches: Mapping[str, tuple[int, int]]) -> dict[str, _Latest]:
        """Return each topic's last committed value of each key, in the order of the last writes.

        Compaction would leave these values, and only they are kept in memory. A record without a
        key has the key b"".
        """
        latest_of: dict[str, _Latest] = {topic: {} for topic in stretches}
        for message in self._reader.read({PartitionId(topic, 0): found for topic, found in stretches.items()}):
            _keep(latest_of[message.topic() or ""], message)
        return latest_of


def _unexecuted(names: Names, latest: _Latest, pins: Mapping[str, Pin]) -> tuple[TopicCommand, ...]:
    """Return the commands behind each pin's; `latest` is in the order of the last writes."""
    given = (
        TopicCommand(kept.place.offset, topic, read_command(*kept.placed))
        for key, kept in latest.items()
        if (topic := names.command_topic(key))
    )
    return tuple(each for each in given if each.topic not in pins or each.number > pins[each.topic].command)


def _keep(latest: _Latest, message: Message) -> None:
    key, value = message.key() or b"", message.value()
    latest.pop(key, None)  # in the order of the last writes
    if value is not None:
        latest[key] = _Kept(value, place_of(message), message.timestamp()[1])
