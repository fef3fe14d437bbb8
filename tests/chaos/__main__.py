"""`make chaos`: rounds of clients, faults and checks, one seed each, until the time is over.

    python -m chaos [--seed 1] [--minutes 5] [--round 90] [--faults connector-kill,net]
                    [--results FILE] [--again]

Every finished round is a line in the results file. A run goes on with the first seed, from --seed
on, that is not there, so it can be stopped at any moment and taken up again; the last line adds up
all rounds of the file, and the exit status is 1 if they have a violation. `--again` repeats the one
seed, whose round then counts as it ends this time.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

from chaos import packets
from chaos.ground import Servers, download, remove
from chaos.plan import KINDS
from chaos.report import RESULTS, rounds, totals
from chaos.trial import Trial
from twofold.stack import temporary_folder


def main() -> int:
    options = _options()
    signal.signal(signal.SIGTERM, _stop)
    begun = time.monotonic()
    kinds = _kinds(options.faults)
    results: Path = options.results
    results.parent.mkdir(parents=True, exist_ok=True)
    bad = 0
    if "lost-packets" in kinds and packets.can_be_lost():
        download(kinds)
        packets.move_into_namespace()
    with ExitStack() as ending:
        folder = temporary_folder()
        servers = Servers(folder, ending)
        say(f"three brokers and a registry are up after {time.monotonic() - begun:.0f} s, in {folder}")
        for seed in _seeds(options, results):
            left = options.minutes * 60 - (time.monotonic() - begun)
            if left < options.round * 0.5 and not options.again:
                break
            room = folder / f"seed{seed}"
            result = Trial(
                seed, min(options.round, left), kinds, servers, room, options.product, say, pace=options.pace
            ).run()
            with results.open("a") as file:
                file.write(result.line() + "\n")
            say(f"seed {seed}: {sum(result.faults.values())} faults, {result.transactions} transactions, {result.commits} commit records, {result.starts} starts,"
                f" {result.ends_inside} late ends accepted inside a later transaction, all there {result.caught_up_s} s after the last fault: {result.violations} violations {result.kinds or ''}")  # fmt: skip
            if result.violations:
                bad += 1
                say(
                    f"to repeat: make chaos ARGS='--seed {seed} --again --round {options.round:g} --faults {options.faults} --pace {options.pace:g}'; kept: {room}"
                )
            else:
                remove(room)
            if options.again:
                break
    if not bad:
        remove(folder)
    total = totals(results)
    print(json.dumps(total))
    return 1 if total["violations"] else 0


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def _seeds(options: argparse.Namespace, results: Path) -> Iterator[int]:
    if options.again:
        return iter([options.seed])
    done = {each["seed"] for each in rounds(results)}
    return (seed for seed in count(options.seed) if seed not in done)


def _kinds(text: str) -> frozenset[str]:
    """Kinds by their names or beginnings; those of Spark only where they are asked for."""
    chosen = {kind for kind in KINDS for part in text.split(",") if part and kind.startswith(part)}
    if "all" in text.split(","):
        chosen |= {kind for kind in KINDS if not kind.startswith("spark")}
    if not chosen and text != "none":
        raise SystemExit(f"--faults {text}: none of {', '.join(sorted(KINDS))} begins like that")
    return frozenset(chosen)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m chaos")
    parser.add_argument("--seed", type=int, default=1, help="the first round's; each has the next")
    parser.add_argument("--minutes", type=float, default=5, help="how long, the servers' start among it")
    parser.add_argument("--round", type=float, default=90, help="seconds of load and faults in a round")
    parser.add_argument("--faults", default="all", help="kinds or beginnings of kinds, with commas; none")
    parser.add_argument("--pace", type=float, default=1, help="so many times as long between faults, for long rounds")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--again", action="store_true", help="this seed alone, though it was done")
    parser.add_argument("--product", type=Path, help="a copy of the repository whose connector is tried")
    return parser.parse_args()


def _stop(*_: object) -> None:
    raise SystemExit(130)


if __name__ == "__main__":
    sys.exit(main())
