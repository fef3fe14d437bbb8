"""Decides what becomes of rows that do not fit their table's topic. Pure.

A refusal is for a person. Nobody is needed where the table is gone, or where all that its topic has of it is to be replaced anyway.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

from twofold.errors import Refused, RunEnded
from twofold_avro.records import Pin

PASSED_OVER = 0
"""As a pin's relation: rows of a table that was gone were passed over. Whichever table has the name later, its topic starts anew."""


class VersionKey(NamedTuple):
    """A table as rows have it, or as the catalog has it now."""

    oid: int
    key: str | None
    """The key's schema; None: it has no message key."""


class Decision(Enum):
    """What becomes of such rows."""

    PASS_OVER = auto()
    START_ANEW = auto()
    """The topic: from a truncate and a load on."""
    REFUSE = auto()


class TopicRestart(RunEnded):
    """A table's topic is to start anew. The next run begins with that."""

    def __init__(self, name: str, topic: str, oid: int, refusal: Refused | None = None) -> None:
        """`refusal`: what would be said to a person, if this happened over and over."""
        super().__init__(f"the topic of {name} starts anew, with a truncate and a load")
        self.topic = topic
        self.oid = oid
        self.refusal = refusal


def decide(
    row: VersionKey, now: VersionKey | None, pin: Pin | None, *, key_differs: bool, emptied_later: bool
) -> Decision:
    """`now`: the published table that has the name; `key_differs`: that is why the row does not fit; `emptied_later`: the topic's truncate and load come behind the row."""
    if now is None:
        return Decision.PASS_OVER
    if row.oid != now.oid:  # dropped or renamed, and another table has the name
        return Decision.PASS_OVER if emptied_later else Decision.START_ANEW
    if not key_differs or pin is None:
        return Decision.REFUSE
    made_anew = pin.relation is not None and pin.relation != now.oid
    filled_before_keyed = pin.key_schema is None or (row.key is None and now.key == pin.key_schema)
    if made_anew or filled_before_keyed or pin.backfill != "ready" or emptied_later:
        return Decision.START_ANEW
    return Decision.REFUSE
