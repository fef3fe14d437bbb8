"""Commit records and their rows become whole source transactions, in commit order. Pure.

A commit record has whole source transactions. Their rows lie in several partitions, in each of them
in the source's order. So the merged rows are the transactions one after the other, and only one
row of each partition must be decoded.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import chain, groupby
from operator import itemgetter
from typing import Final, Literal

from twofold_avro.records import Commit
from twofold_common.errors import Refused, UsageError
from twofold_common.positions import format_lsn
from twofold_reader.changes import Change, OrderedRow

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FORM: Final = re.compile(r"1:([^:]*):([0-9]{1,19}):([0-9]{1,19}):([0-9]{1,20})")
WHOLE: Final = (1 << 64) - 1
"""Behind every position: all of the commit record has been read."""


@dataclass(frozen=True, slots=True)
class Bookmark:
    """A place between two transactions, as a text that the reader's user stores: the commit records
    before a commit record have been read, and some transactions of it.
    """

    stream_id: str
    sequence: int
    offset: int
    """Of the commit record, in `<prefix>.commits`."""
    done: int
    """Where the commit of the last transaction begins that has been read."""

    def __str__(self) -> str:
        return f"1:{self.stream_id}:{self.sequence}:{self.offset}:{self.done}"

    @classmethod
    def parse(cls, text: str) -> Bookmark:
        if not (found := _FORM.fullmatch(text)):
            raise UsageError(
                f"{text!r} is no place to begin: give 'beginning', 'newest', a position such as '0/1A2B3C',"
                " or a bookmark that this version of twofold_reader made"
            )
        return cls(found[1], int(found[2]), int(found[3]), int(found[4]))

    def check(self, commit: Commit, prefix: str) -> None:
        """Refuse a commit record that is another than the bookmark's."""
        if (commit.stream_id, commit.sequence) != (self.stream_id, self.sequence):
            raise recreated(prefix, f"the bookmark is of commit record {self.sequence}, and its place has another one")


@dataclass(slots=True, eq=False)
class Transaction:
    """What became visible in the source at once, as far as the chosen tables have changes of it."""

    kind: Literal["transaction", "load", "reload"]
    """`load`: rows of a table that is being loaded, and of no transaction. `reload`: the truncate
    before a table is loaded again."""
    commit_lsn: int
    """Where its commit begins in the write-ahead log; of a load, the position up to which
    everything was read before."""
    id: str | None
    """`<xid>:<position>`; None for a load."""
    sequence: int
    """The number of its commit record."""
    gid: str | None
    """Of a prepared transaction."""
    global_id: str | None
    """The global transaction, if the gid is in a known form."""
    branch: str | None
    loading: tuple[str, ...]
    """Topics that are being loaded: what their tables' rows say is not whole yet."""
    stale: tuple[str, ...]
    """Topics that lack changes that PostgreSQL did not send, until the tables are loaded again."""
    skipped: tuple[str, ...]
    """Topics that lack rows which a person had skipped; `twofold audit` has their positions."""
    changes: Iterator[Change]
    """The changes in their order. They can be read once, and until the next transaction is asked
    for."""
    _time_us: int = field(repr=False)
    _place: Bookmark = field(repr=False)

    @property
    def position(self) -> str:
        """`commit_lsn` as PostgreSQL writes it."""
        return format_lsn(self.commit_lsn)

    @property
    def time(self) -> datetime:
        """When it was committed."""
        return _EPOCH + timedelta(microseconds=self._time_us)

    @property
    def bookmark(self) -> str:
        """The place behind this transaction, to start at: store it together with the result."""
        return str(self._place)


def recreated(prefix: str, what: str) -> Refused:
    return Refused(
        f"the topics of {prefix} were recreated: {what}",
        at_stake="all that the new topics say about rows that this reader already has: rows that are gone would stay",
        repair="drop what was made of these topics, with its bookmark, and start at 'beginning': the load that twofold init began brings all rows",
    )


class CommitSequence:
    """Checks that commit records are those of one stream, without a gap."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._last: Commit | None = None

    def check(self, commit: Commit) -> None:
        """Refuse a commit record that does not follow the one before."""
        last, self._last = self._last, commit
        if last is None:
            return
        if commit.stream_id != last.stream_id:
            raise recreated(self._prefix, f"commit record {commit.sequence} is of another stream")
        if commit.sequence != last.sequence + 1:
            raise Refused(
                f"{self._prefix}.commits has commit record {commit.sequence} behind {last.sequence}",
                at_stake="the transactions of the commit records between",
                repair="find who else writes to this topic, or deletes from it; then start at 'newest' with nothing stored, and reload each table: twofold backfill start SCHEMA.TABLE",
            )


def assemble(
    commit: Commit, offset: int, rows: Sequence[Iterator[OrderedRow]], topics: Collection[str], done: int = 0
) -> Iterator[Transaction]:
    """Yield the transactions of a commit record that lies at this offset.

    `rows` has those of each partition in the order of their offsets, `topics` their topics.
    Transactions are left out whose commits do not begin behind `done`. Refused: rows of another
    time lie where the commit record names its own.
    """
    if not rows:
        return
    loading = tuple(each for each in commit.backfilling if each in topics)
    stale = tuple(each for each in commit.stale if each in topics)
    skipped = tuple(sorted({each.topic for each in commit.skipped} & {*topics}))
    named, end = (loading, stale, skipped), Bookmark(commit.stream_id, commit.sequence, offset, WHOLE)
    own = [_own(commit, each) for each in rows]
    if commit.kind in _LOADS:
        kind: Final = "load" if commit.kind == "backfill" else "reload"
        nobody = None, None, None
        changes = map(_CHANGE, chain(*own))
        at, time_us = commit.applied_lsn, commit.committed_at
        yield Transaction(kind, at, None, commit.sequence, *nobody, *named, changes, time_us, end)
        return
    outcomes = {each.id: each for each in commit.prepared}
    latest = [0]
    for number, (at, group) in enumerate(groupby(heapq.merge(*own), key=_AT), 1):
        if at <= done:
            continue
        latest[0] = at
        first = next(group)
        identity, time_us = first[3], first[5]
        outcome = outcomes.get(identity)
        gid, global_id, branch = (outcome.gid, outcome.global_id, outcome.branch) if outcome else (None, None, None)
        yield Transaction(
            "transaction",
            at,
            identity,
            commit.sequence,
            gid,
            global_id,
            branch,
            *named,
            map(_CHANGE, chain((first,), group, _end(latest, at))),
            outcome.committed_at if outcome else time_us,
            # Behind the last one nothing of this commit record is needed: retention may delete it.
            end if number == commit.transactions else Bookmark(commit.stream_id, commit.sequence, offset, at),
        )
    latest[0] = WHOLE


def _end(latest: Sequence[int], at: int) -> Iterator[OrderedRow]:
    """Refuse to end a transaction's rows when a later one was asked for: the rest was skipped."""
    if latest[0] != at:
        raise read_late("changes")
    yield from ()


def read_late(what: str) -> UsageError:
    return UsageError(
        f"the {what} of a transaction are read after the next transaction was asked for, and some of them were skipped: read them before that, or keep them in a list"
    )


def _own(commit: Commit, rows: Iterator[OrderedRow]) -> Iterator[OrderedRow]:
    """Yield a partition's rows, of which the first is looked at: a topic that was made again has
    later rows at the offsets of the deleted ones. They are of no transaction or of a later one, and
    those at the offsets of a load may be of a transaction.
    """
    is_load = commit.kind in _LOADS
    for first in rows:
        at, _, _, identity, change, _ = first
        is_own = not identity if is_load else bool(identity) and 0 < at < commit.applied_lsn
        if not is_own:
            raise Refused(
                f"commit record {commit.sequence} names rows of {change.table}, and other rows lie there: its topic was deleted and made again",
                at_stake="whole transactions: the table's changes in them are gone",
                repair="start at 'newest' with nothing stored, and reload each table: twofold backfill start SCHEMA.TABLE",
            )
        yield first
        yield from rows


_LOADS: Final = frozenset({"backfill", "reload"})
_AT: Final = itemgetter(0)
_CHANGE: Final = itemgetter(4)
