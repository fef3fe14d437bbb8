"""Every few seconds a sample of how far the connector and the mirror are behind, for an hour; and the last thing that PostgreSQL and the mirror said.

One thread with a connection of its own, so that a slow answer delays only what is shown. While PostgreSQL does not answer the samples go on with what is known.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import psycopg

from twofold.errors import TwofoldError
from twofold.ops.chronicle import Chronicle, View
from twofold.ops.mirror_view import MirrorPlace
from twofold.ops.source_view import SourceView, look
from twofold.source.connection import PlainConnection, connect
from twofold_common.positions import Lsn

INTERVAL_S = 5.0
KEPT_S = 3600.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One point of the plots."""

    at: float
    rows_s: float
    transactions_s: float
    latency_s: float
    """The worst commit of the interval: from the source's commit to Kafka's."""
    behind_bytes: int | None
    behind_s: float | None


@dataclass(frozen=True, slots=True)
class MirrorLag:
    """What is in Kafka and not yet in the mirror's cut."""

    behind_s: float
    """How long the oldest of it has been there, in steps of the samples, as far back as this process knows."""
    bytes: int
    transactions: int | None
    """None: more than this process has counted."""


class Sampler:
    """Use as a context manager."""

    def __init__(
        self,
        conninfo: str,
        chronicle: Chronicle,
        ask_mirror: Callable[[], MirrorPlace | None] = lambda: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._conninfo = conninfo
        self._chronicle = chronicle
        self._ask_mirror = ask_mirror
        self._clock = clock
        self._stop = threading.Event()
        self._connection: PlainConnection | None = None
        self._before: tuple[float, View] | None = None
        self._wal: deque[tuple[float, Lsn]] = deque(maxlen=int(KEPT_S / INTERVAL_S))
        self._sequences: deque[tuple[float, int, int]] = deque(maxlen=int(KEPT_S / INTERVAL_S))
        self.samples: deque[Sample] = deque(maxlen=int(KEPT_S / INTERVAL_S))
        self.source: SourceView | None = None
        self.source_error = ""
        self.mirror: MirrorPlace | None = None
        self.mirror_error = ""
        self._thread = threading.Thread(target=self._run, name="status-sampler", daemon=True)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(2)

    def behind(self, view: View, now: float) -> tuple[int, float] | tuple[None, None]:
        """Bytes of WAL that are not yet handled, and for how long the oldest of them has been there; None before anything is known."""
        handled = view.positions.handled
        if self.source is None or not handled:
            return None, None
        waiting = next((now - at for at, wal in list(self._wal) if wal > handled), 0.0)
        return max(0, self.source.wal_lsn - handled), max(0.0, waiting)

    def mirror_lag(self, view: View, now: float) -> MirrorLag | None:
        """None: no mirror has said where it is, or nothing is known of Kafka yet."""
        at, place = view.positions, self.mirror
        if place is None or not at.sequence:
            return None
        if place.sequence >= at.sequence:
            return MirrorLag(0.0, 0, 0)
        seen = list(self._sequences)
        since = next((then for then, sequence, _ in seen if sequence > place.sequence), now)
        counted = [transactions for _, sequence, transactions in seen if sequence <= place.sequence]
        return MirrorLag(
            max(0.0, now - since),
            max(0, at.applied - place.applied_lsn),
            view.totals.transactions - counted[-1] if counted else None,
        )

    def _run(self) -> None:
        while not self._stop.is_set():
            self.sample()
            self._stop.wait(INTERVAL_S)
        self.forget()

    def sample(self) -> None:
        """Ask and note."""
        self._ask()
        self._ask_for_mirror()
        now, view = self._clock(), self._chronicle.view(reset_peak=True)
        if self.source is not None and not self.source_error:
            self._wal.append((now, self.source.wal_lsn))
        if view.positions.sequence:
            self._sequences.append((now, view.positions.sequence, view.totals.transactions))
        if self._before is not None:
            then, former = self._before
            passed_s = max(now - then, 0.001)
            behind_bytes, behind_s = self.behind(view, now)
            self.samples.append(
                Sample(
                    now,
                    (view.totals.rows - former.totals.rows) / passed_s,
                    (view.totals.transactions - former.totals.transactions) / passed_s,
                    view.latency_max_s,
                    behind_bytes,
                    behind_s,
                )
            )
        self._before = now, view

    def _ask(self) -> None:
        try:
            if self._connection is None:
                self._connection = connect(self._conninfo, "twofold status")
            self.source = look(self._connection)
            self.source_error = ""
        except (TwofoldError, psycopg.Error) as error:
            # Only what is shown suffers; it is asked again in a moment, over a new connection.
            self.source_error = str(error).partition("\n")[0]
            self.forget()

    def _ask_for_mirror(self) -> None:
        if self._chronicle.view().phase != "running":
            return  # Kafka may be what is away: its silence would hold up what PostgreSQL says
        try:
            self.mirror = self._ask_mirror() or self.mirror
            self.mirror_error = ""
        except TwofoldError as error:
            # What it said last is still shown, and falls behind.
            self.mirror_error = str(error).partition("\n")[0]

    def forget(self) -> None:
        """Close the connection; the next sample opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
