"""`make compare`: the same bank, the same faults and the same reader for each system.

python -m compare [--short] [--systems twofold,subscription] [--seeds 1,2,3]

Prints a table, and as the last line one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from compare.debezium import DebeziumJdbc
from compare.flink import FlinkIceberg, FlinkJdbc
from compare.ground import System
from compare.postgres import Subscription
from compare.spark_merge import DebeziumMerge
from compare.trial import FULL, SHORT, Trial
from compare.twofold_mirror import Twofold, TwofoldIceberg
from compare.verdict import COUNTS

SYSTEMS: Final[Mapping[str, Callable[[], System]]] = {
    system.name: system
    for system in (Twofold, Subscription, DebeziumJdbc, FlinkJdbc, TwofoldIceberg, DebeziumMerge, FlinkIceberg)
}
FIGURES: Final = {
    "fresh_p50_s": "seconds until visible, p50",
    "fresh_p99_s": "seconds until visible, p99",
    "rows_per_s": "rows a second",
    "recovery_p50_s": "seconds to recover from a fault, p50",
    "recovery_max_s": "seconds to recover from a fault, most",
    "cpu_s": "CPU seconds of all servers and the system",
    "memory_mb": "memory of all servers and the system, MB",
    "transfers": "transfers",
    "looks": "looks",
    "faults": "faults",
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="compare")
    parser.add_argument("--short", action="store_true", help="one seed, a minute of faults")
    parser.add_argument("--systems", type=lambda text: text.split(","), default=list(SYSTEMS))
    parser.add_argument("--seeds", type=lambda text: [int(seed) for seed in text.split(",")])
    options = parser.parse_args()
    results = []
    for seed in options.seeds or ([1] if options.short else [1, 2, 3]):
        for name in options.systems:
            say(f"--- {name}, seed {seed}")
            try:
                found = Trial(SYSTEMS[name](), seed, SHORT if options.short else FULL, say).run()
            except Exception as error:  # the others are still to be measured
                found = {"system": name, "seed": seed, "failed": f"{type(error).__name__}: {error}"[:500]}
            say(json.dumps(found))
            results.append(found)
    print(table(options.systems, results))
    print(json.dumps({"compare": results}))
    return 1 if any("failed" in found for found in results) else 0


def table(systems: Sequence[str], results: Sequence[dict[str, Any]]) -> str:
    """A row for each figure, a column for each system; the seeds' figures stand side by side."""
    lines = [f"| | {' | '.join(systems)} |", f"|---|{'---|' * len(systems)}"]
    for figure, words in {**COUNTS, **FIGURES}.items():
        cells = [
            ", ".join(_shown(found, figure) for found in results if found["system"] == system) for system in systems
        ]
        lines.append(f"| {words} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _shown(found: dict[str, Any], figure: str) -> str:
    if "failed" in found:
        return "failed"
    return "-" if found[figure] is None else f"{found[figure]:,}"


def say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
