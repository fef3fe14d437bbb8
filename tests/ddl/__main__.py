"""`make ddl`: changes of definitions, rows, loads, commands and kills at random, by seeds.

    python -m ddl [--seeds 200] [--first 1] [--together 20] [--commits 100] [--untold]
                  [--mutants] [--keep-on]

Each batch of seeds is one line of JSON. The last line says how many seeds were right. With
`--mutants` the comparison of descriptions is broken in five ways, and the last line says how many
were found. The exit status is 1 if a table is wrong, or a mutant is not found.
"""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ddl.batch import Batch, Counts
from ddl.mutants import MUTANTS, broken
from fixtures.connector import Installation
from fixtures.stack import fresh_database, fresh_prefix, topics_deleted
from twofold.stack import KafkaCluster, PostgresServer, RegistryServer, temporary_folder


class Laboratory:
    """The servers, and one connector after another."""

    def __init__(self, folder: Path, ending: ExitStack, version: str | None) -> None:
        self.folder = folder
        self.postgres = PostgresServer(folder / "postgres", version=version)
        self.kafka, self.registry = KafkaCluster(folder / "kafka"), RegistryServer(folder / "registry")
        for server in (self.postgres, self.kafka, self.registry):
            ending.callback(server.stop)
            server.start()

    def run(self, seeds: list[int], commits: int, *, told: bool, processes: bool, patience_s: float) -> Counts:
        name = fresh_prefix()
        with (
            topics_deleted(self.kafka, name),
            fresh_database(self.postgres, f"db_{name}") as conninfo,
            ExitStack() as ending,
        ):
            here = Installation(self.folder, name, conninfo, self.kafka.bootstrap, self.registry.url, {})
            ending.callback(here.close)
            return Batch(here, seeds, told=told, patience_s=patience_s).run(commits, processes=processes)


def main() -> int:
    options = _options()
    logging.basicConfig(level=logging.ERROR)
    folder = temporary_folder()
    with ExitStack() as ending:
        laboratory = Laboratory(folder, ending, options.version)
        failed = _mutants(laboratory, options) if options.mutants else _seeds(laboratory, options)
    if not failed:
        shutil.rmtree(folder, ignore_errors=True)
    return failed


def _seeds(laboratory: Laboratory, options: argparse.Namespace) -> int:
    right = commits = changes = 0
    last, wrong = options.first + options.seeds, False
    for first in range(options.first, last, options.together):
        seeds, began = list(range(first, min(first + options.together, last))), time.monotonic()
        counts = laboratory.run(seeds, options.commits, told=not options.untold, processes=True, patience_s=60)
        print(
            json.dumps({"seeds": seeds, "seconds": round(time.monotonic() - began), **_rounded(asdict(counts))}),
            flush=True,
        )
        right += len(seeds) if not counts.wrong else 0
        commits, changes, wrong = commits + counts.commits, changes + counts.changes, wrong or bool(counts.wrong)
        if wrong and not options.keep_on:
            break
    print(f"{right} of {options.seeds} seeds right: {commits:,} commits, {changes:,} of them changes of definitions")
    return int(wrong)


def _rounded(values: dict[str, Any]) -> dict[str, Any]:
    return {name: round(value) if isinstance(value, float) else value for name, value in values.items()}


def _mutants(laboratory: Laboratory, options: argparse.Namespace) -> int:
    found = 0
    seeds = list(range(options.first, options.first + options.together))
    for name in MUTANTS:
        with broken(name):
            counts = laboratory.run(seeds, options.commits, told=not options.untold, processes=False, patience_s=20)
        found += bool(counts.wrong)
        print(json.dumps({"mutant": name, "found": bool(counts.wrong), "by": counts.wrong[:1]}), flush=True)
    print(f"{found} of {len(MUTANTS)} mutants found")
    return int(found < len(MUTANTS))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m ddl")
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--together", type=int, default=20, help="seeds over one connector")
    parser.add_argument("--commits", type=int, default=100, help="of each seed")
    parser.add_argument(
        "--untold",
        action="store_true",
        help="without event triggers, what they alone notice, and changes between two looks",
    )
    parser.add_argument("--mutants", action="store_true", help="break the comparison of descriptions")
    parser.add_argument("--keep-on", action="store_true", help="go on behind a wrong batch")
    parser.add_argument("--version", help="of PostgreSQL")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
