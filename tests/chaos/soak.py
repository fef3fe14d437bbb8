"""Memory and file descriptors of the connectors over a round, as a plot: flat, if nothing leaks.
Meaningful where the processes live long (`--faults net,broker,postgres,registry`).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_BARS: Final = "▁▂▃▄▅▆▇█"
WIDTH: Final = 60


@dataclass(slots=True)
class Samples:
    """By process: (bytes of memory, file descriptors), in time."""

    of: dict[int, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))

    def take(self, pid: int | None) -> None:
        try:
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            self.of[pid or 0].append((pages * 4096, len(list(Path(f"/proc/{pid}/fd").iterdir()))))
        except (FileNotFoundError, ProcessLookupError):
            pass  # it has ended

    def plot(self) -> list[str]:
        """Of the process that lived longest."""
        if not self.of:
            return []
        pid, values = max(self.of.items(), key=lambda item: len(item[1]))
        memory, files = [m / 1e6 for m, _ in values], [float(n) for _, n in values]
        return [
            f"process {pid}, {len(values)} looks",
            f"  memory {bars(memory)} {min(memory):.0f} to {max(memory):.0f} MB, at the end {memory[-1]:.0f}",
            f"  files  {bars(files)} {min(files):.0f} to {max(files):.0f}, at the end {files[-1]:.0f}",
        ]


def bars(values: list[float]) -> str:
    """At most WIDTH of them, from nothing to the largest."""
    step = max(1, -(-len(values) // WIDTH))
    parts = [max(values[i : i + step]) for i in range(0, len(values), step)]
    most = max(parts) or 1.0
    return "".join(_BARS[min(7, int(8 * part / most))] for part in parts)
