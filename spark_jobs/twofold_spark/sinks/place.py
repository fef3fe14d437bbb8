"""Where a mirror is: the tables of its sources, and one table of cuts, in one sink."""

from __future__ import annotations

import datetime as dt
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import ClassVar

from pyspark.sql import SparkSession

from twofold_common.global_waits import LongWait
from twofold_spark.errors import Refused
from twofold_spark.sinks.cuts import NO_CUT, Cut, GlobalCut
from twofold_spark.sinks.interface import Sink
from twofold_spark.sinks.sharding import NO_SHARDING, SHARED, Sharding


class Place(ABC):
    """One writer. The tables of a source group's members have places of their own in it."""

    word: ClassVar[str]
    """What it is, for refusals."""

    def __init__(self, *, of_group: bool, sharding: Sharding = NO_SHARDING) -> None:
        self.of_group = of_group
        self.sharding = sharding
        self.last: GlobalCut | None = None
        """The last one that is published."""

    @abstractmethod
    def open(self, spark: SparkSession, prefixes: tuple[str, ...]) -> None:
        """Prepare the place, or refuse that of other sources; read the last cut.

        The cut's members may differ from `prefixes`, because members join and leave.
        """

    @abstractmethod
    def make_sink(self, spark: SparkSession, prefix: str) -> Sink:
        """Make what writes one source's tables, or the sharded ones (`SHARED`); the place is open.

        The number of a sharded table's merge is that of the global cut. What no cut has of such a
        table is given up when it is read next: only cuts say how far each member's rows are.
        """

    @abstractmethod
    def publish(self, cut: GlobalCut) -> None:
        """Make the cut visible to readers, with what the sinks have merged for it.

        It is durable when this returns.
        """

    @abstractmethod
    def forget(self, keep: dt.timedelta) -> None:
        """Remove the cuts that were replaced more than `keep` ago."""

    @abstractmethod
    def maintain(self, keep: dt.timedelta) -> None:
        """Compact the table of cuts, and expire what was its state before `keep`."""

    @abstractmethod
    def replace_waits(self, waits: Iterable[LongWait]) -> None:
        """Say what the next cut waits for."""

    def close(self) -> None:  # noqa: B027  (Iceberg and Delta hold nothing)
        """Release what the place holds, also after a refusal to open."""

    @property
    def next_number(self) -> int:
        return self.last.number + 1 if self.last is not None else 1

    def find_part(self, prefix: str) -> Cut | None:
        """Return how far the tables of a source, or the sharded ones, are by the last cut."""
        if self.last is None or prefix != SHARED:
            return self.last.find_part(prefix) if self.last is not None else None
        return replace(
            NO_CUT, sequence=self.last.number, whole=self.last.whole, versions=self.shared_versions(self.last)
        )

    def is_shown(self, prefix: str) -> bool:
        """Whether plain names show what the last cut has of a source, or of the sharded tables.

        They wait while a table of any member is ahead: members are shown together.
        """
        part = self.find_part(prefix)
        return self.last is not None and self.last.whole and part is not None and part.whole

    def shared_versions(self, cut: GlobalCut) -> dict[str, str]:
        """Return the versions of a cut's sharded tables; each member that has rows names them."""
        named = (item for _, part, _ in cut.parts for item in part.versions.items())
        return {name: version for name, version in named if self.sharding.covers(name)}

    def check_sources(self, known: Collection[str], prefixes: Collection[str], *, of_group: bool) -> None:
        """Refuse a place with the mirror of other sources, or with tables in other places."""
        held = f"a source group ({', '.join(sorted(known))})" if of_group else f"the prefix {', '.join(sorted(known))}"
        if of_group == self.of_group and {*known} & {*prefixes}:
            return
        raise Refused(
            f"this {self.word} holds the mirror of {held}, not of "
            + (
                f"a source group ({', '.join(sorted(prefixes))})"
                if self.of_group
                else f"the prefix {', '.join(sorted(prefixes))}"
            ),
            at_stake="the tables of several sources would be mixed",
            repair=f"give the --source-group or the --prefix options of this {self.word}, or another {self.word} and a new --checkpoint",
        )
