"""Looks for tables that have joined the publication, and describes all of them, on a thread of its
own.

A table without changes so gets its topic and its rows too, and what PostgreSQL does not send is
noticed by its description. The stream names a table only at its first row, and a rewrite never. A
result is only a hint: the thread that runs the turn decides, and the next look finds what was
missed.
"""

from __future__ import annotations

import logging
import queue
import threading

from twofold.errors import TwofoldError
from twofold.source.flaws import refusal_of
from twofold.source.table_descriptions import DescribedTables, describe_published

_log = logging.getLogger(__name__)

_CLOSE_WAIT_S = 1.0


class JoinedTables:
    """Looks for one run."""

    def __init__(
        self, conninfo: str, publication: str, every_s: float, *, found: DescribedTables | None = None
    ) -> None:
        """An interval of 0 s means never; `found`: what was found just now."""
        self._conninfo = conninfo
        self._publication = publication
        self._every_s = every_s
        self._found: queue.SimpleQueue[DescribedTables] = queue.SimpleQueue()
        if found is not None:
            self._found.put(found)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._find, name="newcomers", daemon=True)
        if every_s:
            self._thread.start()

    def take_result(self) -> DescribedTables | None:
        """Return the result since the last call, if there is one. Never blocks.

        Refused: a table cannot be followed.
        """
        found = None
        while not self._found.empty():
            found = self._found.get()
        if found is not None and found.flaws:
            raise refusal_of(found.flaws)
        return found

    def close(self) -> None:
        self._closing.set()
        if self._every_s:
            self._thread.join(_CLOSE_WAIT_S)

    def _find(self) -> None:
        while not self._closing.wait(self._every_s):
            try:
                self._found.put(describe_published(self._conninfo, self._publication))
            except TwofoldError as error:
                # The stream meets the server's errors too, and decides; here they only mean another
                # look.
                _log.debug("tables that have joined the publication: %s", error)
