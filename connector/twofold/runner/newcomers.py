"""Tables that have joined the publication: looked for now and then, on a thread of its own, so that one in which nothing changes gets its topic and its rows too.

The stream tells of a table only at its first row. What is found here is only a hint: whether a table is new is decided by the thread that runs the turn, and whatever is missed is found by the next look,
or by recovery.
"""

from __future__ import annotations

import logging
import queue
import threading

from twofold.errors import TwofoldError
from twofold.source.messages import Relation
from twofold.source.published import published_tables

_log = logging.getLogger(__name__)

_CLOSE_WAIT_S = 1.0


class Newcomers:
    """One a run."""

    def __init__(self, conninfo: str, publication: str, every_s: float) -> None:
        """Every 0 s: never."""
        self._conninfo = conninfo
        self._publication = publication
        self._every_s = every_s
        self._found: queue.SimpleQueue[tuple[Relation, ...]] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._look, name="newcomers", daemon=True)
        if every_s:
            self._thread.start()

    def take(self) -> tuple[Relation, ...]:
        """All tables of the publication, if it was looked at since the last call; else none. Never blocks."""
        found: tuple[Relation, ...] = ()
        while not self._found.empty():
            found = self._found.get()
        return found

    def close(self) -> None:
        self._closing.set()
        if self._every_s:
            self._thread.join(_CLOSE_WAIT_S)

    def _look(self) -> None:
        while not self._closing.wait(self._every_s):
            try:
                self._found.put(published_tables(self._conninfo, self._publication))
            except TwofoldError as error:
                # The stream meets the same trouble and decides what is to be done; here it only means to look again.
                _log.debug("tables that have joined the publication: %s", error)
