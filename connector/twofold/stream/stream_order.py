"""Checks the positions of a stream. They must be equal at both ends of a transaction, rise from
outcome to outcome, and not exceed the server's WAL.

A position that is too large would be recorded and confirmed, and the WAL before it would never be
sent again. So a contradiction is malformed, and ends the connector before anything is published.

The position in the frame of an outcome's message is the end of its record, and the message has the
same end. So flipped bytes are found at no cost. The server is asked for the end of its WAL only if
an outcome is far ahead of everything that the server has sent.

A server whose disk was set back writes other WAL at positions that Kafka has, on the same timeline.
Its outcomes there would be taken for published ones, and passed. So progress names the last outcome
before its position, and the server must send that outcome again, or none if it was confirmed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple

from twofold.errors import RESET_REPAIR, MalformedMessage, Refused
from twofold.source import messages as m
from twofold_common.positions import NO_LSN, Lsn, format_lsn

UNASKED_BYTES = 16 << 20
"""An outcome up to this far ahead of the known end is believed, because the server goes on writing.
"""


class Outcome(NamedTuple):
    """An outcome's identity: no other WAL has an outcome of that time at that position."""

    end_lsn: Lsn
    at_us: int


class PublishedStream(NamedTuple):
    """The part of the source's WAL that Kafka has, as progress names it."""

    applied_lsn: Lsn
    last: Outcome
    """The last outcome up to `applied_lsn`."""
    comes_again: bool
    """Whether the server sends that outcome again, because the slot is not confirmed up to there.
    """


class StreamOrder:
    """The order of one session's stream; used by the thread that reads."""

    def __init__(
        self,
        known_end: Lsn = NO_LSN,
        ask_end: Callable[[], Lsn] | None = None,
        *,
        published: PublishedStream | None = None,
    ) -> None:
        """`known_end`: how far the server's WAL reaches. `ask_end`: None if the server cannot be
        asked.

        `published`: None if it is not known.
        """
        self._known_end = known_end
        self._ask_end = ask_end
        self._last_end = NO_LSN
        self._published = published
        self._awaits_last = published is not None and published.comes_again
        self._last = published.last if published else None
        self._outcomes: deque[Outcome] = deque()
        """The outcomes behind the last one that a commit has asked for."""

    def note_sent(self, wal_end: Lsn) -> None:
        """Note that the server has sent everything up to this position."""
        self.note_end(wal_end)
        if self._awaits_last and self._published is not None and wal_end >= self._published.last.end_lsn:
            raise self._other_wal("the server has none there")

    def note_end(self, wal_end: Lsn) -> None:
        """Note how far the server says that its WAL reaches."""
        self._known_end = max(self._known_end, wal_end)

    def last_up_to(self, applied_lsn: Lsn) -> Outcome | None:
        """Return the last outcome up to a position, which never goes back; None: none is known."""
        outcomes = self._outcomes
        while outcomes and outcomes[0].end_lsn <= applied_lsn:
            self._last = outcomes.popleft()
        return self._last

    def check_outcome(
        self,
        message: m.Commit | m.StreamCommit | m.CommitPrepared | m.RollbackPrepared,
        wal_start: int,
        *,
        has_rows: bool = True,
    ) -> None:
        """Check the positions of an outcome, whose frame says `wal_start`.

        `has_rows`: the server sends the outcome whether it streams the transaction or not. One
        without rows it may leave out the next time, and one that it left out it may send.
        """
        end, start = message.end_lsn, self._last_end
        if isinstance(message, m.RollbackPrepared):
            begin, at_us = Lsn(end - 1), message.rollback_ts_us
            rising = start < end and message.prepare_end_lsn < end
        else:
            begin, at_us = message.commit_lsn, message.commit_ts_us
            rising = start <= begin < end
        if not rising:
            raise _malformed(
                message, f"it ends at {format_lsn(end)}, behind an outcome that ends at {format_lsn(start)}"
            )
        outcome, published = Outcome(end, at_us), self._published
        if published is not None and outcome == published.last:
            self._awaits_last = False
        self._check_end(message, end, wal_start)
        self._last_end = end
        if published is not None and end > published.last.end_lsn:
            if has_rows and begin < published.applied_lsn:
                raise self._other_wal(f"behind it the server sends one that ends at {format_lsn(end)}")
            if end > published.applied_lsn:
                self._published = None
        if self._published is None and (has_rows or not isinstance(message, m.StreamCommit)):
            self._outcomes.append(outcome)

    def check_message(self, message: m.LogicalMessage, wal_start: int) -> None:
        """Check the position of a message that belongs to no transaction."""
        if message.lsn < self._last_end:
            raise _malformed(message, f"it is at {format_lsn(message.lsn)}, before an outcome that was sent earlier")
        self._check_end(message, message.lsn, wal_start)
        self._last_end = message.lsn

    def check_prepare(self, message: m.Prepare | m.StreamPrepare, begun: m.BeginPrepare | None, wal_start: int) -> None:
        """Check the end of a prepared transaction against its begin message, if there was one."""
        if begun is not None and message != tuple(begun):
            raise _malformed(message, "it contradicts the BeginPrepare of its transaction")
        if not message.prepare_lsn < message.end_lsn:
            raise _malformed(message, f"it ends at {format_lsn(message.end_lsn)}, where it does not begin before")
        self._check_end(message, message.end_lsn, wal_start)

    def _check_end(self, message: m.Message, end: Lsn, wal_start: int) -> None:
        if end != wal_start:
            raise _malformed(message, f"it ends at {format_lsn(end)}, and its frame says {format_lsn(wal_start)}")
        if self._awaits_last and self._published is not None and end >= self._published.last.end_lsn:
            raise self._other_wal(f"in its place the server sends one that ends at {format_lsn(end)}")
        if end > self._known_end + UNASKED_BYTES and self._ask_end is not None:
            self.note_end(self._ask_end())
            if end > self._known_end:
                raise _malformed(
                    message, f"it ends at {format_lsn(end)}, and the server's WAL at {format_lsn(self._known_end)}"
                )

    def _other_wal(self, found: str) -> Refused:
        assert self._published is not None
        applied_lsn, (end, at_us), _ = self._published
        ended = datetime.fromtimestamp(at_us / 1e6, UTC)
        return Refused(
            f"the server's WAL is not that of Kafka's changes: up to {format_lsn(applied_lsn)} the last transaction ended at {format_lsn(end)} ({ended:%Y-%m-%d %H:%M:%S} UTC), and {found}",
            at_stake="the server's transactions up to there: they would be taken for published ones, and skipped (its disk was set back on the same timeline, or it lost WAL)",
            repair=f"go back to a server that has this WAL, or start over: {RESET_REPAIR}",
        )


_REMEDY = (
    "nothing of it was published; remedy: start again, and if it recurs, report the server's version;"
    " with sslmode=verify-full in source.dsn nobody in between can change what the server sends"
)


def _malformed(message: m.Message, what: str) -> MalformedMessage:
    return MalformedMessage(f"PostgreSQL's {type(message).__name__} cannot be right: {what}: {_REMEDY}", offset=0)


def missing_end(begun: m.Begin | m.BeginPrepare, found: str) -> MalformedMessage:
    """Make the error for a transaction whose end was not sent."""
    at = begun.commit_lsn if isinstance(begun, m.Begin) else begun.prepare_lsn
    return MalformedMessage(
        f"PostgreSQL has not sent the end of the transaction at {format_lsn(at)}, and {found} came: {_REMEDY}", offset=0
    )
