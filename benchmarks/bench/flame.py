"""A flame graph of the connector while it drains one case's backlog, as an SVG file.

    python -m bench.flame [--case a] [--rows 500000] [--to dist/flame-a.svg]

py-spy samples all Python threads of the connector from outside, while they run or wait for Python's
lock; it needs the right to trace the process (root, or a relaxed ptrace_scope). Time inside
librdkafka's own threads and in the broker is not in it. A width is a share of samples, so it shows
where the time goes and not how much there is: `make bench` has the figures.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from bench.__main__ import load
from bench.cases import CASES, Case, published
from bench.ground import Ground
from bench.systems import Run, Twofold, refuse_uncompiled

_RATE = "250"
_LOOK_S = 0.02
_LONGEST_S = 600


def main() -> None:
    wanted = arguments()
    refuse_uncompiled(["twofold"], uncompiled=False)
    if (sampler := shutil.which("py-spy")) is None:
        sys.exit("py-spy is not there: make flamegraph brings it")
    wanted.to.parent.mkdir(parents=True, exist_ok=True)
    (case,) = (case for case in CASES if case.letter == wanted.case)
    with Ground(settings={"fsync": "off"}) as ground:
        record(ground, case, wanted.rows or case.full_rows // 2, sampler, wanted.to)
    print(wanted.to)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.flame")
    drained = [case.letter for case in CASES if not (case.first_load or case.in_doubt)]
    parser.add_argument("--case", default="a", choices=drained)
    parser.add_argument("--rows", type=int)
    parser.add_argument("--to", type=Path)
    wanted = parser.parse_args()
    wanted.to = wanted.to or Path(f"dist/flame-{wanted.case}.svg")
    return wanted


def record(ground: Ground, case: Case, rows: int, sampler: str, to: Path) -> None:
    """Drain the backlog, with the sampler from the stream's begin to the last row."""
    dsn = ground.database(f"flame_{case.letter}")
    case.prepare(dsn, rows)
    run = Run(f"flame_{case.letter}", dsn, case.tables, published(case, dsn))
    twofold = Twofold(ground, backfill=False)
    twofold.reserve(run)
    _, upto = load(case, dsn, rows)
    twofold.start(run, upto)
    run.wait_for_walsender()
    command = [sampler, "record", "--threads", "--rate", _RATE, "--output", str(to), "--pid", str(twofold.pid())]
    sampling = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        until = time.monotonic() + _LONGEST_S
        while not twofold.done(run):
            if sampling.poll() is not None or time.monotonic() > until:
                sys.exit(f"py-spy ended, or {rows} rows were not drained within {_LONGEST_S} s")
            time.sleep(_LOOK_S)
        sampling.send_signal(signal.SIGINT)
        if sampling.wait(60) != 0:
            sys.exit(f"py-spy ended with {sampling.returncode}")
    finally:
        sampling.kill()
        twofold.stop(run)


if __name__ == "__main__":
    main()
