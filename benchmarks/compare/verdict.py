"""What the looks, the journal and the rows at the end say of a system. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from compare.bank import COLUMNS, Journal
from compare.looks import EXAMPLES, Rows, Sightings

_ID: Final = COLUMNS["entry"].index("id")
_TRANSFER: Final = COLUMNS["entry"].index("transfer")
COUNTS: Final = {
    "lost": "rows lost, or old at the end",
    "doubled": "transfers and accounts doubled",
    "rolled_back": "transfers visible that were not committed",
    "torn": "transactions torn",
    "split": "global transactions torn",
    "wrong_totals": "looks with a total that never was",
}


@dataclass(frozen=True, slots=True)
class Healed:
    """A fault that is over since a time."""

    what: str
    at: float


@dataclass(frozen=True, slots=True)
class Ends:
    """How rows at the end differ from the source's."""

    lost: list[str]
    """Rows that are missing, or that are there with other values."""
    doubled: set[str]
    rolled_back: set[int]


def compare_ends(source: Rows, copy: Rows) -> Ends:
    committed = committed_transfers(source)
    lost, doubled, rolled_back = list[str](), set[str](), set[int]()
    for place, rows in source.items():
        database, table = place
        missing, extra = rows - copy[place], copy[place] - rows
        lost += [f"{database}.{table}: {row}" for row in missing.elements()]
        replaced = {row[0] for row in missing}
        for row in extra:
            if table == "entry" and row[_TRANSFER] not in committed:
                rolled_back.add(row[_TRANSFER])
            elif row[0] not in replaced:
                doubled.add(
                    f"{database}: transfer {row[_TRANSFER]}" if table == "entry" else f"{database}: account {row[0]}"
                )
    return Ends(lost, doubled, rolled_back)


def committed_transfers(source: Rows) -> set[int]:
    return {row[_TRANSFER] for (_, table), rows in source.items() if table == "entry" for row in rows}


def rekeyed_transfers(source: Rows) -> set[str]:
    """As they are named among the doubled: a change of keys makes them negative."""
    return {
        f"{database}: transfer {row[_TRANSFER]}"
        for (database, table), rows in source.items()
        if table == "entry"
        for row in rows
        if row[_ID] < 0
    }


def judge(journal: Journal, sightings: Sightings, source: Rows, copy: Rows) -> dict[str, Any]:
    """The six counts, and examples of each."""
    ends, committed = compare_ends(source, copy), committed_transfers(source)
    early = {
        transfer
        for transfer, seen in sightings.first_seen.items()
        if transfer not in committed or seen < journal.begun.get(transfer, 0.0)
    }
    uncommitted = early | ends.rolled_back
    doubled = sightings.doubled | ends.doubled
    examples = {
        **sightings.examples,
        "lost": ends.lost[:EXAMPLES],
        "rolled_back": [f"transfer {transfer}" for transfer in sorted(uncommitted)[:EXAMPLES]],
    }
    return {
        "lost": len(ends.lost),
        "doubled": len(doubled),
        "doubled_rekeyed": len(doubled & rekeyed_transfers(source)),
        "rolled_back": len(uncommitted),
        "torn": len(sightings.torn),
        "split": len(sightings.split),
        "wrong_totals": sightings.wrong_totals,
        "looks": sightings.looks,
        "looks_torn": sightings.looks_torn,
        "looks_split": sightings.looks_split,
        "transfers": len(committed),
        "examples": {kind: found for kind, found in examples.items() if found},
    }


def freshness(journal: Journal, sightings: Sightings, since: float, until: float) -> list[float]:
    """Seconds from the answer to COMMIT until the transfer is whole in the copy, in order; of what
    was committed between these times.
    """
    return sorted(
        max(0.0, sightings.first_whole[transfer] - done)
        for transfer, done in journal.done.items()
        if since <= done < until and transfer in sightings.first_whole
    )


def recoveries(journal: Journal, sightings: Sightings, healed: Iterable[Healed]) -> dict[str, list[float]]:
    """By fault: seconds from its end until the copy has a transfer that was committed behind it."""
    found: dict[str, list[float]] = {}
    for fault in healed:
        shown = [
            sightings.first_whole[transfer]
            for transfer, begun in journal.begun.items()
            if begun > fault.at and transfer in sightings.first_whole
        ]
        if shown:
            found.setdefault(fault.what, []).append(round(min(shown) - fault.at, 1))
    return found


def percentile(ordered: Sequence[float], share: float) -> float | None:
    return round(ordered[min(len(ordered) - 1, int(len(ordered) * share))], 2) if ordered else None
