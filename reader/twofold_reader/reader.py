"""Reads a prefix's topics as whole source transactions, in commit order."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from twofold_avro.errors import MalformedRecord, NotFramed
from twofold_avro.names import TopicNames, topic_of
from twofold_avro.records import Commit, Range, RecordDecoder
from twofold_common.errors import Refused, UsageError
from twofold_common.positions import format_lsn, parse_lsn
from twofold_common.table_names import split_table_name
from twofold_reader.bookmark import WHOLE, Bookmark
from twofold_reader.changes import ChangeDecoder, KafkaRecord
from twofold_reader.partition_rows import removed_rows
from twofold_reader.schemas import schemas_at
from twofold_reader.topics import Place, PrefixTopics
from twofold_reader.whole_transactions import CommitSequence, Transaction, assemble

_log = logging.getLogger("twofold_reader")


class Reader:
    """A reader of one prefix, used by one thread.

    It joins no consumer group and stores nothing: the bookmark of what was read is its user's.
    """

    def __init__(
        self,
        prefix: str,
        kafka: Mapping[str, Any],
        registry: str | Callable[[int], str],
        *,
        tables: Sequence[str] | None = None,
    ) -> None:
        """Read these tables, as `schema.table`; None: all of the prefix.

        `kafka` has confluent_kafka's options, such as `bootstrap.servers`. `registry` is the URL of
        the schema registry, or a function that returns a schema by its id.
        """
        names = TopicNames(prefix)
        self._topics = None if tables is None else frozenset(_topic(prefix, each) for each in tables)
        self._events = names.events
        self._not_tables = {names.messages, names.commits, names.progress, names.prepared, names.frontiers}
        schema_of = schemas_at(registry) if isinstance(registry, str) else registry
        self._changes = ChangeDecoder(schema_of)
        self._records = RecordDecoder(schema_of)
        self._kafka = PrefixTopics(prefix, kafka)
        self._prefix = prefix

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the connections to Kafka."""
        self._kafka.close()

    def transactions(self, start: str, *, follow: bool = True) -> Iterator[Transaction]:
        """Return whole transactions in commit order, as they become visible.

        `start` is 'beginning' (the first transaction that Kafka has whole), 'newest' (what is
        committed from now on), a position such as '0/1A2B3C' (what is committed there or later), or
        a bookmark. Without `follow` it ends where nothing more is visible.
        """
        offset, mark, done = self._find_start(start)
        self._kafka.begin(offset)
        return self._read_on(mark, done, follow=follow)

    def _read_on(self, mark: Bookmark | None, done: int, *, follow: bool) -> Iterator[Transaction]:
        sequence = CommitSequence(self._prefix)
        commits: deque[tuple[int, Commit, list[Range]]] = deque()
        while True:
            if not commits:
                for message in self._kafka.read_commits():
                    commit = self._decode(message)
                    sequence.check(commit)
                    if mark is not None:
                        mark.check(commit, self._prefix)
                        mark = None
                    commits.append((message.offset() or 0, commit, [] if done == WHOLE else self._wanted(commit)))
                    done = 0 if done == WHOLE else done
                if not commits:
                    if not follow and self._kafka.is_at_end:
                        return
                    continue
                self._kafka.open(each for _, _, ranges in commits for each in ranges)
            at, commit, ranges = commits.popleft()
            yield from self._transactions_of(commit, at, ranges, done)
            done = 0

    def _transactions_of(
        self, commit: Commit, offset: int, ranges: Sequence[Range], done: int
    ) -> Iterator[Transaction]:
        outcomes = {each.id: each.commit_lsn for each in commit.prepared}
        topics: set[str] = set()
        rows = []
        for index, each in enumerate(ranges):
            is_first = each.topic not in topics
            topics.add(each.topic)
            records = self._kafka.read_range(each)
            rows.append(self._changes.read_rows(records, index, outcomes, with_truncates=is_first))
        return assemble(commit, offset, rows, topics, done)

    def _decode(self, message: KafkaRecord) -> Commit:
        try:
            return self._records.decode(Commit, message.value() or b"")
        except (MalformedRecord, NotFramed) as error:
            raise Refused(
                f"the commit record in {message.topic()} at offset {message.offset()} cannot be read: {error}",
                at_stake="all changes that it declares",
                repair="find who else writes to this topic; then start at 'newest' with nothing stored, and reload each table: twofold backfill start SCHEMA.TABLE",
            ) from error

    def _wanted(self, commit: Commit) -> list[Range]:
        return [each for each in commit.ranges if self._is_wanted(each.topic)]

    def _is_wanted(self, topic: str) -> bool:
        if self._topics is not None:
            return topic in self._topics
        return topic not in self._not_tables and not topic.startswith(self._events)

    # Where to begin

    def _find_start(self, start: str) -> tuple[int, Bookmark | None, int]:
        """Return the commit record's offset, the bookmark that it must fit, and the position up to
        which its transactions are left out.
        """
        first, end = self._kafka.commits_bounds()
        if start == "newest":
            return end, None, 0
        if start == "beginning":
            if (whole := self._first_whole(first, end)) > first:
                _log.warning(
                    "Kafka no longer has all rows of %s's first commit records: they are passed over", self._prefix
                )
            return whole, None, 0
        if "/" in start:
            try:
                position = parse_lsn(start)
            except ValueError as error:
                raise UsageError(
                    f"{start!r} is no position: give it as PostgreSQL writes it, such as '0/1A2B3C'"
                ) from error
            return self._at_position(position, first, end), None, position - 1
        mark = Bookmark.parse(start)
        if mark.offset < first:
            raise removed_rows(f"commit record {mark.sequence}, which the bookmark names", self._prefix)
        if mark.offset >= end:
            mark.check(Commit(0, "batch", 0, 0, 0, 0), self._prefix)
        return mark.offset, mark, mark.done

    def _first_whole(self, first: int, end: int) -> int:
        """Return the offset of the first commit record from which on Kafka has all rows."""
        places = [each for each in self._kafka.partitions(self._prefix) if self._is_wanted(each.topic)]
        kept = {place: low for place, (low, _) in self._kafka.bounds(places).items() if low > 0}
        if not kept:
            return first
        self._kafka.begin(first)
        while kept and not self._kafka.is_at_end:
            for message in self._kafka.read_commits():
                offset = message.offset() or 0
                if offset >= end:
                    return first
                ranges = {Place(each.topic, each.partition): each.first for each in self._wanted(self._decode(message))}
                if any(ranges.get(place, low) < low for place, low in kept.items()):
                    first = offset + 1
                kept = {place: low for place, low in kept.items() if ranges.get(place, -1) < low}
        return first

    def _at_position(self, position: int, first: int, end: int) -> int:
        """Return the offset of the first commit record with something that is committed at the
        position or later.
        """
        low, high = first, end
        while low < high:
            middle = (low + high) // 2
            message = self._kafka.read_commit_at(middle)
            if message is None or self._decode(message).applied_lsn > position:
                high = middle
            else:
                low = (message.offset() or 0) + 1
        if low == first:
            message = self._kafka.read_commit_at(first)
            commit = None if message is None else self._decode(message)
            if commit is not None and commit.sequence > 1 and commit.applied_lsn > position:
                raise removed_rows(f"all commit records since {format_lsn(position)}", self._prefix)
        return low


def _topic(prefix: str, table: str) -> str:
    parts = split_table_name(table)
    if parts is None:
        raise UsageError(f"{table!r} is no table: give schema.table, such as public.account")
    return topic_of(prefix, *parts)
