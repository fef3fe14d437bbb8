"""What the bridge knows: immutable and hashable, so that a state can be kept, compared and explored.

Its size does not depend on what a turn holds, only on the prepared transactions that are outstanding. Named tuples, because each step makes new ones and `_replace` takes a fifth of what `dataclasses.replace` does.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from twofold_common.positions import Lsn, PreparedIdentity

NO_FLOOR = Lsn(2**64 - 1)
"""Holds nothing back: beyond every position."""


class Phase(StrEnum):
    """Where a prepared transaction without an outcome stands."""

    STAGED = "staged"
    OPENING = "opening"  # OpenPrepared is given out, its answer is not back
    OPEN = "open"
    PARKED = "parked"


class Prepared(NamedTuple):
    """A prepared transaction whose outcome has not been read."""

    identity: PreparedIdentity
    prepare_lsn: Lsn
    rows: int
    phase: Phase
    acknowledged: bool  # PREPARE may return in synchronous mode: Kafka took the rows, or there are none, or a rule has them wait outside

    @property
    def is_open(self) -> bool:
        """It has a Kafka transaction of its own, or will have when the worker gets there."""
        return self.phase in {Phase.OPENING, Phase.OPEN}


class Group(NamedTuple):
    """Outcomes that the main producer's next commit will carry."""

    since: Lsn  # no outcome that ends up to here is in it
    applied_lsn: Lsn  # the end of its last outcome
    floor: Lsn  # the oldest prepare that is resolved in it
    transactions: int
    rows: int


class Flight(NamedTuple):
    """A commit that is given out and not answered; `identity` if it is a prepared transaction's own."""

    since: Lsn
    applied_lsn: Lsn
    floor: Lsn
    identity: PreparedIdentity | None


@dataclass(frozen=True, slots=True)
class Policy:
    """What the configuration and the server say, for the length of a run."""

    synchronous: bool = False
    open_at_once: bool = False  # prepared.open_within is 0
    may_lack_prepares: bool = False  # a promoted 17 with unresolved prepares: it sends outcomes without their rows


class State(NamedTuple):
    """All of it. Positions only grow while a run lasts."""

    policy: Policy
    resume_lsn: Lsn  # applied_lsn as recovery found it: outcomes that start before it are in Kafka
    applied_lsn: Lsn  # as committed in Kafka
    read_lsn: Lsn  # how far this session has read
    write: Lsn  # as last reported
    flush: Lsn
    sequence: int  # the last one given out
    free: tuple[int, ...]  # slot numbers, the one that has rested longest first
    held: tuple[tuple[PreparedIdentity, int], ...] = ()  # slots from OpenPrepared until the answer that ends it
    prepared: tuple[Prepared, ...] = ()  # without an outcome, oldest prepare first
    due: tuple[PreparedIdentity, ...] = ()  # staged ones that are to be opened
    unnoted: tuple[PreparedIdentity, ...] = ()  # open or parked ones of which the ledger is to be told
    ledger: frozenset[PreparedIdentity] = frozenset()  # those that the ledger has as unresolved
    reloaded: frozenset[PreparedIdentity] = frozenset()  # of them, those whose tables are all loaded anew in this run
    group: Group | None = None
    in_flight: tuple[Flight, ...] = ()
    unfinished: bool = False  # the main producer has rows of a transaction whose commit is not read
    closing: bool = False  # the group is to be closed as soon as nothing is in flight
    full: bool = False

    def skips(self, start_lsn: Lsn) -> bool:
        """Whether the outcome whose record starts there is in Kafka already.

        Neighbouring records share a boundary: one that starts at the end of the last applied one is new. Within a run nothing comes twice, so what counts is
        where this run resumed.
        """
        return start_lsn < self.resume_lsn

    def has(self, end_lsn: Lsn) -> bool:
        """The same of an outcome that tells only where its record ends: a message outside of transactions, a ROLLBACK PREPARED."""
        return end_lsn <= self.resume_lsn

    @property
    def caught_up(self) -> bool:
        """The stream has passed everything that was applied before: a prepared transaction that is still here has no outcome in Kafka."""
        return self.read_lsn >= self.resume_lsn

    @property
    def must_wait(self) -> bool:
        """The group is full and its forerunner is not committed: read no further until an answer has come."""
        return self.full and bool(self.in_flight)

    def find(self, identity: PreparedIdentity) -> Prepared | None:
        """The prepared transaction of that name, if it is here and has no outcome."""
        return next((each for each in self.prepared if each.identity == identity), None)

    def moved(self, changed: Prepared, phase: Phase, *, acknowledged: bool) -> State:
        """The same with that one in another phase."""
        moved = changed._replace(phase=phase, acknowledged=acknowledged)
        place = self.prepared.index(changed)
        return self._replace(prepared=(*self.prepared[:place], moved, *self.prepared[place + 1 :]))

    def without(self, ended: Prepared) -> State:
        """The same without that one; its slot stays held until the sink has answered."""
        place, gone = self.prepared.index(ended), ended.identity
        return self._replace(
            prepared=self.prepared[:place] + self.prepared[place + 1 :],
            due=tuple(each for each in self.due if each != gone),
            unnoted=tuple(each for each in self.unnoted if each != gone),
        )


def initial(
    *,
    applied_lsn: Lsn,
    confirmed_lsn: Lsn,
    sequence: int,
    pool: int,
    in_doubt: frozenset[PreparedIdentity] = frozenset(),
    reloaded: frozenset[PreparedIdentity] = frozenset(),
    policy: Policy | None = None,
) -> State:
    """Where a run begins: what the progress record says, the slot's confirmed position, and those that the ledger has as open or parked; of those `reloaded` a load anew brings the rows."""
    return State(
        policy=policy or Policy(),
        resume_lsn=applied_lsn,
        applied_lsn=applied_lsn,
        read_lsn=confirmed_lsn,
        write=confirmed_lsn,
        flush=confirmed_lsn,
        sequence=sequence,
        free=tuple(range(pool)),
        ledger=in_doubt,
        reloaded=reloaded,
    )
