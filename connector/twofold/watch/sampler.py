"""Sample every few seconds how far connector and mirror are behind, and keep what PostgreSQL and
the mirror said last.

One thread with a connection of its own, so that a slow answer delays only what is shown. While
PostgreSQL does not answer, sampling goes on with what is known.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import psycopg

from twofold.errors import RunEnded, TwofoldError
from twofold.source.connection import PlainConnection, connect
from twofold.watch.activity import Activity
from twofold.watch.activity_view import ActivityView
from twofold.watch.history import INTERVAL_S, History, Moments, Sample
from twofold.watch.source_view import SourceView, read_source
from twofold_common.mirror_place import MirrorPlace
from twofold_common.positions import Lsn

MIRROR_QUIET_S = 35.0
"""A mirror tells every ten seconds that it runs. One that says nothing for this long does not run.
"""


@dataclass(frozen=True, slots=True)
class MirrorLag:
    """The commits that are in Kafka and not yet in the mirror's cut."""

    behind_s: float
    """How long the oldest such commit has been in Kafka, in steps of the samples."""
    bytes: int
    transactions: int | None
    """None: more than this process has counted."""


class Sampler:
    """Use as a context manager. Other threads read its attributes."""

    def __init__(
        self,
        conninfo: str,
        activity: Activity,
        ask_mirror: Callable[[], MirrorPlace | None] = lambda: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._conninfo = conninfo
        self._activity = activity
        self._ask_mirror = ask_mirror
        self._clock = clock
        self._stop = threading.Event()
        self._connection: PlainConnection | None = None
        self._before: tuple[float, ActivityView] | None = None
        self._wal = Moments()
        self._sequences = Moments()
        self.history = History()
        self.source: SourceView | None = None
        self.source_error = ""
        self.source_away_since: float | None = None
        self.mirror: MirrorPlace | None = None
        self.mirror_error = ""
        self._mirror_heard_at = 0.0
        self._thread = threading.Thread(target=self._run, name="status-sampler", daemon=True)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(2)

    @property
    def newest(self) -> Sample | None:
        """The last sample."""
        return self.history.samples[-1] if self.history.samples else None

    def source_lag(self, view: ActivityView, now: float) -> tuple[int, float] | tuple[None, None]:
        """Bytes of WAL that are not in Kafka yet, and for how long the oldest of them has been
        there. None before anything is known.
        """
        handled = view.positions.handled
        if self.source is None or not handled:
            return None, None
        return max(0, self.source.wal_lsn - handled), self._waits_s(handled, now)

    def unread_s(self, view: ActivityView, now: float) -> float | None:
        """How long the oldest WAL that the connector has not read has been there."""
        return self._waits_s(view.positions.read, now) if self.source and view.positions.read else None

    def _waits_s(self, position: Lsn, now: float) -> float:
        beyond = self._wal.first_beyond(position)
        return max(0.0, now - beyond.at) if beyond else 0.0

    def mirror_lag(self, view: ActivityView, now: float) -> MirrorLag | None:
        """None: no mirror has said where it is, or nothing is known of Kafka yet."""
        at, place = view.positions, self.mirror
        if place is None or not at.sequence:
            return None
        reached = 0 if place.reads_former(at.stream_id) else place.sequence
        if reached >= at.sequence:
            return MirrorLag(0.0, 0, 0)
        beyond, counted = self._sequences.first_beyond(reached), self._sequences.last_up_to(reached)
        return MirrorLag(
            max(0.0, now - beyond.at) if beyond else 0.0,
            max(0, at.applied - place.applied_lsn),
            view.totals.transactions - counted.extra if counted else None,
        )

    def mirror_gone_since(self, now: float) -> float | None:
        """Return when the mirror ended, or was heard last; None: it runs, or does not tell."""
        place = self.mirror
        if place is None or place.told_at is None or self.mirror_error:
            return None
        gone = place.ended or now - self._mirror_heard_at > MIRROR_QUIET_S
        return min(place.told_at, now) if gone else None

    def _run(self) -> None:
        while not self._stop.is_set():
            self.sample()
            self._stop.wait(INTERVAL_S)
        self.close_connection()

    def sample(self) -> None:
        """Ask PostgreSQL and the mirror, and note their answers."""
        self._ask_source()
        self._ask_for_mirror()
        now, view = self._clock(), self._activity.view(reset_peak=True)
        if self.source is not None and not self.source_error:
            self._wal.add(now, self.source.wal_lsn)
        self._wal.drop_before(view.positions.handled)
        if view.positions.sequence:
            self._sequences.add(now, view.positions.sequence, view.totals.transactions)
        if self._before is not None:
            then, former = self._before
            passed_s = max(now - then, 0.001)
            behind_bytes, behind_s = self.source_lag(view, now)
            rows = view.totals.rows - former.totals.rows
            transactions = view.totals.transactions - former.totals.transactions
            self.history.add(
                Sample(now, rows / passed_s, transactions / passed_s, view.latency_max_s, behind_bytes, behind_s)
            )
        self._before = now, view

    def _ask_source(self) -> None:
        try:
            if self._connection is None:
                self._connection = connect(self._conninfo, "twofold status")
            self.source = read_source(self._connection)
            self.source_error, self.source_away_since = "", None
        except (TwofoldError, psycopg.Error) as error:
            # Only what is shown suffers. The next sample asks again, over a new connection.
            self.source_error = str(error).partition("\n")[0]
            self.source_away_since = self.source_away_since or self._clock()
            self.close_connection()

    def _ask_for_mirror(self) -> None:
        if self._activity.view().phase != "running":
            # Kafka may be what is away: its silence would delay what PostgreSQL says. A mirror that
            # is not asked is not silent.
            self._mirror_heard_at = self._clock()
            return
        try:
            place = self._ask_mirror() or self.mirror
            self.mirror_error = ""
        except TwofoldError as error:
            if isinstance(error, RunEnded) and self.mirror is None:
                return  # Kafka is away, and whether there is a mirror is not known
            # What the mirror said last is still shown, and falls behind.
            self.mirror_error = str(error).partition("\n")[0]
            return
        if place != self.mirror:
            self._mirror_heard_at = self._clock()
        self.mirror = place

    def close_connection(self) -> None:
        """Close the connection; the next sample opens another one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
