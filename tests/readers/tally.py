"""What was read, counted: reads, those that saw two cuts, and how long two cuts were to be seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Tally:
    """Reads of one program.

    A read counts if the first table was the same before and after it. If not, it is made again, as
    the pages say.
    """

    total: int
    """What both tables hold together, in every cut."""
    reads: int = 0
    torn: list[int] = field(default_factory=list)
    """The totals that were wrong."""
    repeated: int = 0
    """Reads that were made again."""
    repeated_torn: int = 0
    """Those of them whose total was wrong."""
    versions: set[int] = field(default_factory=set)
    """Of the first table, in reads that count."""

    def count(self, total: int, *, before: int, after: int) -> None:
        """Take a read, and the first table's version before and after it."""
        if before != after:
            self.repeated += 1
            self.repeated_torn += total != self.total
            return
        self.reads += 1
        self.versions.add(before)
        if total != self.total:
            self.torn.append(total)


@dataclass
class TornTimes:
    """How often, and how long, two tables' plain names were of different cuts."""

    times: int = 0
    longest_s: float = 0.0
    _since: float | None = None

    def observe(self, at: float, *, torn: bool) -> None:
        """Take what was seen at a moment; such a time lasts until a moment when it is over."""
        if torn and self._since is None:
            self._since = at
            self.times += 1
        if self._since is not None:
            self.longest_s = max(self.longest_s, at - self._since)
        if not torn:
            self._since = None


@dataclass(frozen=True)
class Outcome:
    """A catalog's trial."""

    catalog: str
    commits_at_once: bool
    offers_commit: bool
    """Whether the catalog says that several tables can change in one commit."""
    cuts: int
    """Those that the mirror said, at least."""
    kills: int
    seconds: float
    tallies: dict[str, Tally]
    """By reader."""
    torn_times: TornTimes | None = None
    """Where one look at both tables is possible."""

    @property
    def reads(self) -> int:
        return sum(tally.reads for tally in self.tallies.values())

    @property
    def torn(self) -> int:
        return sum(len(tally.torn) for tally in self.tallies.values())

    def describe(self) -> str:
        """Say it in lines."""
        done = f"{self.reads} reads, {self.cuts} cuts, {self.kills} kills in {self.seconds:.0f} s"
        offer = "offers" if self.offers_commit else "does not offer"
        lines = [f"{self.catalog}: {done}: {self.torn} torn", f"  it {offer} one commit of several tables"]
        for reader, tally in self.tallies.items():
            lines.append(
                f"  {reader}: {tally.reads} reads of {len(tally.versions)} versions, {len(tally.torn)} torn; "
                f"{tally.repeated} were made again because a cut was published meanwhile, "
                f"{tally.repeated_torn} of these were torn"
            )
        if self.torn_times is not None:
            lines.append(
                f"  two tables were of two cuts {self.torn_times.times} times, "
                f"{self.torn_times.longest_s * 1000:.0f} ms at most"
            )
        return "\n".join(lines)


def summarize(outcomes: Sequence[Outcome], readers: Sequence[str]) -> dict[str, Any]:
    """Return the last line: reads of the catalogs that change several tables in one commit."""
    at_once = [outcome for outcome in outcomes if outcome.commits_at_once]
    return {
        "readers": list(readers),
        "reads": sum(outcome.reads for outcome in at_once),
        "torn": sum(outcome.torn for outcome in at_once),
    }
