"""The bridge's state: immutable and hashable, so that it can be kept, compared and explored.

Its size depends on the outstanding prepared transactions alone, never on the size of a turn; a
step's time depends on neither. It is made of named tuples because each step makes new ones:
`_replace` takes a fifth of the time of `dataclasses.replace`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from twofold.bridge.events import NO_FLOOR, FrontierAsked
from twofold.bridge.in_doubt import Phase, Prepared, TransactionsInDoubt
from twofold.bridge.sorted_map import SortedMap
from twofold_common.positions import Lsn, PreparedIdentity


class Group(NamedTuple):
    """Outcomes that the main producer's next commit will carry."""

    since: Lsn  # no outcome that ends up to here is in it
    applied_lsn: Lsn  # the end of its last outcome
    floor: Lsn  # the oldest prepare that is resolved in it
    transactions: int
    rows: int


class Flight(NamedTuple):
    """A commit that was given out and is not answered; `identity` if it is a prepared transaction's
    own.
    """

    since: Lsn
    applied_lsn: Lsn
    floor: Lsn
    identity: PreparedIdentity | None


@dataclass(frozen=True, slots=True)
class Policy:
    """Facts of the configuration and the server that stay the same for a whole run."""

    synchronous: bool = False
    open_at_once: bool = False  # prepared.open_within is 0
    may_lack_prepares: bool = False
    """A promoted 17 with unresolved prepares: it sends outcomes without their rows."""


class State(NamedTuple):
    """The whole state. Positions only grow while a run lasts."""

    policy: Policy
    resume_lsn: Lsn  # applied_lsn as recovery found it: outcomes that start before it are in Kafka
    applied_lsn: Lsn  # as committed in Kafka
    read_lsn: Lsn  # how far this session has read
    write: Lsn  # as last reported
    flush: Lsn
    sequence: int  # the last one given out
    free: tuple[int, ...]  # slot numbers, the one unused for longest first
    held: tuple[tuple[PreparedIdentity, int], ...] = ()
    """Slots, from OpenPrepared until the answer that ends it."""
    prepared: TransactionsInDoubt = TransactionsInDoubt()  # without an outcome
    unannounced: Lsn = NO_FLOOR  # the oldest prepare that was read and is not among these
    due: SortedMap[Lsn, PreparedIdentity] = SortedMap()  # staged ones that are to be opened, by prepare
    unnoted: SortedMap[Lsn, PreparedIdentity] = SortedMap()
    """Open or parked transactions that the ledger does not have yet, by prepare."""
    ledger: SortedMap[PreparedIdentity, None] = SortedMap()  # those that are unresolved in the ledger
    reloaded: frozenset[PreparedIdentity] = frozenset()
    """Of those, the ones whose tables are all reloaded in this run."""
    group: Group | None = None
    in_flight: tuple[Flight, ...] = ()
    unfinished: bool = False  # the main producer has rows of a transaction whose commit is not read
    closing: bool = False  # the group is to be closed as soon as nothing is in flight
    full: bool = False
    asked: FrontierAsked | None = None
    """What the next frontier needs; None: none is asked for."""
    named: frozenset[PreparedIdentity] = frozenset()
    """What the last frontier of this run says is in doubt."""

    def skips(self, start_lsn: Lsn) -> bool:
        """Whether the outcome whose record starts there is already in Kafka.

        Neighbouring records share a boundary: one that starts at the end of the last applied record
        is new. Within a run PostgreSQL sends nothing twice, so the position at which this run
        resumed decides.
        """
        return start_lsn < self.resume_lsn

    def has(self, end_lsn: Lsn) -> bool:
        """Whether the outcome whose record ends there is already in Kafka.

        PostgreSQL sends only the end of these records: of a message outside transactions, and of a
        ROLLBACK PREPARED.
        """
        return end_lsn <= self.resume_lsn

    @property
    def caught_up(self) -> bool:
        """Whether the stream has passed everything that earlier runs applied. A transaction that is
        still in doubt then has no outcome in Kafka.
        """
        return self.read_lsn >= self.resume_lsn

    @property
    def must_wait(self) -> bool:
        """Whether reading must stop: the group is full, and the commit before it is not
        answered.
        """
        return self.full and bool(self.in_flight)

    def find(self, identity: PreparedIdentity) -> Prepared | None:
        """Return the prepared transaction of this identity, if it is in doubt; else None."""
        return self.prepared.find(identity)

    def moved(self, changed: Prepared, phase: Phase, *, acknowledged: bool) -> State:
        """Return the state with that transaction in another phase."""
        return self._replace(prepared=self.prepared.changed(changed._replace(phase=phase, acknowledged=acknowledged)))

    def without(self, ended: Prepared) -> State:
        """Return the state without that transaction. Its slot number stays in use until the worker
        has answered.
        """
        return self._replace(
            prepared=self.prepared.without(ended),
            due=self.due.without(ended.prepare_lsn),
            unnoted=self.unnoted.without(ended.prepare_lsn),
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
    """Return the state in which a run begins.

    It is made of the progress record, the slot's confirmed position, and the transactions that are
    open or parked in the ledger. The rows of those in `reloaded` come by a reload.
    """
    return State(
        policy=policy or Policy(),
        resume_lsn=applied_lsn,
        applied_lsn=applied_lsn,
        read_lsn=confirmed_lsn,
        write=confirmed_lsn,
        flush=confirmed_lsn,
        sequence=sequence,
        free=tuple(range(pool)),
        ledger=SortedMap((identity, None) for identity in in_doubt),
        reloaded=reloaded,
    )
