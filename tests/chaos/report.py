"""Sum up all rounds of a results file, between two marks of docs/inside/chaos.md.

python -m chaos.report [--results FILE] [--page docs/inside/chaos.md]
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any, Final

RESULTS: Final = Path(".chaos/results.jsonl")
GROUP_RESULTS: Final = {
    "iceberg": Path(".chaos/group.jsonl"),
    "delta": Path(".chaos/group-delta.jsonl"),
    "jdbc": Path(".chaos/group-jdbc.jsonl"),
}
BEGIN, END = "<!-- written by python -m chaos.report -->", "<!-- end -->"


def rounds(results: Path) -> list[dict[str, Any]]:
    """One for each seed: one that was repeated counts as it ended last."""
    lines = results.read_text().splitlines() if results.exists() else []
    return list({each["seed"]: each for each in map(json.loads, lines)}.values())


def faults(of: list[dict[str, Any]]) -> Counter[str]:
    """By kind: failpoints by name, the network's by what was cut off."""
    found: Counter[str] = Counter()
    for each in of:
        for kind, times in each["faults"].items():
            name, _, detail = kind.partition(" ")
            found[name if name == "clock" else f"{name} {detail.partition(':')[0]}".strip()] += times
    return found


def families(found: Counter[str]) -> Counter[str]:
    """By what they befall; a kind without another of its family has its own name."""
    kinds = Counter(name.partition("-")[0] for name in {kind.partition(" ")[0] for kind in found})
    summed: Counter[str] = Counter()
    for kind, times in sorted(found.items()):
        name = kind.partition(" ")[0]
        family = name.partition("-")[0]
        summed[family if kinds[family] > 1 else name] += times
    return summed


def totals(results: Path, *more: str) -> dict[str, Any]:
    """The last line of `make chaos`; a group's rounds count more."""
    of = rounds(results)
    return {
        "seed": sorted({each["seed"] for each in of}),
        "faults": sum(faults(of).values()),
        **{name: sum(each.get(name, 0) for each in of) for name in ("transactions", *more)},
        "violations": sum(each["violations"] for each in of),
    }


def section(results: Path) -> str:
    of = rounds(results)
    told: Counter[str] = Counter()
    for each in of:
        told.update(each["told"])
    found = faults(of)
    sums = {
        name: sum(each.get(name, 0) for each in of)
        for name in ("transactions", "events", "commits", "starts", "cuts", "ends_inside", "violations")
    }
    waited = [each["caught_up_s"] for each in of]
    seen_after = f"{median(waited):.0f} s in the median, {max(waited):.0f} s at most" if waited else "none"
    summary = {
        "rounds, each of its own seed": len(of),
        "faults, kinds of faults": f"{sum(found.values())}, {len(found)}",
        "faults by family": ", ".join(f"{family} {times}" for family, times in families(found).items()),
        "committed transactions": sums["transactions"],
        "rolled back; outcome not told to the client": f"{told['rolled back']}; {told['unknown']}",
        "outbox events": sums["events"],
        "commit records": sums["commits"],
        "starts of a connector": sums["starts"],
        "cuts of the mirror": sums["cuts"],
        "late ends accepted inside a later transaction": sums["ends_inside"],
        "from the last fault until everything was visible": seen_after,
        "**violations**": f"**{sums['violations']}**",
    }
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in summary.items())])


def write(page: Path, text: str) -> None:
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m chaos.report")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--page", type=Path)
    options = parser.parse_args()
    if options.page:
        write(options.page, section(options.results))
    else:
        print(section(options.results))
