"""Keeps processes running, as a service manager does, and remembers how each one ended.

A process that was not told to end and was not killed by the trial has given up: its status and last
words are kept, and the checker counts them as a violation unless the product's own documentation
says that the status is one (8: a call into librdkafka that never returned; the next start goes on).
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_WITH_ITS_KEEPER = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9, 0, 0, 0); os.execvp(sys.argv[1], sys.argv[1:])"
)
"""PR_SET_PDEATHSIG, SIGKILL."""


def _keep(command: Sequence[str]) -> list[str]:
    return [sys.executable, "-ISc", _WITH_ITS_KEEPER, *command]


class Keeper(threading.Thread):
    """One process after the other, all started by this thread: the kernel ends them when it
    ends.
    """

    def __init__(
        self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str], *, allowed: Sequence[int] = (8,)
    ) -> None:  # fmt: skip
        super().__init__(name=name)
        self.log = log
        self.ended: list[tuple[int, str]] = []
        """Of those that gave up: status and last words."""
        self.starts = 0
        self._command = _keep(command)
        self._environment = dict(environment)
        self._allowed = allowed
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._expected = False
        self._killed: subprocess.Popen[bytes] | None = None
        self._away_until = 0.0
        self._once: dict[str, str] = {}
        self._over = threading.Event()
        self._errors: queue.SimpleQueue[BaseException] = queue.SimpleQueue()

    @property
    def pid(self) -> int | None:
        """None: it does not run now."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def run(self) -> None:
        while not self._over.is_set():
            if time.monotonic() < self._away_until:
                self._over.wait(0.05)
                continue
            self._live()

    def _live(self) -> None:
        with self._lock, self.log.open("ab") as output:
            environment = {**os.environ, **self._environment, **self._once}
            self._once, self._expected = {}, False
            self._process = subprocess.Popen(self._command, stdout=output, stderr=output, env=environment)
            self.starts += 1
        status = self._process.wait()
        with self._lock:
            if not self._expected and status not in {-signal.SIGKILL, *self._allowed}:
                self.ended.append((status, self._last_words()))
            self._away_until = max(self._away_until, time.monotonic() + 0.2)

    def _last_words(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        crashes = [number for number, line in enumerate(lines) if line.startswith("Fatal Python error")]
        if crashes and crashes[-1] > len(lines) - 200:  # the stacks of all threads follow
            return "\n".join(lines[max(0, crashes[-1] - 3) :][:40])[:4000]
        return "\n".join(lines[-12:])[-2000:]

    def change_command(self, command: Sequence[str]) -> None:
        """Its next lives have this command."""
        with self._lock:
            self._command = _keep(command)

    def send(self, number: signal.Signals, *, away_s: float = 0.0, once: Mapping[str, str] | None = None) -> bool:
        """Signal it; if it ends, it stays away that long, and its next life, alone, has `once` in
        its environment.
        """
        with self._lock:
            process = self._process
            if once is not None:
                self._once = dict(once)
            if process is None or process.poll() is not None:
                return False
            if number in {signal.SIGTERM, signal.SIGKILL}:
                self._expected = True
                self._away_until = time.monotonic() + away_s
            if number is signal.SIGKILL:
                self._killed = process
            process.send_signal(number)
            return True

    def pause(self, seconds: float) -> bool:
        if not self.send(signal.SIGSTOP):
            return False
        time.sleep(seconds)
        return self.send(signal.SIGCONT)

    def stop(self, away_s: float, patience_s: float = 60) -> bool:
        """As an operator does, with the patience of the service files in `deploy/`. An end that
        does not come is a violation, and is forced.
        """
        process = self._process
        if process is None or not self.send(signal.SIGTERM, away_s=away_s):
            return False
        try:
            status = process.wait(patience_s)
            killed = status == -signal.SIGKILL and self._killed is process  # by another lane, meanwhile
            if status not in {0, -signal.SIGTERM} and not killed:
                self.ended.append((status, f"after SIGTERM: {self._last_words()}"))
        except subprocess.TimeoutExpired:
            self.ended.append((-99, f"SIGTERM did not end it within {patience_s:.0f} s: {self._last_words()}"))
            process.kill()
        return True

    def recall(self) -> None:
        """Its next life begins at once, however long it was to stay away."""
        with self._lock:
            self._away_until = 0.0

    def wait_for(self, holds: Callable[[], bool], within_s: float) -> bool:
        deadline = time.monotonic() + within_s
        while not holds():
            if time.monotonic() > deadline or self._over.is_set():
                return False
            time.sleep(0.05)
        return True

    def close(self) -> None:
        self._over.set()
        with contextlib.suppress(ProcessLookupError):
            self.send(signal.SIGCONT)
            self.send(signal.SIGKILL)
        self.join()
