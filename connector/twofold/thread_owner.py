"""Names a call from a thread that does not own what it calls.

`docs/inside/threads.md` says which thread owns what. The check is an assertion: `python -O` leaves
it out.
"""

from __future__ import annotations

import threading


class ThreadOwner:
    """The thread that owns something, from its first `bind` on."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._thread: threading.Thread | None = None

    def bind(self) -> None:
        """Make this thread the owner."""
        self._thread = threading.current_thread()

    def check(self) -> bool:
        """Assert that this thread is the owner; before the first `bind` any thread may call."""
        here = threading.current_thread()
        assert self._thread in {None, here}, (
            f"{self._what} belongs to the thread {self._thread and self._thread.name}; {here.name} called it"
        )
        return True

    def check_first(self) -> bool:
        """Assert that this thread is the owner; the first call makes its thread the owner."""
        if self._thread is None:
            self.bind()
        return self.check()
