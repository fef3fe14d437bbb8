"""`make late`: the laboratory of late requests.

    python -m late [--cases abort-pool,commit-main-rows] [--deliveries 20] [--lanes 2] [--brokers 1]
                   [--kill held|late] [--results FILE]

Each case ends with a line of JSON, which goes into the results file; the last line adds up the
cases of this run, and the exit status is 1 if one has a violation.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from late.cases import CASES, LATE
from late.laboratory import Laboratory, totals
from late.servers import Servers
from twofold.stack import temporary_folder


def main() -> int:
    options = _options()
    signal.signal(signal.SIGTERM, _stop)
    chosen = LATE if options.cases == "all" else options.cases.split(",")
    if unknown := set(chosen) - set(CASES):
        raise SystemExit(f"--cases {','.join(unknown)}: choose from {', '.join(CASES)}, or all")
    settings = dict(each.split("=", 1) for each in options.broker_setting)
    folder, results = temporary_folder(), []
    with ExitStack() as ending:
        laboratory = Laboratory(Servers(folder, ending, brokers=options.brokers, settings=settings), folder, say)
        say(f"{options.brokers} broker(s), a registry and PostgreSQL are up, in {folder}")
        for name in chosen:
            result = laboratory.run(
                CASES[name],
                deliveries=options.deliveries,
                lanes=options.lanes,
                kill=options.kill,
                longest_s=options.longest,
            )
            results.append(json.loads(result.line()))
            print(result.line(), flush=True)
            if options.results:
                with options.results.open("a") as file:
                    file.write(result.line() + "\n")
    total = totals(results)
    if not total["violations"]:
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(total))
    return 1 if total["violations"] else 0


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m late")
    parser.add_argument("--cases", default="all", help=f"with commas: {', '.join(CASES)}; all")
    parser.add_argument("--deliveries", type=int, default=20, help="of each rule of a case")
    parser.add_argument("--lanes", type=int, default=2, help="connectors side by side")
    parser.add_argument("--brokers", type=int, default=1)
    parser.add_argument(
        "--kill", choices=["", "held", "late"], default="", help="kill -9 behind each that is withheld, or arrived late"
    )
    parser.add_argument("--broker-setting", action="append", default=[], help="name=value, for all brokers")
    parser.add_argument("--longest", type=float, default=0, help="seconds of a case; 0: as the case says")
    parser.add_argument("--results", type=Path, help="a file that each case's line is added to")
    return parser.parse_args()


def _stop(*_: object) -> None:
    raise SystemExit(130)


if __name__ == "__main__":
    sys.exit(main())
