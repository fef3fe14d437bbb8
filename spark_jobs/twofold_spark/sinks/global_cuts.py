"""A global cut: the cut of every member of a source group; and the place that keeps them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from twofold_common.global_waits import LongWait
from twofold_spark.errors import Refused


@dataclass(frozen=True, slots=True)
class MemberCut:
    """One member's part of a global cut."""

    sequence: int
    offset: int
    """The offset of that commit record."""


@dataclass(frozen=True, slots=True)
class GlobalCut:
    """All tables of all members, with every global transaction whole or absent."""

    number: int
    members: Mapping[str, MemberCut]
    """By prefix."""

    def __str__(self) -> str:
        parts = ", ".join(f"{prefix} {each.sequence}" for prefix, each in sorted(self.members.items()))
        return f"{self.number} ({parts})"


def describe_members(cut: GlobalCut) -> list[dict[str, Any]]:
    """Return what a row says of the members."""
    return [
        {"prefix": prefix, "sequence": each.sequence, "commit_offset": each.offset}
        for prefix, each in cut.members.items()
    ]


def read_row(row: Any) -> GlobalCut:
    """Read a row: of Spark, or of JSON."""
    members = {each["prefix"]: MemberCut(each["sequence"], each["commit_offset"]) for each in row["members"]}
    return GlobalCut(row["number"], members)


class GlobalCuts(Protocol):
    """A group's global cuts, and what the next one waits for."""

    @property
    def in_one_transaction(self) -> bool:
        """Whether a global cut and all its tables change in one transaction.

        Then a member's part is one batch, and has no cuts between.
        """

    def open(self, prefixes: tuple[str, ...]) -> GlobalCut | None:
        """Prepare the place, or check whose it is; return the last global cut.

        The cut's members may differ from `prefixes`, because members join and leave.
        """

    def together(self) -> AbstractContextManager[None]:
        """Hold what the members publish, and the global cut, until the end."""

    def publish(self, cut: GlobalCut) -> None:
        """Make it visible to readers; it is durable when this or `together` ends."""

    def forget(self, keep: dt.timedelta) -> GlobalCut | None:
        """Remove what was replaced more than `keep` ago; return the first that stays."""

    def maintain(self, keep: dt.timedelta) -> None:
        """Compact the place, and expire what was its state before `keep`."""

    def replace_waits(self, waits: Iterable[LongWait]) -> None:
        """Say what the next global cut waits for."""

    def close(self) -> None:
        """Release what it holds, also after a refusal to open."""


def check_members(known: Collection[str], prefixes: Collection[str], place: str) -> None:
    """Refuse a place with the global cuts of another group: no member is in both."""
    if known and not {*known} & {*prefixes}:
        raise Refused(
            f"this {place} holds the global cuts of {', '.join(sorted(known))}, and {', '.join(sorted(prefixes))} has none of these members",
            at_stake="the tables of two source groups would be mixed",
            repair=f"give the --source-group or the --prefix options of this {place}, or another {place} and a new --checkpoint",
        )
