"""Looks for tables that have joined the publication, and for rewritten ones, on a thread of its
own.

A table without changes so gets its topic and its rows too, and a rewrite is noticed. The stream
names a table only at its first row, and a rewrite never. A result is only a hint: the thread that
runs the turn decides, and the next look or recovery finds what was missed.
"""

from __future__ import annotations

import logging
import queue
import threading
from typing import NamedTuple

from twofold.errors import TwofoldError
from twofold.source.flaws import TableFlaw, refusal_of
from twofold.source.messages import Relation
from twofold.source.rewrites import TableStorage, storage_of_tables

_log = logging.getLogger(__name__)

_CLOSE_WAIT_S = 1.0


class JoinedTablesFound(NamedTuple):
    """All tables of the publication, and the storage of those that still exist, by oid."""

    relations: tuple[Relation, ...] = ()
    stored: dict[int, TableStorage] = {}  # noqa: RUF012  (nobody adds to it)
    flaws: tuple[TableFlaw, ...] = ()


class JoinedTables:
    """Looks for one run."""

    def __init__(self, conninfo: str, publication: str, every_s: float) -> None:
        """An interval of 0 s means never."""
        self._conninfo = conninfo
        self._publication = publication
        self._every_s = every_s
        self._found: queue.SimpleQueue[JoinedTablesFound] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._find, name="newcomers", daemon=True)
        if every_s:
            self._thread.start()

    def take_result(self) -> JoinedTablesFound:
        """Return the result since the last call, if there is one. Never blocks.

        Refused: a table cannot be followed.
        """
        found = JoinedTablesFound()
        while not self._found.empty():
            found = self._found.get()
        if found.flaws:
            raise refusal_of(found.flaws)
        return found

    def close(self) -> None:
        self._closing.set()
        if self._every_s:
            self._thread.join(_CLOSE_WAIT_S)

    def _find(self) -> None:
        while not self._closing.wait(self._every_s):
            try:
                self._found.put(JoinedTablesFound(*storage_of_tables(self._conninfo, self._publication)))
            except TwofoldError as error:
                # The stream meets the server's errors too, and decides; here they only mean another
                # look.
                _log.debug("tables that have joined the publication: %s", error)
