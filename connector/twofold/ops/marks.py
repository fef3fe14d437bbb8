"""Prepared transactions as bars on a time axis: when each was read, opened, parked, and how it ended. Values; the chronicle keeps the present one."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from twofold.positions import Lsn, PreparedIdentity

ENDED_MAX = 40
MarkState: TypeAlias = Literal["staged", "open", "parked", "committing"]
Outcome: TypeAlias = Literal["committed", "rolled back"]


@dataclass(frozen=True, slots=True)
class Mark:
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
    end_lsn: Lsn | None = None
    """Of its COMMIT PREPARED, once that was read."""


@dataclass(frozen=True, slots=True)
class Marks:
    """Those without an outcome in Kafka, and the last that have one."""

    live: dict[PreparedIdentity, Mark] = field(default_factory=dict)
    past: tuple[Mark, ...] = ()
    committed: int = 0
    rolled_back: int = 0

    def anew(self) -> Marks:
        """A new run knows none until the stream has brought them again."""
        return replace(self, live={})

    def seen(self, identity: PreparedIdentity, rows: int, state: MarkState, now: float, why: str) -> Marks:
        known = self.live.get(identity)
        if known is not None and known.state == state:
            return self
        mark = known or Mark(identity, rows, state, now)
        if state == "open" and mark.opened_at is None:
            mark = replace(mark, opened_at=now)
        if state == "parked" and mark.parked_at is None:
            mark = replace(mark, parked_at=now, park_reason=why or "no place in the pool")
        return replace(self, live={**self.live, identity: replace(mark, state=state)})

    def resolved(self, identity: PreparedIdentity, end_lsn: Lsn) -> Marks:
        """Its COMMIT PREPARED was read; it is on its way."""
        if identity not in self.live:
            return self
        mark = replace(self.live[identity], state="committing", end_lsn=end_lsn)
        return replace(self, live={**self.live, identity: mark})

    def ended(self, identity: PreparedIdentity, outcome: Outcome, now: float) -> Marks:
        if identity not in self.live:
            return self
        live = dict(self.live)
        gone = replace(live.pop(identity), ended_at=now, outcome=outcome)
        return replace(
            self,
            live=live,
            past=(*self.past, gone)[-ENDED_MAX:],
            committed=self.committed + (outcome == "committed"),
            rolled_back=self.rolled_back + (outcome == "rolled back"),
        )

    def up_to(self, applied_lsn: Lsn, now: float) -> Marks:
        """What was committed up to there, with the group, is in Kafka."""
        marks = self
        for mark in self.live.values():
            if mark.end_lsn is not None and mark.end_lsn <= applied_lsn:
                marks = marks.ended(mark.identity, "committed", now)
        return marks


NO_MARKS = Marks()
