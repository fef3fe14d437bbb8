"""What other connectors know of the branches of global transactions in doubt, asked while somebody
looks at the status page; in a source group also, less often, when metrics are scraped.

The same question as `twofold prepared list` asks, and so the same statements: an outcome that would
tear a global transaction apart is not offered. The question reads other connectors' topics, so
nobody waits for it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence

from twofold.errors import TwofoldError
from twofold.inspect.status_report import InDoubt

_log = logging.getLogger(__name__)

ASKED_AGAIN_S, NEWER_ASKED_S = 15.0, 5.0
RESTS, RESTS_UNSEEN = 4, 20
"""After a question, this many times its duration passes before the next one; the second while no
person looks.
"""
KNOWN_FOR_S = 40.0
"""An older answer is not shown: a sibling may have its outcome meanwhile."""
Ask = Callable[[], tuple[Sequence[InDoubt], Sequence[str]]]
Key = tuple[int, str]


class BranchView:
    """`ask` gives the transactions in doubt, and the topics that could not be read."""

    def __init__(self, ask: Ask, clock: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._clock = clock
        self._lock = threading.Lock()
        self._busy = False
        self._asked_at = self._answered_at = -ASKED_AGAIN_S
        self._wanted: frozenset[Key] = frozenset()
        self.known: dict[Key, InDoubt] = {}
        """The last answer, by xid and gid."""
        self.last: dict[Key, InDoubt] = {}
        """The same, however old."""
        self.unread: tuple[str, ...] = ()
        self.error = ""

    def want(self, keys: Collection[Key], *, rests: int = RESTS) -> None:
        """Ask in a thread of its own, if these have not been asked for in a while.

        Returns at once.
        """
        wanted = frozenset(keys)
        with self._lock:
            now = self._clock()
            if now - self._answered_at > KNOWN_FOR_S:
                self.known, self.unread = {}, ()
            due_s = NEWER_ASKED_S if wanted - self._wanted else ASKED_AGAIN_S
            due_s = max(due_s, (rests + 1) * (self._answered_at - self._asked_at))
            if not wanted or self._busy or now - self._asked_at < due_s:
                return
            self._busy, self._wanted, self._asked_at = True, wanted, now
        threading.Thread(target=self._read, name="status-branches", daemon=True).start()

    def _read(self) -> None:
        try:
            found, unread = self._ask()
            self.known = self.last = {(each.xid, each.gid): each for each in found}
            self.unread, self.error = tuple(unread), ""
        except TwofoldError as error:
            # What was offered before may have become wrong meanwhile.
            self.known, self.error = {}, str(error).partition("\n")[0]
        except Exception:
            self.known, self.error = {}, "an unforeseen error, see the log"
            _log.exception("the branches in doubt could not be read for the status page")
        finally:
            with self._lock:
                self._busy, self._answered_at = False, self._clock()
