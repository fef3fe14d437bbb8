"""What the row of a global cut says, and what a reader of all databases sees at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from chaos.violation import Violation

COLUMNS: Final = {"account": ("id", "balance"), "part": ("transfer", "branch", "branches", "amount")}
Rows = dict[str, dict[str, list[tuple[Any, ...]]]]
"""By table and prefix, in order."""


@dataclass(frozen=True, slots=True)
class GlobalCut:
    """The rows of a cut."""

    number: int
    sequences: Mapping[str, int]
    """By prefix; 0 for a member that it does not name."""
    parts: Mapping[str, Any]
    """By prefix; None for a member that it does not name."""
    published_at: float = 0.0
    """In seconds since 1970."""

    def __str__(self) -> str:
        return f"{self.number} {self.sequences}"

    @property
    def complete(self) -> bool:
        """Every member has all its tables. False while one of them has no cut yet, or loads."""
        return all(map(self.has, COLUMNS))

    def has(self, table: str) -> bool:
        """Whether every member has this table, and loads it no more."""
        return all(part is not None and f"public.{table}" in self._whole(part) for part in self.parts.values())

    def version_of(self, prefix: str, table: str) -> int:
        """That of a table that it has."""
        (version,) = (each["version"] for each in self.parts[prefix]["tables"] if each["name"] == table)
        return int(version)

    def follows(self, before: GlobalCut) -> bool:
        return self.number == before.number + 1 and all(
            self.sequences[prefix] >= sequence for prefix, sequence in before.sequences.items()
        )

    @staticmethod
    def _whole(part: Any) -> set[str]:
        loading = {f"public.{topic.rpartition('.')[2]}" for topic in part["backfilling"]}
        return {each["name"] for each in part["tables"]} - loading


@dataclass(frozen=True, slots=True)
class Shown:
    """All accounts and all branches of transfers, read at once."""

    what: str
    number: int
    total: int | None
    """Of all balances; None if they were not read."""
    torn: tuple[tuple[str, int, int], ...]
    """Transfers that are there in part, with how many branches are there, and of how many."""

    def violations(self, total: int) -> list[Violation]:
        found = []
        if self.total is not None and self.total != total:
            found.append(Violation("total", f"{self.what}: {self.total}, not {total}"))
        if self.torn:
            some = list(self.torn[:5])
            found.append(Violation("torn", f"{self.what}: of {len(self.torn)} transfers a part is visible: {some}"))
        return found


def sum_up(
    what: str, number: int, accounts: Iterable[tuple[Any, ...]] | None, parts: Iterable[tuple[Any, ...]] | None
) -> Shown:
    """Of all databases' rows, with the columns in `COLUMNS`; None for a table that was not read."""
    found: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for transfer, _, branches, amount in parts or ():
        found[transfer].append((branches, amount))
    wanted = {transfer: max(branches for branches, _ in its) for transfer, its in found.items()}
    torn = tuple(
        (transfer, len(its), wanted[transfer])
        for transfer, its in found.items()
        if len(its) != wanted[transfer] or sum(amount for _, amount in its) != 0
    )
    return Shown(what, number, None if accounts is None else sum(balance for _, balance in accounts), torn)


class View(Protocol):
    """A sink's global cuts, as its readers see them."""

    look_every_s: float

    def look(self) -> Shown | None:
        """What a user reads now; None if there is nothing new, or a table is not there yet."""

    def rows_of_last(self) -> Rows:
        """Nothing if the last global cut is not complete."""

    def cuts(self) -> list[GlobalCut]:
        """All that were published, in the order of their numbers."""

    def show(self, cut: GlobalCut) -> Shown | None:
        """The tables as of this global cut; None if the sink keeps no older ones."""
