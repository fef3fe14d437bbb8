"""`TransactionsInDoubt`: the prepared transactions without an outcome, oldest prepare first.

Immutable, like the state that it belongs to. With thousands of transactions, questions and changes
stay cheap.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from twofold.bridge.sorted_map import SortedMap
from twofold_common.positions import Lsn, PreparedIdentity


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
    acknowledged: bool
    """PREPARE may return in synchronous mode: Kafka has the rows, or there are none, or a rule
    parks them.
    """

    @property
    def is_open(self) -> bool:
        """Whether the transaction has its own Kafka transaction, or an action that begins one."""
        return self.phase in {Phase.OPENING, Phase.OPEN}


class TransactionsInDoubt:
    """All prepared transactions without an outcome, by the order of prepares and by identity."""

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
