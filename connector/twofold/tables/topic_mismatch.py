"""Decides about rows that do not fit their table's topic. Pure.

A refusal asks a person. No person is needed if the table is gone, or if the topic's content will be
replaced anyway.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import NamedTuple, Self

from twofold.errors import Refused, RunEnded
from twofold_avro.records import Pin
from twofold_avro.shapes import TableShape, TypeShape


class VersionKey(NamedTuple):
    """The facts of a table's version that its topic depends on, as its rows or the catalog have
    them.
    """

    oid: int
    key: str | None
    """The key's schema; None without a message key."""
    types: Mapping[str, TypeShape]
    """Of the columns that the rows have, by name."""

    @classmethod
    def of(cls, shape: TableShape, key: str | None) -> Self:
        return cls(shape.oid, key, {column.name: column.type for column in shape.written})


class Decision(Enum):
    """The decision about rows that do not fit their topic."""

    PASS_OVER = auto()
    START_OVER = auto()
    """Restart the topic: with a truncate and a load."""
    REFUSE = auto()


class TopicRestart(RunEnded):
    """A table's topic must restart. The next run begins with that."""

    def __init__(self, name: str, topic: str, oid: int, refusal: Refused | None = None) -> None:
        """`refusal`: the refusal that is raised if the topic restarts again and again."""
        super().__init__(f"the topic of {name} starts over, with a truncate and a load")
        self.topic = topic
        self.oid = oid
        self.refusal = refusal


def decide(
    row: VersionKey,
    now: VersionKey | None,
    pin: Pin | None,
    *,
    key_differs: bool,
    in_backfill: bool,
    emptied_later: bool,
) -> Decision:
    """Decide about rows that do not fit their topic.

    `now`: the published table of that name; `key_differs`: the key is why the row does not fit;
    `emptied_later`: the topic's truncate and load come behind the row.
    """
    if now is None:
        return Decision.PASS_OVER
    if row.oid != now.oid:  # dropped or renamed, and another table has the name
        return Decision.PASS_OVER if emptied_later else Decision.START_OVER
    if pin is None:
        return Decision.REFUSE
    if not key_differs:
        # Of a former shape: the load brings the row in the present one, and a row behind the load's
        # start has a message before it that says so. A load of the same shape would be refused too.
        return Decision.PASS_OVER if emptied_later and row.types != now.types else Decision.REFUSE
    recreated = pin.relation is not None and pin.relation != now.oid
    filled_before_keyed = pin.key_schema is None or (row.key is None and now.key == pin.key_schema)
    if recreated or filled_before_keyed or in_backfill or emptied_later:
        return Decision.START_OVER
    return Decision.REFUSE
