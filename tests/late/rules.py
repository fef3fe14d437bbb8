"""Which request is made late, and when it is delivered.

Pure values; they travel to the proxy as JSON.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Self

from late.frames import Api, Request

RECORD_TOPIC = r"\.commits$"


class Cut(StrEnum):
    """What the client notices."""

    FIN = "fin"
    """Its connection is closed."""
    RST = "rst"
    """Its connection is reset."""
    HOLD = "hold"
    """Nothing: it waits, until it gives up by itself or the request has been delivered and
    answered.
    """
    LOST = "lost"
    """The request is delivered at once; its connection is reset in place of the answer."""


class Moment(StrEnum):
    """When a withheld request is delivered.

    A *later* transaction is one behind an end, or a new epoch, that the broker has answered since.
    """

    ADDED = "added"
    """The later transaction's `nth` AddPartitionsToTxn is answered: delivered before the client has
    the answer.
    """
    PRODUCED = "produced"
    """The later transaction's `nth` Produce is answered, likewise."""
    BEFORE_RECORD = "before-record"
    """The later transaction names the topic of commit records: between its rows and its record."""
    BEHIND_RECORD = "behind-record"
    """The later transaction's commit record is acknowledged."""
    BEFORE_END = "before-end"
    """The later transaction's EndTxn comes."""
    IDLE = "idle"
    """The later transaction is open, and for `seconds` nothing of it came: as a prepared one waits.
    """
    AFTER = "after"
    """So many `seconds` after it was withheld."""
    COMMAND = "command"
    """When `release` says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Withhold a request of `api`, or lose its answer."""

    name: str
    """Counts and `release` name the rule by it."""
    api: Api
    ids: str = ""
    """A pattern that the transactional id contains."""
    commit: bool | None = None
    """Of EndTxn: commits alone, aborts alone."""
    first: bool = False
    """Of EndTxn: the first of its epoch alone. A main producer's first transaction is the takeover
    of a recovery.
    """
    topic: str = ""
    """Of Produce and AddPartitionsToTxn: a pattern that one of its topics contains."""
    every: int = 1
    """Of those that fit, each so-many-th."""
    most: int = 1_000_000
    """So many in all."""
    gap: float = 0.0
    """Seconds between two of one transactional id."""
    cut: Cut = Cut.FIN
    moment: Moment = Moment.ADDED
    nth: int = 1
    seconds: float = 0.0
    give_up: float = 30.0
    """A moment that does not come within so many seconds is given up: it is delivered then."""
    record_topic: str = RECORD_TOPIC

    def fits(self, request: Request, producer: Producer) -> bool:
        return (
            request.api is self.api
            and re.search(self.ids, request.transactional_id) is not None
            and self.commit in (None, request.commit)
            and (not self.first or producer.ended == 0)
            and (not self.topic or any(re.search(self.topic, topic) for topic, _ in request.partitions))
        )

    def carries_record(self, request: Request) -> bool:
        return any(re.search(self.record_topic, topic) for topic, _ in request.partitions)

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @classmethod
    def of(cls, plain: dict[str, Any]) -> Self:
        return cls(**{**plain, "api": Api(plain["api"]), "cut": Cut(plain["cut"]), "moment": Moment(plain["moment"])})


@dataclass(slots=True)
class Producer:
    """What the proxy saw of one transactional id, over all fronts."""

    generation: int = 0
    """Ends and new epochs that the broker has answered well."""
    epoch: int = -1
    """The last that a client wrote with."""
    open: bool = False
    """Partitions were added since the last of them."""
    added: int = 0
    produced: int = 0
    ended: int = 0
    """Ends in this epoch."""
    held_at: float = -1e9
    """When a request of it was last withheld, or its answer lost."""

    def answered(self, request: Request, errors: tuple[int, ...]) -> None:
        """Of a request that was not late."""
        if any(errors):
            return
        if request.api in {Api.END_TXN, Api.INIT_PRODUCER_ID}:
            self.generation += 1
            self.open, self.added, self.produced = False, 0, 0
            self.ended = self.ended + 1 if request.api is Api.END_TXN else 0
        elif request.api is Api.ADD_PARTITIONS:
            self.open, self.epoch = True, request.epoch
            self.added += 1
        else:
            self.produced += 1


def due_at_request(rule: Rule, request: Request) -> bool:
    """Whether what is withheld goes to the broker before this request of a later transaction."""
    if rule.moment is Moment.BEFORE_RECORD:
        return request.api is Api.ADD_PARTITIONS and rule.carries_record(request)
    return rule.moment is Moment.BEFORE_END and request.api is Api.END_TXN


def due_at_answer(rule: Rule, request: Request, producer: Producer) -> bool:
    """Whether what is withheld goes to the broker now that this request of a later transaction is
    answered well.
    """
    match rule.moment:
        case Moment.ADDED:
            return request.api is Api.ADD_PARTITIONS and producer.added >= rule.nth
        case Moment.PRODUCED:
            return request.api is Api.PRODUCE and producer.produced >= rule.nth
        case Moment.BEHIND_RECORD:
            return request.api is Api.PRODUCE and rule.carries_record(request)
        case _:
            return False
