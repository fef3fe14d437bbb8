"""What all processes below this one use: the servers, and the system that is measured."""

from __future__ import annotations

import os
import resource
import threading
from pathlib import Path
from typing import Final

EVERY_S: Final = 2.0


def family(pid: int) -> list[int]:
    """A process and all below it."""
    found = [pid]
    for each in found:
        try:
            for task in Path(f"/proc/{each}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
        except OSError:
            # It has ended, or one of its threads.
            continue
    return found


def cpu_seconds() -> float:
    """Of all processes below this one that have ended and were waited for; also of those that were
    killed.
    """
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Memory(threading.Thread):
    """The most that all servers and services held at once; what several share counts once.

    Each is below a guard of its own. What the reader uses is not.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak_mb = 0.0
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(EVERY_S):
            guards = [pid for pid in family(os.getpid())[1:] if _is_guard(pid)]
            self.peak_mb = max(self.peak_mb, sum(_held_mb(pid) for guard in guards for pid in family(guard)))

    def close(self) -> None:
        self._over.set()
        self.join()


def _is_guard(pid: int) -> bool:
    try:
        return b"guard.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        # It has ended.
        return False


def _held_mb(pid: int) -> float:
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        # It has ended.
        return 0.0
    return sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")) / 1024
