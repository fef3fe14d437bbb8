"""The journal of the status page: what happened, when and why, the last few hundred lines of it.

What happens again and again is one line with a count: an outage brings a failed recovery every few seconds, and a
backlog parks thousands of prepared transactions at once.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Literal

LINES_MAX = 200
_AGAIN_WITHIN_S = 60.0
_LOOKED_BACK = 4
"""Between two lines of one outage lie those of the recoveries that failed."""

Kind = Literal["recovered", "standby", "ended", "refused", "parked", "table", "load"]


@dataclass(frozen=True, slots=True)
class JournalLine:
    """Something that happened once, or several times in a row."""

    at: float
    """Of the last time."""
    kind: Kind
    what: str
    text: str = ""
    cause: str = ""
    """An error's class, or empty."""
    since: float = 0.0
    """Of the first time."""
    times: int = 1


class Journal:
    """Newest line last. Not for two threads at once."""

    def __init__(self) -> None:
        self._lines: deque[JournalLine] = deque(maxlen=LINES_MAX)

    @property
    def lines(self) -> tuple[JournalLine, ...]:
        """All of them."""
        return tuple(self._lines)

    def write(self, at: float, kind: Kind, what: str, text: str = "", cause: str = "") -> None:
        """Add a line, or count one that says the same of the last minute. `text` may differ: the last one stays."""
        for back, line in enumerate(reversed(self._lines)):
            if back >= _LOOKED_BACK or at - line.at > _AGAIN_WITHIN_S:
                break
            if (line.kind, line.what, line.cause) == (kind, what, cause):
                del self._lines[len(self._lines) - 1 - back]
                self._lines.append(replace(line, at=at, text=text, times=line.times + 1))
                return
        self._lines.append(JournalLine(at, kind, what, text, cause, since=at))
