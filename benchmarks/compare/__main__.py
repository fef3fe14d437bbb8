"""`make compare`: the same bank, the same faults and the same reader for each system.

python -m compare [--short] [--systems twofold,subscription] [--seeds 1,2,3]

Prints a table, and as the last line one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping
from typing import Final

from compare.debezium import DebeziumJdbc
from compare.flink import FlinkIceberg, FlinkJdbc
from compare.ground import System
from compare.page import as_table
from compare.postgres import Subscription
from compare.spark_merge import DebeziumMerge
from compare.trial import FULL, SHORT, Trial
from compare.twofold_mirror import Twofold, TwofoldIceberg

SYSTEMS: Final[Mapping[str, Callable[[], System]]] = {
    system.name: system
    for system in (Twofold, Subscription, DebeziumJdbc, FlinkJdbc, TwofoldIceberg, DebeziumMerge, FlinkIceberg)
}
IN_SHORT: Final = ("twofold", "subscription", "debezium-jdbc", "flink-jdbc")
"""They write into a PostgreSQL."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="compare")
    parser.add_argument(
        "--short", action="store_true", help="one seed, a minute of faults, the systems that write into PostgreSQL"
    )
    parser.add_argument("--systems", type=lambda text: text.split(","))
    parser.add_argument("--seeds", type=lambda text: [int(seed) for seed in text.split(",")])
    options = parser.parse_args()
    systems = options.systems or (IN_SHORT if options.short else list(SYSTEMS))
    results = []
    for seed in options.seeds or ([1] if options.short else [1, 2, 3]):
        for name in systems:
            say(f"--- {name}, seed {seed}")
            try:
                found = Trial(SYSTEMS[name](), seed, SHORT if options.short else FULL, say).run()
            except Exception as error:  # the others are still to be measured
                found = {"system": name, "seed": seed, "failed": f"{type(error).__name__}: {error}"[:500]}
            say(json.dumps(found))
            results.append(found)
    print(as_table(results))
    print(json.dumps({"compare": results}))
    return 1 if any("failed" in found for found in results) else 0


def say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
