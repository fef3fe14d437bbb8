"""Prepared transactions as bars on a time axis: when each was read, opened, parked, and how it ended.

`Marks` is the chronicle's own and changes in place, one identity at a time: what a step costs does not grow with the transactions in doubt. `look` gives a copy that stays as it is.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from twofold_common.positions import Lsn, PreparedIdentity

ENDED_MAX = 40
MarkState: TypeAlias = Literal["staged", "open", "parked", "committing"]
Outcome: TypeAlias = Literal["committed", "rolled back"]


class Mark(NamedTuple):
    """One of them; times are the wall's, of this process: what was prepared before it began has been read again."""

    identity: PreparedIdentity
    rows: int
    state: MarkState
    read_at: float
    opened_at: float | None = None
    parked_at: float | None = None
    park_reason: str = ""
    ended_at: float | None = None
    outcome: Outcome | None = None


@dataclass(frozen=True, slots=True)
class MarksView:
    """Those without an outcome in Kafka, and the last that have one."""

    live: dict[PreparedIdentity, Mark]
    past: tuple[Mark, ...]


class Marks:
    """One a process; not for two threads at once."""

    def __init__(self) -> None:
        self.live: dict[PreparedIdentity, Mark] = {}
        self._past: deque[Mark] = deque(maxlen=ENDED_MAX)
        self._committing: deque[tuple[Lsn, PreparedIdentity]] = deque()

    def look(self) -> MarksView:
        return MarksView(self.live.copy(), tuple(self._past))

    def anew(self) -> None:
        """A new run knows none until the stream has brought them again."""
        self.live.clear()
        self._committing.clear()

    def seen(self, identity: PreparedIdentity, rows: int, state: MarkState, now: float, why: str) -> bool:
        """It stands so. False: that was known."""
        known = self.live.get(identity)
        if known is not None and known.state == state:
            return False
        mark = known._replace(state=state) if known else Mark(identity, rows, state, now)
        if state == "open" and mark.opened_at is None:
            mark = mark._replace(opened_at=now)
        if state == "parked" and mark.parked_at is None:
            mark = mark._replace(parked_at=now, park_reason=why or "no place in the pool")
        self.live[identity] = mark
        return True

    def resolved(self, identity: PreparedIdentity, end_lsn: Lsn) -> bool:
        """Its COMMIT PREPARED was read; it is on its way. False: it is not known."""
        mark = self.live.get(identity)
        if mark is None:
            return False
        self.live[identity] = mark._replace(state="committing")
        self._committing.append((end_lsn, identity))
        return True

    def ended(self, identity: PreparedIdentity, outcome: Outcome, now: float) -> bool:
        """It has its outcome. False: it was not known."""
        mark = self.live.pop(identity, None)
        if mark is None:
            return False
        self._past.append(mark._replace(ended_at=now, outcome=outcome))
        return True

    def up_to(self, applied_lsn: Lsn, now: float) -> int:
        """What was committed up to there, with the group, is in Kafka: outcomes are read in the order of their ends. How many were."""
        committed = 0
        while self._committing and self._committing[0][0] <= applied_lsn:
            committed += self.ended(self._committing.popleft()[1], "committed", now)
        return committed
