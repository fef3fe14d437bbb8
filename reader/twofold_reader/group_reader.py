"""Reads the topics of a source group: a global transaction, which has branches in several sources,
comes whole.

Frontiers and commit records say how far each prefix may be shown (`twofold_common.global_cut`).
Within such a step each transaction comes by itself, except a global one: its branches come together
(`twofold_common.global_order`). So behind each unit every source is at a place of its own order,
and has a global transaction whole or not at all.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from twofold_common.errors import Refused, UsageError
from twofold_common.gids import find_global_id
from twofold_common.global_cut import CommittedBranch, Frontier, Load, Member, greatest_cut, unlike_patterns
from twofold_common.global_loads import Decisions, Loads, ends_a_load
from twofold_common.global_order import Place, Stop, Unit, order_units
from twofold_common.global_waits import find_waits
from twofold_reader.changes import Change
from twofold_reader.frontiers import FrontierTopics
from twofold_reader.reader import CommitReader, FoundCommit
from twofold_reader.schemas import schemas_at
from twofold_reader.topics import WAIT_S, Closing
from twofold_reader.whole_transactions import WHOLE, Bookmark, Transaction, read_late

_log = logging.getLogger("twofold_reader")
_TOLD_S: Final = 30.0
_BEGINNING: Final = "beginning"
_NEWEST: Final = "newest"
_END: Final[Place] = (WHOLE, 0)
Branch = tuple[str, Transaction]
"""A transaction, behind its prefix."""
BranchChange = tuple[str, Transaction, Change]
"""A change, behind its prefix and its transaction."""


@dataclass(slots=True, eq=False)
class GlobalTransaction:
    """What becomes visible together."""

    global_ids: tuple[str, ...]
    """The global transactions: mostly one, several if sources committed them in opposite orders.
    Empty for one source's own transaction, and for part of a load."""
    branches: Iterator[tuple[str, Transaction]]
    """Transactions with their prefixes, those of each source in its order. Beside several global
    transactions, what lies between them in a source is among them. They can be read once, and until
    the next global transaction is asked for."""
    changes: Iterator[tuple[str, Transaction, Change]]
    """In place of `branches`: all their changes, with prefix and transaction. For tables that are
    shards of one table: a row that moves between two is deleted before it is inserted. Inserted
    rows of all prefixes but the last wait in memory for that."""
    bookmark: str
    """The place behind all of it, to start at: store it together with the result."""


class GroupReader(Closing):
    """A reader of several prefixes, whose connectors have the same `[group]`; used by one thread.

    It joins no consumer group and stores nothing: the bookmark of what was read is its user's.
    """

    def __init__(
        self,
        prefixes: Sequence[str],
        kafka: Mapping[str, Any],
        registry: str | Callable[[int], str],
        *,
        tables: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """Read these tables, as `schema.table` by prefix; None: all. Otherwise as `Reader`."""
        schema_of = schemas_at(registry)
        self._frontiers = FrontierTopics(prefixes, kafka, schema_of)
        self._members = {
            each: _Member(each, CommitReader(each, kafka, schema_of, None if tables is None else tables.get(each, ())))
            for each in prefixes
        }
        self._loads = Loads()
        self._marks: dict[str, str] = {}
        self._told_at = 0.0

    def close(self) -> None:
        self._frontiers.close()
        for each in self._members.values():
            each.commits.close()

    def transactions(self, start: str, *, follow: bool = True) -> Iterator[GlobalTransaction]:
        """Return all transactions, each global one whole, in an order that every source's order
        agrees with.

        `start` is 'beginning', a bookmark, or 'newest' (what is committed after this call has
        returned, which waits for some seconds, and for what is in doubt). Without `follow` it ends
        with what may be shown now.
        """
        self._begin(self._find_newest() if start == _NEWEST else self._parse(start))
        return self._read_on(follow=follow)

    def _begin(self, marks: Mapping[str, str]) -> None:
        self._marks = dict(marks)
        self._loads = Loads()
        self._told_at = time.monotonic() + _TOLD_S
        for prefix, each in self._members.items():
            each.begin(self._marks[prefix])
        self._frontiers.begin()

    def _parse(self, start: str) -> dict[str, str]:
        if start == _BEGINNING:
            return dict.fromkeys(self._members, _BEGINNING)
        marks = dict(each.partition("=")[::2] for each in start.split(","))
        if marks.keys() != self._members.keys():
            raise UsageError(
                f"{start!r} is no place of {', '.join(self._members)}: give 'beginning', 'newest', or a bookmark of a reader of these prefixes"
            )
        return marks

    def _find_newest(self) -> Mapping[str, str]:
        """Return the places behind the first global cut that shows all that is committed now.

        The branches of the commit records until now are not known. So the cut shows of each member
        the outcomes of what was in doubt when its frontier first knew all of them.
        """
        lasts = {prefix: each.commits.find_last() for prefix, each in self._members.items()}
        self._begin({prefix: str(last) if last else _BEGINNING for prefix, last in lasts.items()})
        unknown = {prefix: last.sequence for prefix, last in lasts.items() if last}
        decisions = {prefix: Decisions(prefix, unknown) for prefix in self._members if unknown}
        came = True
        while True:
            came = self._read_more(0 if came else WAIT_S)
            if came and self._is_read_far_enough():
                members = self._as_members()
                chosen = greatest_cut(members, self._loads.follow(members))
                for prefix, each in decisions.items():
                    each.follow(members[prefix].frontier)
                if all(each.least is not None and each.least <= chosen[prefix] for prefix, each in decisions.items()):
                    return {prefix: each.mark_at(chosen[prefix]) for prefix, each in self._members.items()}
            self._tell_waits()

    def _read_on(self, *, follow: bool) -> Iterator[GlobalTransaction]:
        came = True
        while True:
            came = self._read_more(0 if came else WAIT_S)
            if came and self._is_read_far_enough():
                yield from self._read_step()
            elif not came and not follow and self._is_at_end:
                return
            self._tell_waits()

    def _read_more(self, wait_s: float) -> bool:
        """Read what has come, or wait a little; return whether something has."""
        # First the frontiers: the commit records must be read at least as far as these know.
        came = self._frontiers.read_more(wait_s)
        for each in self._members.values():
            came |= each.read_more()
        return came

    @property
    def _is_at_end(self) -> bool:
        return self._frontiers.is_at_end and all(each.commits.is_at_end for each in self._members.values())

    def _is_read_far_enough(self) -> bool:
        lasts = self._frontiers.last
        return all(each in lasts and lasts[each].sequence <= member.known for each, member in self._members.items())

    def _as_members(self) -> dict[str, Member]:
        streams = {prefix: each.stream_id for prefix, each in self._members.items()}
        lasts = {prefix: each.keep_streams(streams) for prefix, each in self._frontiers.last.items()}
        return {prefix: each.as_member(lasts.get(prefix)) for prefix, each in self._members.items()}

    def _read_step(self) -> Iterator[GlobalTransaction]:
        """Yield what may be shown of what has been read."""
        members = self._as_members()
        loads = self._loads.follow(members)
        chosen = greatest_cut(members, loads)
        stops = {prefix: each.find_stops(chosen[prefix], loads) for prefix, each in self._members.items()}
        found = {prefix: each.find_commits(chosen[prefix]) for prefix, each in self._members.items()}
        ahead = {prefix: _Ahead(each.transactions(chosen[prefix])) for prefix, each in self._members.items()}
        for unit in order_units(stops):
            for prefix, (first, _) in unit.parts.items():
                yield from self._read_alone(prefix, ahead[prefix], first)
            for prefix, (_, last) in unit.parts.items():
                sequence, at = last
                last_found = found[prefix][sequence]
                is_whole = not at or last_found.commit.transactions == 1  # at 0 a load ends
                self._marks[prefix] = str(last_found.mark if is_whole else replace(last_found.mark, done=at))
            yield from self._read_together(unit, ahead)
        for prefix, each in ahead.items():
            yield from self._read_alone(prefix, each, _END)
            if found[prefix]:
                self._marks[prefix] = str(found[prefix][chosen[prefix]].mark)

    def _read_alone(self, prefix: str, ahead: _Ahead, end: Place) -> Iterator[GlobalTransaction]:
        while ahead.is_before(end):
            transaction = ahead.take_next()
            self._marks[prefix] = transaction.bookmark
            branches = iter([(prefix, transaction)])
            yield GlobalTransaction((), branches, delete_first(branches, prefix), self._bookmark)

    def _read_together(self, unit: Unit, ahead: Mapping[str, _Ahead]) -> Iterator[GlobalTransaction]:
        """Yield a unit, unless it has no rows in the chosen tables."""
        ends = {prefix: (sequence, at + 1) for prefix, (_, (sequence, at)) in unit.parts.items()}
        with_rows = [prefix for prefix, end in ends.items() if ahead[prefix].is_before(end)]
        has_skipped = False

        def take_rest() -> Iterator[Branch]:
            for prefix in with_rows:
                while ahead[prefix].is_before(ends[prefix]):
                    yield prefix, ahead[prefix].take_next()

        def read_branches() -> Iterator[Branch]:
            yield from take_rest()
            if has_skipped:
                raise read_late("branches")

        if with_rows:
            branches = read_branches()
            yield GlobalTransaction(unit.global_ids, branches, delete_first(branches, with_rows[-1]), self._bookmark)
            for _ in take_rest():  # nobody has read it
                has_skipped = True

    @property
    def _bookmark(self) -> str:
        return ",".join(f"{prefix}={mark}" for prefix, mark in self._marks.items())

    def _tell_waits(self) -> None:
        """Say now and then what is waited for, while something is."""
        now = time.monotonic()
        if not any(each.commits.pending for each in self._members.values()):
            self._told_at = now + _TOLD_S
        elif now > self._told_at:
            self._told_at, members = now + _TOLD_S, self._as_members()
            silent = [f"a frontier of {prefix}" for prefix, each in members.items() if each.frontier is None]
            if unlike := unlike_patterns(members):
                silent.append(f"one list of prepared.gid_patterns in {', '.join(unlike)}, which have several")
            waits = [each.global_id for each in find_waits(members)] or ["the next frontier, or the end of a load"]
            _log.warning("waiting for %s: twofold status says more", ", ".join((silent or waits)[:5]))


class _Member:
    """One prefix, with the commit records that have been read of it."""

    def __init__(self, prefix: str, commits: CommitReader) -> None:
        self._prefix = prefix
        self.commits = commits
        self._cut = 0
        """The last commit record of which nothing is left."""
        self._done: Place = (0, 0)
        """The last transaction that came before the start."""
        self._start = _BEGINNING
        self.stream_id = ""
        self._gid_patterns: tuple[str, ...] = ()
        self._named: dict[int, list[tuple[int, str]]] = {}
        """The branches of pending commit records by these patterns, by number."""

    def begin(self, start: str) -> None:
        self.commits.begin(start)
        self._named.clear()
        self._start = start
        self._cut, self._done, self.stream_id = 0, (0, 0), ""
        if start != _BEGINNING:
            mark = Bookmark.parse(start)
            self._cut = mark.sequence - (mark.done != WHOLE)
            self._done = mark.sequence, mark.done
            self.stream_id = mark.stream_id

    def read_more(self) -> bool:
        """Read further commit records; False: there is none at present."""
        came = self.commits.read_more(0)
        if self.commits.pending and not self.stream_id:
            first = self.commits.pending[0].commit
            if first.sequence != 1:
                raise Refused(
                    f"Kafka no longer has the first commit records of {self._prefix}: it begins with {first.sequence}",
                    at_stake="global transactions with a branch there and another one elsewhere: they would be torn",
                    repair="start at 'newest' with nothing stored, and reload each table: twofold backfill start SCHEMA.TABLE",
                )
            self.stream_id = first.stream_id
        return came

    @property
    def known(self) -> int:
        """The last commit record that has been read."""
        return self.commits.pending[-1].commit.sequence if self.commits.pending else self._cut

    def as_member(self, frontier: Frontier | None) -> Member:
        """Return what the choice of a cut needs. Branches have the names that this frontier, the
        member's last one, gives them.
        """
        if frontier is not None and frontier.gid_patterns != self._gid_patterns:
            self._gid_patterns = frontier.gid_patterns
            self._named.clear()
        pending = self.commits.pending
        branches = (
            CommittedBranch(each.commit.sequence, name) for each in pending for _, name in self._branches_of(each)
        )
        commits = (each.commit for each in pending)
        loads = tuple(
            each.sequence
            for each in commits
            if ends_a_load(each.kind, (r.topic for r in each.ranges), each.backfilling)
        )
        return Member(self._cut, self.known, tuple(branches), frontier, loads)

    def mark_at(self, sequence: int) -> str:
        """Return the place behind a pending commit record; the start if there is none yet."""
        found = self.find_commits(sequence).get(sequence)
        return str(found.mark) if found else self._start

    def find_commits(self, end: int) -> dict[int, FoundCommit]:
        """Return what is pending up to this commit record, by number."""
        return {each.commit.sequence: each for each in self.commits.pending if each.commit.sequence <= end}

    def find_stops(self, end: int, loads: Sequence[Load]) -> list[Stop]:
        """Return what may not come alone, up to this commit record."""
        ends = {each.sequence: each for each in loads if each.prefix == self._prefix}
        found: list[Stop] = []
        for sequence, each in self.find_commits(end).items():
            found += (Stop((sequence, at), name) for at, name in self._branches_of(each) if (sequence, at) > self._done)
            if sequence in ends:
                found.append(Stop((sequence, 0), ends[sequence]))
        return found

    def transactions(self, end: int) -> Iterator[Transaction]:
        """Yield the transactions up to this commit record."""
        while self.commits.pending and self.commits.pending[0].commit.sequence <= end:
            sequence = self.commits.pending[0].commit.sequence
            yield from self.commits.take_transactions()
            self._named.pop(sequence, None)
            self._cut = sequence

    def _branches_of(self, found: FoundCommit) -> list[tuple[int, str]]:
        """Return where the commits of branches begin, with their global ids, in their order.

        Each commit record is asked for at every step while it waits, so it is named once.
        """
        commit = found.commit
        if commit.sequence not in self._named:
            named = (
                (each.commit_lsn, find_global_id(each.gid, each.global_id, self._gid_patterns))
                for each in commit.prepared
            )
            self._named[commit.sequence] = sorted((at, name) for at, name in named if name is not None)
        return self._named[commit.sequence]


class _Ahead:
    """An iterator of transactions whose next transaction can be looked at before it is taken."""

    def __init__(self, transactions: Iterator[Transaction]) -> None:
        self._transactions = transactions
        self._next: Transaction | None = None

    def is_before(self, end: Place) -> bool:
        """Whether there is a next transaction, and it lies before this place."""
        if self._next is None:
            self._next = next(self._transactions, None)
        return self._next is not None and _place_of(self._next) < end

    def take_next(self) -> Transaction:
        taken, self._next = self._next, None
        assert taken is not None
        return taken


def _place_of(transaction: Transaction) -> Place:
    return transaction.sequence, transaction.commit_lsn if transaction.kind == "transaction" else 0


def delete_first(branches: Iterable[Branch], last: str) -> Iterator[BranchChange]:
    """Yield the changes of all branches, inserted rows behind the deletes of other prefixes.

    A row that moves is so deleted in one shard before it is inserted in another one. No order of
    the branches does that: each of two branches may delete rows that the other one inserts. The
    changes of one row in one prefix keep their order, so a key that is in one shard at most ends as
    that shard has it. Inserted rows wait in memory, except those of `last`, whose branches come
    last.
    """
    waiting: dict[tuple[str, str, bytes], list[BranchChange]] = {}
    for prefix, transaction in branches:
        for change in transaction.changes:
            key = None if prefix == last else change.key_bytes
            if key is not None:
                row = prefix, change.table, key
                if change.op in {"c", "r"} or (change.op == "u" and row in waiting):
                    waiting.setdefault(row, []).append((prefix, transaction, change))
                    continue
                yield from waiting.pop(row, ())
            elif change.op == "t":
                for row in [each for each in waiting if each[:2] == (prefix, change.table)]:
                    yield from waiting.pop(row)
            yield prefix, transaction, change
    for changes in waiting.values():
        yield from changes
