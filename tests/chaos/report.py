"""What all rounds of a results file add up to; written between two marks of docs/inside/chaos.md, so that nobody writes it by hand.

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


def totals(results: Path) -> dict[str, Any]:
    """The last line of `make chaos`."""
    of = rounds(results)
    return {
        "seed": sorted({each["seed"] for each in of}),
        "faults": sum(faults(of).values()),
        "transactions": sum(each["transactions"] for each in of),
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
        for name in ("transactions", "commits", "starts", "cuts", "ends_inside", "violations")
    }
    waited = [each["caught_up_s"] for each in of]
    summary = (
        f"{len(of)} rounds, each of a seed of its own; {sum(found.values())} faults in {len(found)} kinds; {sums['transactions']} committed transactions in {sums['commits']} commit records"
        f" ({told['unknown']} whose outcome the client was not told, {told['rolled back']} rolled back); {sums['starts']} starts of a connector; {sums['cuts']} cuts; {sums['ends_inside']} late ends accepted inside a later transaction:"
        f" **{sums['violations']} violations**."
    )
    lines = [
        summary,
        f"From the last fault until everything was visible: {median(waited):.0f} s in the median, {max(waited):.0f} s at most." if waited else "",
        "",
        "| fault | times |",
        "|---|---|",
        *(f"| {name} | {times} |" for name, times in sorted(found.items())),
    ]  # fmt: skip
    return "\n".join(lines)


def write(page: Path, text: str) -> None:
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m chaos.report")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--page", type=Path)
    options = parser.parse_args()
    if options.page:
        write(options.page, section(options.results))
    else:
        print(section(options.results))
