"""Keeps a standby's stream to the timeline on which it began.

A walsender of a standby continues when the standby is promoted, or follows a promoted primary. The
progress in Kafka names the timeline of its position, and recovery compares that timeline with the
server's history. So the session asks, after each read, whether the server has changed its timeline
since. The server decodes only WAL that it has replayed, so everything that was read before a 'no'
is of the old timeline.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable

import psycopg
from psycopg import pq

from twofold.errors import RunEnded
from twofold.source.connection import connect

ANSWER_S = 10.0
"""A server that is silent for longer ends the run, which then recovers."""
_TEND_S = 0.2


class TimelineGuard:
    """Asks on a replication connection of its own: only IDENTIFY_SYSTEM says what is replayed."""

    def __init__(self, conninfo: str, application_name: str) -> None:
        self._connection = connect(conninfo, application_name, replication=True)
        self._timeline = self._ask(lambda: None)

    def require_same(self, tend: Callable[[], None]) -> None:
        """Raise RunEnded on another timeline, or without an answer; `tend` is called meanwhile."""
        timeline = self._ask(tend)
        if timeline != self._timeline:
            raise RunEnded(
                f"the standby went from timeline {self._timeline} to {timeline}: it was promoted, or follows another primary; "
                "recovery continues there"
            )

    def close(self) -> None:
        self._connection.close()

    def _ask(self, tend: Callable[[], None]) -> int:
        pgconn = self._connection.pgconn
        try:
            pgconn.send_query(b"IDENTIFY_SYSTEM")
            while pgconn.flush():
                pass
            self._wait(pgconn, tend)
            result = pgconn.get_result()
            while pgconn.get_result() is not None:
                pass
        except psycopg.OperationalError as error:
            raise RunEnded(f"the standby went away: {' '.join(str(error).split())}") from error
        if result is None or result.status != pq.ExecStatus.TUPLES_OK:
            raise RunEnded(f"the standby does not say its timeline: {result and result.error_message.decode()}")
        return int(result.get_value(0, 1) or b"0")

    def _wait(self, pgconn: pq.abc.PGconn, tend: Callable[[], None]) -> None:
        deadline = time.monotonic() + ANSWER_S
        poll = select.poll()
        poll.register(pgconn.socket, select.POLLIN)
        while pgconn.is_busy():
            if time.monotonic() >= deadline:
                raise RunEnded(f"the standby has not said its timeline for {ANSWER_S:.0f} s")
            if poll.poll(_TEND_S * 1000):
                pgconn.consume_input()
            else:
                tend()
