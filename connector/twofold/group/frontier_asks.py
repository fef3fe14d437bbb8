"""Asks what a source group's frontiers need, on a thread of its own.

The order of the questions is `bridge.frontier.ORDER`, and `bridge.frontier.is_needed` says when a
frontier is needed. A result waits here until the thread that reads has written the frontier before
it.
Failures only delay frontiers: the stream meets its servers' errors too, and decides.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping

from twofold.bridge import State, frontier
from twofold.bridge.events import FrontierAsked, MemberSeen
from twofold.errors import TwofoldError
from twofold.group.member_commits import MemberCommits
from twofold.source.wal_end import WalEnd
from twofold_common.positions import PreparedIdentity

_log = logging.getLogger(__name__)

INTERVAL_S = 0.2
"""The least time between two frontiers."""
LEISURE_S = 10.0
"""The time after the last frontier when one is asked for behind plain transactions alone. A new
member waits for it, because nobody knows whether the others' shown transactions have branches.
"""
_LOOK_S = 0.5
"""How often PostgreSQL is asked whether what the last frontier names is still prepared."""
_RETRY_S = 5.0
_CLOSE_WAIT_S = 1.0


class FrontierAsks:
    """Asks for one run."""

    def __init__(self, prefix: str, make_commits: Callable[[], MemberCommits], source: WalEnd) -> None:
        self._prefix = prefix
        self._make_commits = make_commits
        self._source = source
        self._asked: queue.Queue[FrontierAsked] = queue.Queue(maxsize=1)
        self._named: frozenset[PreparedIdentity] = frozenset()
        """The transactions in doubt of the last written frontier: set by the thread that reads."""
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="frontiers", daemon=True)
        self._thread.start()

    def take_due(self, state: State) -> list[FrontierAsked]:
        """Return the answers, if the frontier before them is written. Never blocks."""
        self._named = state.named
        if state.asked is not None or self._asked.empty():
            return []
        return [self._asked.get()]

    def close(self) -> None:
        self._closing.set()
        self._thread.join(_CLOSE_WAIT_S)

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                commits = self._make_commits()
                try:
                    commits.begin()
                    self._ask_again_and_again(commits)
                finally:
                    commits.close()
            except TwofoldError as error:
                _log.warning("no frontiers are written for the source group, so that its global cuts wait: %s", error)
                self._closing.wait(_RETRY_S)
        self._source.close()

    def _ask_again_and_again(self, commits: MemberCommits) -> None:
        reached: Mapping[str, int] | None = None
        next_at = look_at = leisure_at = 0.0
        while not self._closing.is_set():
            # What comes before a frontier may be asked for waits until then, and no longer.
            early_s = next_at - time.monotonic()
            commits.follow(early_s if early_s > 0 else INTERVAL_S / 2)
            now = time.monotonic()
            if now < next_at or self._asked.full():
                continue
            named: frozenset[PreparedIdentity] = frozenset()
            if now >= look_at:
                named, look_at = self._named, now + _LOOK_S
            at_leisure = now >= leisure_at
            last = {prefix: view.sequence if at_leisure else view.needed for prefix, view in commits.views.items()}
            if frontier.is_needed(last, reached, named, self._source.prepared() if named else ()):
                reached = {prefix: view.sequence for prefix, view in commits.views.items()}
                next_at = now + INTERVAL_S
                self._asked.put(self._ask(commits))
                leisure_at = time.monotonic() + LEISURE_S

    def _ask(self, commits: MemberCommits) -> FrontierAsked:
        views = commits.views
        questions: Mapping[str, Callable[[], object]] = {
            "seen": lambda: tuple(
                MemberSeen(name, view.sequence, view.stream_id) for name, view in views.items() if name != self._prefix
            ),
            "listed": self._source.prepared,
            "end_lsn": self._source.end,
        }
        answers = {question: questions[question]() for question in frontier.ORDER}
        return FrontierAsked(**answers)  # type: ignore[arg-type]
