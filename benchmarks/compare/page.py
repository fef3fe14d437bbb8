"""The figures as `docs/learn/comparison.md` has them: one table, and the bars of two pictures.

    python -m compare.page FILE [FOLDER]

FILE is what `make compare` printed. The table is printed, the bars are written into FOLDER, from
which `make diagrams` draws.
"""

from __future__ import annotations

import csv
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final, TypeAlias

from compare.verdict import COUNTS

Found: TypeAlias = dict[str, Any]
"""Of one system and one seed."""

FIGURES: Final = {
    "transfers": "transfers",
    "looks": "looks",
    "look_p50_s": "seconds a look took, p50",
    "faults": "faults",
    "fresh_p50_s": "seconds until visible, p50",
    "fresh_p99_s": "seconds until visible, p99",
    "recovery_p50_s": "seconds to recover from a fault, p50",
    "recovery_max_s": "seconds to recover from a fault, most",
    "rows_per_s": "rows a second of a load",
    "cpu_s": "CPU seconds of all servers and the system",
    "memory_mb": "memory of all servers and the system, MB",
}
_DATED: Final = ("fresh_p50_s", "fresh_p99_s", "recovery_p50_s", "recovery_max_s")
_LOOKS_MIN: Final = 60
"""A reader that looked less often, because its looks took long, dates nothing to the second: it
rests four times as long as a look took.
"""
_FOLDER: Final = Path(__file__).parents[2] / "docs/inside/diagrams"


def as_table(results: Sequence[Found]) -> str:
    """A column for each system: counts of all seeds side by side, the median of other figures."""
    by_system = _by_system(results)
    lines = [f"| | {' | '.join(by_system)} |", f"|---|{'---|' * len(by_system)}"]
    counts = {**COUNTS, "doubled_rekeyed": "of the doubled, those whose keys were changed"}
    for figures, shown in ((counts, _side_by_side), (FIGURES, _middle)):
        for figure, words in figures.items():
            cells = [shown([_value(found, figure) for found in each]) for each in by_system.values()]
            lines.append(f"| {words} | {' | '.join(cells)} |")
    lines += [f"{found['system']}, seed {found['seed']}: {found['failed']}" for found in results if "failed" in found]
    return "\n".join(lines)


def bars(results: Sequence[Found], figures: Mapping[str, Callable[[Found], float | None]]) -> list[list[str]]:
    """The rows of a `.csv`: a system, and the median of each figure."""
    rows = [["system", *figures]]
    for system, each in _by_system(results).items():
        medians = [_median([figure(found) for found in each]) for figure in figures.values()]
        if None not in medians:
            rows.append([system, *(f"{value:g}" for value in medians)])
    return rows


def _value(found: Found, figure: str) -> Any:
    return None if figure in _DATED and found["looks"] < _LOOKS_MIN else found[figure]


def _of(figure: str) -> Callable[[Found], float | None]:
    return lambda found: _value(found, figure)


def _share_of_looks(figure: str) -> Callable[[Found], float]:
    return lambda found: round(100 * found[figure] / found["looks"], 1)


PICTURES: Final[Mapping[str, tuple[str, Mapping[str, Callable[[Found], float | None]]]]] = {
    "wrong-looks": (
        "Per cent of a reader's looks that saw what never was",
        {
            "a torn transaction": _share_of_looks("looks_torn"),
            "a torn global one": _share_of_looks("looks_split"),
            "a wrong total": _share_of_looks("wrong_totals"),
        },
    ),
    "freshness": (
        "Seconds until a transfer is visible, and to recover from a fault",
        {
            "until visible, p50": _of("fresh_p50_s"),
            "until visible, p99": _of("fresh_p99_s"),
            "to recover, p50": _of("recovery_p50_s"),
        },
    ),
}


def _by_system(results: Sequence[Found]) -> dict[str, list[Found]]:
    found = dict[str, list[Found]]()
    for each in results:
        if "failed" not in each:
            found.setdefault(each["system"], []).append(each)
    return found


def _side_by_side(counts: Sequence[int]) -> str:
    return ", ".join(f"{count:,}" for count in counts) if any(counts) else "0"


def _middle(values: Sequence[float | None]) -> str:
    middle = _median(values)
    if middle is None:
        return "-"
    return f"{middle:,.0f}" if middle >= 10 else f"{middle:.2g}"


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def main(printed: str, folder: str | None = None) -> None:
    results = json.loads(Path(printed).read_text().splitlines()[-1])["compare"]
    print(as_table(results))
    for name, (title, figures) in PICTURES.items():
        with (Path(folder or _FOLDER) / f"{name}.csv").open("w", newline="") as file:
            file.write(f"# {title} ({time.strftime('%-d %B %Y')})\n")
            csv.writer(file, lineterminator="\n").writerows(bars(results, figures))


if __name__ == "__main__":
    main(*sys.argv[1:])
