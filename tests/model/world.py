"""A small world around the product's own bridge: PostgreSQL's redelivery, Kafka's transactions, the
sink's worker, crashes.

A world is an immutable tuple, so that `explore` can visit every one that can be reached. What is
modelled, and why so:

- PostgreSQL's log is a list of records that share their boundaries. A session gets every record
  that starts at or after the confirmed position. After a crash that   is anything up to what was
  reported last: feedback may be lost, and a server that crashes forgets positions it had not yet
  written down.
- Kafka is one partition. A transaction's rows are a chunk in it: open, committed or (then it is
  gone) aborted. What is committed before the first open chunk is only counted.
- The worker carries actions out one by one and answers at once; a slow answer and a slow worker
  look the same to the bridge. A crash leaves the worker as a zombie that may   go on with its
  queue, unheard, until it is fenced: that is the kill -9 before or after an action, the commit with
  an unknown outcome and the stopped process in one.
- A connection may be cut under a transaction's end. The client sends the end again and is told that
  it is done; the first one comes at any later moment, until the id is initialised.
- Kafka may raise a producer's epoch by itself and abort what is open; the worker notices later, or
  not before its next call.

Every promise is an assertion at the place where it could be broken: Violation.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

from model.kafka import Kafka
from model.logs import Record
from twofold_common.positions import PreparedIdentity

T = TypeVar("T", bound=Hashable)


class World(NamedTuple):
    """`bridge` is the bridge's state while a run lasts (its number: see Numbers); else `stage` of
    recovery is next. `saved` is the progress that recovery has read.
    """

    bridge: int | None
    stage: int
    saved: tuple[int, int, frozenset[PreparedIdentity]] | None
    confirmed: int
    place: int  # next record to be read
    half: bool  # the record there is half read
    queue: tuple[int, ...]  # the worker's Items, as numbers
    spool: frozenset[PreparedIdentity]
    accepted: frozenset[PreparedIdentity]  # prepares that Kafka has taken in this run, or that a rule parked
    kafka: Kafka
    crashes: int
    cuts: int
    timeouts: int
    parks: int
    chunks: int
    forecasts: int  # so many commit records may still foretell wrong ranges
    held: tuple[Record, ...]  # prepares that were read and that the bridge has not heard of


class Numbers(Generic[T]):
    """Values that are kept once and passed as small numbers, which hash fast."""

    def __init__(self) -> None:
        self._numbers: dict[T, int] = {}
        self._values: list[T] = []

    def number(self, value: T) -> int:
        known = self._numbers.setdefault(value, len(self._values))
        if known == len(self._values):
            self._values.append(value)
        return known

    def __getitem__(self, number: int) -> T:
        return self._values[number]


def ended(world: World, confirmed: int) -> World:
    """The run is over: all of its memory is gone, its worker goes on as a zombie with what is in
    its queue.
    """
    nothing: frozenset[PreparedIdentity] = frozenset()
    return world._replace(bridge=None, stage=0, confirmed=confirmed, place=0, half=False, accepted=nothing, held=())


def stopped(world: World, confirmed: int) -> World:
    """The run is over, and its worker does nothing more."""
    return ended(world, confirmed)._replace(queue=())
