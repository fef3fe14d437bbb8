"""The bridge's state: immutable and hashable, so that it can be kept, compared and explored.

The state's size depends on the outstanding prepared transactions alone, never on the size of a
turn; the time of a step depends on neither. The values are named tuples because each step makes new
ones: `_replace` takes a fifth of the time of `dataclasses.replace`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from twofold.bridge.events import NO_PREPARE, FrontierAsked
from twofold.bridge.sorted_map import SortedMap
from twofold_common.positions import Lsn, PreparedIdentity


class Phase(StrEnum):
    """The phase of a prepared transaction without an outcome."""

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
    acknowledged: bool
    """PREPARE may return in synchronous mode: Kafka has the rows, or there are none, or a rule
    parks them.
    """

    @property
    def is_open(self) -> bool:
        """Whether the transaction has its own Kafka transaction, or an action that begins one."""
        return self.phase in {Phase.OPENING, Phase.OPEN}


class TransactionsInDoubt:
    """All prepared transactions without an outcome, by the order of prepares and by identity.

    Immutable. With thousands of transactions, questions and changes stay cheap.
    """

    __slots__ = ("_by_prepare", "_prepares")

    def __init__(
        self,
        by_prepare: SortedMap[Lsn, Prepared] = SortedMap(),  # noqa: B008  (immutable)
        prepares: SortedMap[PreparedIdentity, Lsn] = SortedMap(),  # noqa: B008
    ) -> None:
        self._by_prepare = by_prepare
        self._prepares = prepares

    @property
    def oldest(self) -> Prepared | None:
        return self._by_prepare.first

    def find(self, identity: PreparedIdentity) -> Prepared | None:
        lsn = self._prepares.get(identity)
        return None if lsn is None else self._by_prepare.get(lsn)

    def has_prepare(self, prepare_lsn: Lsn) -> bool:
        """Whether a transaction in doubt was prepared at this position."""
        return prepare_lsn in self._by_prepare

    def since(self, prepare_lsn: Lsn) -> Iterator[Prepared]:
        """Yield the transactions that were prepared at this position or later."""
        return self._by_prepare.since(prepare_lsn)

    def joined_by(self, staged: Prepared) -> TransactionsInDoubt:
        return TransactionsInDoubt(
            self._by_prepare.put(staged.prepare_lsn, staged), self._prepares.put(staged.identity, staged.prepare_lsn)
        )

    def changed(self, entry: Prepared) -> TransactionsInDoubt:
        """Return the collection with this transaction in place of its former state."""
        return TransactionsInDoubt(self._by_prepare.put(entry.prepare_lsn, entry), self._prepares)

    def without(self, ended: Prepared) -> TransactionsInDoubt:
        return TransactionsInDoubt(self._by_prepare.without(ended.prepare_lsn), self._prepares.without(ended.identity))

    def __iter__(self) -> Iterator[Prepared]:
        return self._by_prepare.values()

    def __len__(self) -> int:
        return len(self._by_prepare)

    def __bool__(self) -> bool:
        return bool(self._by_prepare)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TransactionsInDoubt) and self._by_prepare == other._by_prepare

    def __hash__(self) -> int:
        return hash(self._by_prepare)

    def __repr__(self) -> str:
        return f"TransactionsInDoubt({[*self]!r})"


class Batch(NamedTuple):
    """Outcomes that the main producer's next commit will carry."""

    since: Lsn  # every outcome of the batch ends behind it
    applied_lsn: Lsn  # the end of the batch's last outcome
    oldest_prepare: Lsn  # the oldest prepare that the batch resolves
    transactions: int
    rows: int


class UnansweredCommit(NamedTuple):
    """A commit that was given out and is not answered. `identity`: whose own commit it is; None:
    the batch's.
    """

    since: Lsn
    applied_lsn: Lsn
    oldest_prepare: Lsn
    identity: PreparedIdentity | None


@dataclass(frozen=True, slots=True)
class Policy:
    """Facts of the configuration and the server that stay the same for a whole run."""

    synchronous: bool = False
    open_at_once: bool = False  # prepared.open_within is 0
    may_lack_prepares: bool = False
    """The server is a promoted 17 with unresolved prepares: it sends outcomes without their rows.
    """


class State(NamedTuple):
    """The whole state. Positions only grow while a run lasts."""

    policy: Policy
    resume_lsn: Lsn  # applied_lsn as recovery found it: outcomes that start before it are in Kafka
    applied_lsn: Lsn  # as committed in Kafka
    read_lsn: Lsn  # how far this session has read
    write: Lsn  # as last reported
    flush: Lsn
    sequence: int  # of the last commit record that was given out
    free: tuple[int, ...]  # slot numbers, the one unused for longest first
    slots_in_use: tuple[tuple[PreparedIdentity, int], ...] = ()
    """Slot numbers in use. Each is in use from its OpenPrepared until the worker has answered its
    end.
    """
    prepared: TransactionsInDoubt = TransactionsInDoubt()  # without an outcome
    unannounced: Lsn = NO_PREPARE  # the oldest prepare that was read and not announced
    due: SortedMap[Lsn, PreparedIdentity] = SortedMap()  # staged transactions to open, by prepare
    unnoted: SortedMap[Lsn, PreparedIdentity] = SortedMap()
    """Open or parked transactions that the ledger lacks, by prepare."""
    ledger: SortedMap[PreparedIdentity, None] = SortedMap()  # unresolved transactions of the ledger
    reloaded: frozenset[PreparedIdentity] = frozenset()
    """Transactions of `ledger` whose tables are all reloaded in this run."""
    batch: Batch | None = None
    unanswered: tuple[UnansweredCommit, ...] = ()
    unfinished: bool = False  # the main producer has rows of a transaction whose commit is not read
    closing: bool = False  # the batch is to be closed as soon as no commit is unanswered
    full: bool = False
    asked: FrontierAsked | None = None
    """The answers for the next frontier; None: no frontier is asked for."""
    named: frozenset[PreparedIdentity] = frozenset()
    """The transactions in doubt of this run's last frontier."""

    def is_applied(self, start_lsn: Lsn) -> bool:
        """Whether Kafka already has the outcome whose record starts at this position.

        Neighbouring records share a boundary: a record that starts at the end of the last applied
        record is new. Within a run PostgreSQL sends nothing twice, so the position at which this
        run resumed decides.
        """
        return start_lsn < self.resume_lsn

    def is_applied_upto(self, end_lsn: Lsn) -> bool:
        """Whether Kafka already has the outcome whose record ends at this position.

        PostgreSQL sends only the end of two kinds of records: of a message outside transactions,
        and of a ROLLBACK PREPARED.
        """
        return end_lsn <= self.resume_lsn

    @property
    def caught_up(self) -> bool:
        """Whether the stream has passed everything that earlier runs applied.

        A transaction that is in doubt after that has no outcome in Kafka.
        """
        return self.read_lsn >= self.resume_lsn

    @property
    def must_wait(self) -> bool:
        """Whether reading must stop: the batch is full, and the commit before it is not
        answered.
        """
        return self.full and bool(self.unanswered)

    def find(self, identity: PreparedIdentity) -> Prepared | None:
        """Return the prepared transaction of this identity, if it is in doubt; else None."""
        return self.prepared.find(identity)

    def moved(self, changed: Prepared, phase: Phase, *, acknowledged: bool) -> State:
        """Return the state with this transaction in another phase."""
        return self._replace(prepared=self.prepared.changed(changed._replace(phase=phase, acknowledged=acknowledged)))

    def without(self, ended: Prepared) -> State:
        """Return the state without this transaction. Its slot number stays in use until the worker
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

    The state comes from the progress record, the slot's confirmed position, and the transactions
    that are open or parked in the ledger. A reload brings the rows of the transactions in
    `reloaded`.
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
