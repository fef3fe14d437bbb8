"""What a process has used, as the kernel counts it.

Reads /proc and touches nothing but the mark from which a peak counts.
"""

from __future__ import annotations

import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """User and system time of all its threads so far."""
    return _read_stat(Path(f"/proc/{pid}/stat"))[1]


def thread_seconds(pid: int) -> list[tuple[str, float]]:
    """The name of each thread that it has now, with the thread's time so far."""
    return [_read_stat(stat) for stat in Path(f"/proc/{pid}/task").glob("*/stat")]


def _read_stat(stat: Path) -> tuple[str, float]:
    name, _, rest = stat.read_text().partition("(")[2].rpartition(")")
    fields = rest.split()
    return name, (int(fields[11]) + int(fields[12])) / _TICKS


def peak_mb(pid: int) -> float:
    """The most memory that it held at once since it began, or since `forget_peak`."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0


def forget_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


class Meter:
    """A process's use since the meter was made; once the process is gone, what was last read
    holds.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        forget_peak(pid)
        self._from = cpu_seconds(pid)
        self.cpu_s = 0.0
        self.peak_mb = 0.0

    def read(self) -> None:
        try:
            self.cpu_s = cpu_seconds(self._pid) - self._from
            self.peak_mb = max(self.peak_mb, peak_mb(self._pid))
        except (FileNotFoundError, ProcessLookupError):
            # It has ended: the last reading was at most one look ago.
            return
