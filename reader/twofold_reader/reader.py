"""Reads a prefix's topics as whole source transactions, in commit order: the commit records ahead,
then the transactions of each.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from twofold_avro.errors import MalformedRecord, NotFramed
from twofold_avro.names import TopicNames, topic_of
from twofold_avro.records import Commit, Progress, Range, RecordDecoder
from twofold_common.errors import Refused, SetupError, UsageError
from twofold_common.positions import format_lsn, parse_lsn
from twofold_common.table_names import split_table_name
from twofold_reader.changes import ChangeDecoder, KafkaRecord
from twofold_reader.partition_rows import removed_rows
from twofold_reader.schemas import schemas_at
from twofold_reader.topics import WAIT_S, Closing, Place, PrefixTopics
from twofold_reader.waiting import PositionWaiter
from twofold_reader.whole_transactions import WHOLE, Bookmark, CommitSequence, Transaction, assemble

_log = logging.getLogger("twofold_reader")
_TAIL: Final = 64
"""The last commit record is looked for from this far before the end."""


class FoundCommit(NamedTuple):
    """A commit record whose transactions have not been taken."""

    offset: int
    commit: Commit
    ranges: list[Range]
    """Of the chosen tables."""
    done: int
    """Its transactions up to this position were taken before."""

    @property
    def mark(self) -> Bookmark:
        """The place behind the whole commit record."""
        return Bookmark(self.commit.stream_id, self.commit.sequence, self.offset, WHOLE)


class CommitReader:
    """The commit records of one prefix, used by one thread."""

    def __init__(
        self, prefix: str, kafka: Mapping[str, Any], schema_of: Callable[[int], str], tables: Sequence[str] | None
    ) -> None:
        """Read these tables; None: all of the prefix."""
        names = TopicNames(prefix)
        self._topics = None if tables is None else frozenset(_topic(prefix, each) for each in tables)
        self._events = names.events
        self._not_tables = {names.messages, names.commits, names.progress, names.prepared, names.frontiers}
        self._changes = ChangeDecoder(schema_of)
        self._records = RecordDecoder(schema_of)
        self._kafka = PrefixTopics(prefix, kafka)
        self._open_waiter = partial(PositionWaiter.at, prefix, kafka, schema_of)
        self._prefix = prefix
        self._sequence = CommitSequence(prefix)
        self._mark: Bookmark | None = None
        """The bookmark that the first commit record must fit, until that record has come."""
        self._position = 0
        """What is committed before it is left out, until a commit record lies behind it."""
        self._done = 0
        """What of the next commit record's transactions is left out, as in `FoundCommit`."""
        self.pending: deque[FoundCommit] = deque()

    def close(self) -> None:
        self._kafka.close()

    def begin(self, start: str) -> None:
        """Begin at 'beginning', 'newest', a position or a bookmark."""
        self._position = _parse_position(start) if "/" in start else 0
        offset, self._mark = self._find_start(start)
        self._done = self._mark.done if self._mark else max(0, self._position - 1)
        self._sequence = CommitSequence(self._prefix)
        self.pending.clear()
        self._kafka.begin(offset)
        self._tell_absent()

    def _tell_absent(self) -> None:
        """Name the chosen tables without a topic: a name is wrong, or the first row is to come."""
        if self._topics and (absent := self._topics - {each.topic for each in self._kafka.partitions(self._prefix)}):
            _log.warning("there is no topic %s (yet), or no right to read it", ", ".join(sorted(absent)))

    @property
    def is_at_end(self) -> bool:
        """No further commit record is visible."""
        return self._kafka.is_at_end

    def read_more(self, wait_s: float = WAIT_S) -> bool:
        """Add the commit records that have come to `pending`. Return False if none has; wait a
        little before that.
        """
        found = []
        messages = self._kafka.read_commits(wait_s)
        for message in messages:
            commit = self._decode(message)
            self._sequence.check(commit)
            done = self._take_done(commit)
            if self._mark is not None:
                self._mark.check(commit, self._prefix)
                self._mark = None
            if done != WHOLE:
                found.append(FoundCommit(message.offset() or 0, commit, self._wanted(commit), done))
        self._kafka.open(each for one in found for each in one.ranges)
        self.pending += found
        return bool(messages)

    def _take_done(self, commit: Commit) -> int:
        """Return up to where the next commit record's transactions are left out.

        Of a connector that lags, several commit records may come before a position.
        """
        if commit.applied_lsn <= self._position:
            return WHOLE
        done, self._done, self._position = self._done, 0, 0
        return done

    def take_transactions(self, *, as_avro: bool = False) -> Iterator[Transaction]:
        """Return the transactions of the first commit record of `pending`, which is removed."""
        offset, commit, ranges, done = self.pending.popleft()
        outcomes = {each.id: each.commit_lsn for each in commit.prepared}
        topics: set[str] = set()
        rows = []
        for index, each in enumerate(ranges):
            is_first = each.topic not in topics
            topics.add(each.topic)
            records = self._kafka.read_range(each)
            rows.append(self._changes.read_rows(records, index, outcomes, with_truncates=is_first, as_avro=as_avro))
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

    def _find_start(self, start: str) -> tuple[int, Bookmark | None]:
        """Return the commit record's offset, and the bookmark that it must fit."""
        first, end = self._kafka.commits_bounds()
        if start == "newest":
            return end, None
        if start == "beginning":
            if (whole := self._first_whole(first, end)) > first:
                _log.warning(
                    "Kafka no longer has all rows of %s's first commit records: they are passed over", self._prefix
                )
            return whole, None
        if "/" in start:
            return self._at_position(self._position, first, end), None
        mark = Bookmark.parse(start)
        if mark.offset < first:
            return first, self._behind_removed(mark, first)
        if mark.offset >= end:
            mark.check(Commit(0, "batch", 0, 0, 0, 0), self._prefix)
        return mark.offset, mark

    def _behind_removed(self, mark: Bookmark, first: int) -> Bookmark:
        """Return the bookmark that Kafka's first commit record must fit, which follows one that
        retention has deleted. Refused: others between them are deleted too.
        """
        if (message := self._kafka.read_commit_at(first)) is not None:
            commit = self._decode(message)
            after = commit.stream_id, commit.sequence
        else:
            progress = self._read_progress()
            after = progress.stream_id, progress.sequence + 1
        if mark.done != WHOLE or after != (mark.stream_id, mark.sequence + 1):
            raise removed_rows(f"commit record {mark.sequence}, which the bookmark names", self._prefix)
        return replace(mark, sequence=mark.sequence + 1, offset=first, done=0)

    def _read_progress(self) -> Progress:
        with self._open_waiter() as waiter:
            return waiter.read_progress()

    def find_last(self) -> Bookmark | None:
        """Return the place behind the last visible commit record; None: there was none yet."""
        first, end = self._kafka.commits_bounds()
        last: KafkaRecord | None = None
        start, back = end, _TAIL
        while last is None and start > first:
            start, back = max(first, end - back), back * 16
            self._kafka.begin(start)
            while not self._kafka.is_at_end:
                if messages := self._kafka.read_commits():
                    last = messages[-1]
        if last is not None:
            commit = self._decode(last)
            return Bookmark(commit.stream_id, commit.sequence, last.offset() or 0, WHOLE)
        progress = self._read_progress()  # retention may have deleted all commit records
        return Bookmark(progress.stream_id, progress.sequence, max(0, first - 1), WHOLE) if progress.sequence else None

    def _first_whole(self, first: int, end: int) -> int:
        """Return the offset of the first commit record from which on Kafka has all rows.

        All commit records are looked at: a prepared transaction's rows may lie before those of many
        earlier ones.
        """
        places = [each for each in self._kafka.partitions(self._prefix) if self._is_wanted(each.topic)]
        kept = {place: low for place, (low, _) in self._kafka.bounds(places).items() if low > 0}
        if not kept:
            return first
        self._kafka.begin(first)
        while not self._kafka.is_at_end:
            for message in self._kafka.read_commits():
                offset = message.offset() or 0
                if offset >= end:
                    return first
                ranges = self._wanted(self._decode(message))
                if any(each.first < kept.get(Place(each.topic, each.partition), 0) for each in ranges):
                    first = offset + 1
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
        if low == first and self._is_removed_behind(position, first):
            raise removed_rows(f"all commit records since {format_lsn(position)}", self._prefix)
        return low

    def _is_removed_behind(self, position: int, first: int) -> bool:
        """Whether retention may have deleted commit records with something that is committed at the
        position or later.
        """
        last = None
        if (message := self._kafka.read_commit_at(first)) is None and first:
            last = self._read_progress()  # and then once more, because one may have come meanwhile
            message = self._kafka.read_commit_at(first)
        if message is not None:
            commit = self._decode(message)
            return commit.sequence > 1 and commit.applied_lsn > position
        if last is None or not last.sequence:
            return False
        # Behind the last outcome, progress of an idle source moves on.
        return (last.applied_lsn if last.outcome_lsn is None else last.outcome_lsn) > position


def _parse_position(text: str) -> int:
    try:
        return parse_lsn(text)
    except ValueError as error:
        raise UsageError(f"{text!r} is no position: give it as PostgreSQL writes it, such as '0/1A2B3C'") from error


def _topic(prefix: str, table: str) -> str:
    parts = split_table_name(table)
    if parts is None:
        raise UsageError(f"{table!r} is no table: give schema.table, such as public.account")
    return topic_of(prefix, *parts)


if TYPE_CHECKING:
    from twofold_reader.arrow import ArrowBatch


class Reader(Closing):
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
        self._commits = CommitReader(prefix, kafka, schemas_at(registry), tables)

    def close(self) -> None:
        self._commits.close()

    def transactions(self, start: str, *, follow: bool = True) -> Iterator[Transaction]:
        """Return whole transactions in commit order, as they become visible.

        `start` is 'beginning' (the first transaction that Kafka has whole), 'newest' (what is
        committed from now on), a position such as '0/1A2B3C' (what is committed there or later), or
        a bookmark. Without `follow` it ends where nothing more is visible.
        """
        self._commits.begin(start)
        return (each for each in self._read_on(follow=follow) if each is not None)

    def as_arrow(self, start: str, *, follow: bool = True, rows: int = 10_000) -> Iterator[ArrowBatch]:
        """Return the same transactions in batches of Arrow, each of so many changes at most.

        A batch ends when nothing more is visible at present. Needs `twofold-reader[arrow]`.
        """
        try:
            from twofold_reader.arrow import split_into_batches  # noqa: PLC0415  (pyarrow is not always there)
        except ImportError as error:
            raise SetupError("pyarrow is not installed; remedy: pip install 'twofold-reader[arrow]'") from error
        self._commits.begin(start)
        return split_into_batches(self._read_on(follow=follow, as_avro=True), rows)

    def _read_on(self, *, follow: bool, as_avro: bool = False) -> Iterator[Transaction | None]:
        """Yield transactions; None: no further one is visible at present."""
        commits = self._commits
        while True:
            if commits.pending:
                yield from commits.take_transactions(as_avro=as_avro)
            elif not commits.read_more():
                if not follow and commits.is_at_end:
                    return
                yield None
