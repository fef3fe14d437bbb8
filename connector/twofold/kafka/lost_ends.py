"""Finds ends of our Kafka transactions that some partitions never got, and aborts these parts where
that loses nothing. A step of fencing.

Kafka writes the end of a transaction into each of its partitions, as a marker. Brokers of Kafka
4.3.0 to 4.4.0 leave out a partition without a leader, and take the transaction for complete
(docs/inside/kafka.md). No `read_committed` reader gets beyond such a partition's last stable
offset. Worse, the next marker of the same transactional id ends the forgotten part too, perhaps the
other way round: aborted rows become visible, committed rows are lost. So no id may commit before
this step has passed.

After the ids are initialised, none of our transactions is open. A part that stays open is
forgotten. It is aborted through our ids, if `judge` finds no sign that it was committed. Otherwise
this is a refusal: no client can commit the part.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from confluent_kafka import Message

from twofold.errors import Refused, Unreachable
from twofold.kafka.decoding import Decoder
from twofold.kafka.names import Names
from twofold.kafka.producer import TransactionalProducer
from twofold.kafka.schema_registry import Registry
from twofold.kafka.topic_reader import Bounds, PartitionId, TopicReader
from twofold_avro.names import TopicNames
from twofold_avro.records import Commit, Progress
from twofold_common.positions import Lsn

_log = logging.getLogger(__name__)

_PAUSE_S: Final = 0.05
_NAMED: Final = 3
"""Number of partitions that a message names."""
_MARK: Final = b"aborted by twofold"
"""Key of the records that carry our aborts to the partitions; nobody reads them."""

Hung = dict[PartitionId, Bounds]
"""The partitions with a forgotten part, each of which begins at `stable`."""


@dataclass(frozen=True, slots=True)
class Forgotten:
    """The facts that decide about forgotten parts."""

    hung: Hung
    commits: PartitionId
    progress: PartitionId
    hidden_commits: tuple[Commit, ...]
    """The commit records in the forgotten part of their topic."""
    hidden_progress: tuple[Progress, ...]
    confirmed: Lsn | None
    """Up to where PostgreSQL was told that Kafka has everything; None: perhaps everything."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision: which kinds of producers may abort forgotten parts, or a refusal."""

    through_main: bool = True
    """Whether the producers with main ids may abort. These producers wrote the rows of every commit
    record except those of prepared transactions.
    """
    through_pool: bool = True
    refusal: str | None = None
    """The refusal, if a sign says that the first transaction of a forgotten part was committed, or
    nothing says that it was aborted.
    """


def judge(forgotten: Forgotten, visible: Iterable[Commit]) -> Verdict:
    """Judge the forgotten parts. `visible`: all commit records that readers get. Pure.

    A forgotten part begins with rows of a forgotten transaction. Behind these rows there may be
    rows of other transactions, which have their ends. So an id that may have committed rows there
    writes no abort.
    """
    verdict, last = Verdict(), None
    for last in visible:
        for each in last.ranges:
            bounds = forgotten.hung.get(PartitionId(each.topic, each.partition))
            if bounds is None or each.last < bounds.stable:
                continue
            pool = last.kind == "prepared"
            verdict = Verdict(verdict.through_main and pool, verdict.through_pool and not pool)
            if each.first <= bounds.stable or verdict == Verdict(False, False):
                return Verdict(
                    refusal=f"commit record {last.sequence} declares offsets {each.first} to {each.last} of {each.topic} [{each.partition}]"
                )
    if last is not None and any(p.applied_lsn == last.applied_lsn for p in forgotten.hidden_progress):
        return Verdict(
            refusal=f"commit record {last.sequence} is visible, and the progress that was written with it is not"
        )
    reason = _why_hidden_committed(forgotten)
    return Verdict(refusal=reason) if reason else verdict


def _why_hidden_committed(forgotten: Forgotten) -> str | None:
    """Judge commit records that no reader gets.

    Either no commit ended such a record's transaction, or a commit that reached no partition did.
    PostgreSQL sends the rows again, unless PostgreSQL was told that Kafka has them.
    """
    hidden = forgotten.hidden_commits
    if len(hidden) > 1:
        return f"the commit records {hidden[0].sequence} to {hidden[-1].sequence} are hidden, and a later one is written after an earlier one was committed"
    for commit in hidden:
        if forgotten.confirmed is None or forgotten.confirmed >= commit.applied_lsn:
            return f"commit record {commit.sequence} is hidden, and PostgreSQL may have been told that Kafka has it"
        places = {PartitionId(r.topic, r.partition): r.first for r in commit.ranges}
        if forgotten.progress not in forgotten.hung:
            return f"commit record {commit.sequence} is hidden, and the progress that was written with it is not"
        for place, first in places.items():
            bounds = forgotten.hung.get(place)
            if bounds is None or bounds.stable > first:
                return f"commit record {commit.sequence} is hidden, and its rows in {place.topic} [{place.partition}] are not"
    return None


class LostEnds:
    """The step, for one fencing."""

    def __init__(
        self, reader: TopicReader, names: Names, registry: Registry, confirmed: Lsn | None, timeout_s: float
    ) -> None:
        self._reader = reader
        self._names = names
        self._decoder = Decoder(registry)
        self._confirmed = confirmed
        self._timeout_s = timeout_s

    def abort_forgotten_in_bookkeeping(self, producers: Sequence[TransactionalProducer]) -> None:
        """Return when nothing is open in the bookkeeping. `producers` are initialised."""
        self._abort_forgotten([place for place in self._places if place.topic in self._names.bookkeeping], producers)

    def abort_forgotten_rows(self, producers: Sequence[TransactionalProducer]) -> None:
        """Return when nothing is open in the topics with rows. `producers`: all ids that wrote."""
        self._abort_forgotten(
            [place for place in self._places if place.topic not in self._names.bookkeeping], producers
        )

    @cached_property
    def _places(self) -> list[PartitionId]:
        """Return the partitions of the connector's own topics; nobody creates any meanwhile."""
        places = self._reader.partitions_under(f"{self._names.prefix}.")
        others = tuple(f"{prefix}." for prefix in other_prefixes({place.topic for place in places}, self._names))
        return [place for place in places if not place.topic.startswith(others)]

    def _abort_forgotten(self, places: list[PartitionId], producers: Sequence[TransactionalProducer]) -> None:
        before: Hung = {}
        while hung := self._await_stable(places):
            forgotten = self._investigate()
            verdict = judge(forgotten, self._visible_commits(forgotten))
            if verdict.refusal:
                raise self._refusal(hung, verdict.refusal)
            if _starts(hung) == _starts(before):
                raise _stuck(hung, self._timeout_s)
            _log.warning(
                "Kafka has never ended a transaction of this connector in %s; nothing of it was committed, and it is aborted now",
                _name(hung),
            )
            for producer in producers:
                is_main = producer.transactional_id in self._names.main_ids
                if verdict.through_main if is_main else verdict.through_pool:
                    self._abort(producer, hung)
            before = hung

    def _await_stable(self, places: list[PartitionId]) -> Hung:
        """Wait until everything that was written has ended; return the partitions where something
        has not ended within the timeout.
        """
        hung = _open(self._reader.bounds(places))
        deadline = time.monotonic() + self._timeout_s
        while hung and time.monotonic() < deadline:
            time.sleep(_PAUSE_S)
            now = self._reader.bounds(hung)
            hung = {place: now[place] for place, first in hung.items() if now[place].stable < first.high}
        return hung

    def _investigate(self) -> Forgotten:
        """Look at every topic of the prefix: one transaction may be forgotten in several."""
        hung = _open(self._reader.bounds(self._places))
        commits, progress = PartitionId(self._names.commits, 0), PartitionId(self._names.progress, 0)
        return Forgotten(
            hung=hung,
            commits=commits,
            progress=progress,
            hidden_commits=tuple(self._decoder.decode_message(Commit, each) for each in self._hidden(hung, commits)),
            hidden_progress=tuple(
                self._decoder.decode_message(Progress, each)
                for each in self._hidden(hung, progress)
                if each.key() == self._names.progress_key
            ),
            confirmed=self._confirmed,
        )

    def _visible_commits(self, forgotten: Forgotten) -> Iterable[Commit]:
        visible = self._reader.visible([forgotten.commits])
        records = self._reader.read(visible, may_begin_later=True)
        return (self._decoder.decode_message(Commit, each) for each in records)

    def _hidden(self, hung: Hung, place: PartitionId) -> list[Message]:
        """Return the records in the forgotten part, which no reader gets."""
        if place not in hung:
            return []
        stretches = {place: (hung[place].stable, hung[place].high)}
        return [each for each in self._reader.read(stretches, isolation="read_uncommitted") if each.value()]

    @staticmethod
    def _abort(producer: TransactionalProducer, hung: Hung) -> None:
        """Write an abort marker of this id into each partition."""
        producer.begin()
        for place in hung:
            producer.produce(place.topic, place.partition, [{"key": _MARK, "value": b""}])
        producer.abort()

    def _refusal(self, hung: Hung, reason: str) -> Refused:
        topics = " ".join(sorted({place.topic for place in hung} - self._names.bookkeeping))
        parts = "; ".join(
            f"--topic {p.topic} --partition {p.partition} --start-offset {b.stable}" for p, b in hung.items()
        )
        return Refused(
            f"Kafka has never ended a transaction of this connector in {_name(hung)}, and it may be committed: {reason}",
            at_stake="rows that PostgreSQL has committed: no client can commit them there any more, and aborting removes them",
            repair=f"abort them by kafka-transactions.sh --bootstrap-server ... abort, for each of: {parts}; then start the connector,"
            f" and load the tables{f' of {topics}' if topics else ''} again by `twofold backfill start` as it says",
        )


def other_prefixes(topics: Set[str], names: Names) -> set[str]:
    """Return the prefixes of other connectors that begin with ours and a dot, by their topics."""
    others = (TopicNames(prefix) for topic in topics if (prefix := topic.rpartition(".")[0]) != names.prefix)
    return {each.prefix for each in others if topics >= {each.commits, each.progress, each.prepared}}


def _starts(hung: Hung) -> dict[PartitionId, int]:
    return {place: bounds.stable for place, bounds in hung.items()}


def _open(bounds: Hung) -> Hung:
    return {place: each for place, each in bounds.items() if each.stable < each.high}


def _name(hung: Hung) -> str:
    named = [f"{place.topic} [{place.partition}] from offset {each.stable} on" for place, each in hung.items()]
    more = len(named) - _NAMED
    return ", ".join(named[:_NAMED]) + (f" and {more} more partitions" if more > 0 else "")


def _stuck(hung: Hung, timeout_s: float) -> Unreachable:
    (topic, partition), _ = next(iter(hung.items()))
    return Unreachable(
        f"Kafka has a transaction open in {_name(hung)}, and has not ended it for {timeout_s:.0f} s: brokers are away, or it is another program's;"
        f" find it with kafka-transactions.sh --bootstrap-server ... find-hanging --topic {topic} --partition {partition}"
    )
