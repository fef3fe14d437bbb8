"""The journal of the status page: what happened, when and why, the last few hundred lines of it.

What happens again and again is one line with a count: an outage brings a failed recovery every few
seconds, and a backlog parks thousands of prepared transactions at once. A line about tables names
the first of them.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Literal

LINES_MAX = 200
_AGAIN_WITHIN_S = 60.0
_NAMED_MAX = 8
_LOOKED_BACK = 4
"""Between two lines of one outage lie those of the recoveries that failed."""

Kind = Literal["recovered", "standby", "ended", "refused", "parked", "table", "load"]


@dataclass(frozen=True, slots=True)
class JournalLine:
    """Something that happened once, or several times in a row."""

    at: float
    """The time of the last occurrence."""
    kind: Kind
    what: str
    text: str = ""
    cause: str = ""
    """An error's class, or empty."""
    since: float = 0.0
    """The time of the first occurrence."""
    times: int = 1


class Journal:
    """Newest line last. Not for two threads at once."""

    def __init__(self) -> None:
        self._lines: deque[JournalLine] = deque(maxlen=LINES_MAX)

    @property
    def lines(self) -> tuple[JournalLine, ...]:
        """All lines."""
        return tuple(self._lines)

    def write(self, at: float, kind: Kind, what: str, text: str = "", cause: str = "") -> None:
        """Add a line, or count this occurrence in a line of the last minute that says the same. The
        counted line has the newest text; a line about tables has the texts of all.
        """
        for back, line in enumerate(reversed(self._lines)):
            if back >= _LOOKED_BACK or at - line.at > _AGAIN_WITHIN_S:
                break
            if (line.kind, line.what, line.cause) == (kind, what, cause):
                del self._lines[len(self._lines) - 1 - back]
                said = _joined(line, text) if kind in {"table", "load"} else text
                self._lines.append(replace(line, at=at, text=said, times=line.times + 1))
                return
        self._lines.append(JournalLine(at, kind, what, text, cause, since=at))


def _joined(line: JournalLine, text: str) -> str:
    return f"{line.text}, {text}" if line.times < _NAMED_MAX else line.text
