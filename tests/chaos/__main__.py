"""`make chaos`: rounds of clients, faults and checks, one seed each, until the time is over.

    python -m chaos [--seed 1] [--minutes 5] [--round 90] [--faults connector-kill,net]
                    [--results FILE] [--again] [--databases 4 [--sink delta]]

Every finished round is a line in the results file. A run goes on with the first seed, from --seed
on, that is not there, so it can be stopped at any moment and resumed; the last line adds up
all rounds of the file, and the exit status is 1 if they have a violation. `--again` repeats the one
seed, whose round then counts as it ends this time. With several `--databases` a round is that of a
source group; its results have a file of their own, one for each sink.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path

from chaos import packets
from chaos.ground import BROKERS, Servers, download, remove
from chaos.group.trial import GroupTrial
from chaos.lanes import GROUP_KINDS, KINDS
from chaos.report import GROUP_RESULTS, RESULTS, rounds, totals
from chaos.trial import Trial
from twofold.stack import temporary_folder

ROUND_S, GROUP_ROUND_S = 90, 345
SINKS = tuple(GROUP_RESULTS)


def main() -> int:
    options = _options()
    signal.signal(signal.SIGTERM, _stop)
    begun = time.monotonic()
    group = options.databases > 1
    if options.sink != SINKS[0] and not group:
        raise SystemExit("--sink needs several --databases")
    kinds = _kinds(options.faults, GROUP_KINDS if group else KINDS)
    results: Path = options.results or (GROUP_RESULTS[options.sink] if group else RESULTS)
    length = options.round or (GROUP_ROUND_S if group else ROUND_S)
    results.parent.mkdir(parents=True, exist_ok=True)
    bad = 0
    if "lost-packets" in kinds and packets.can_be_lost():
        download(kinds)
        packets.move_into_namespace()
    with ExitStack() as ending:
        folder = temporary_folder()
        servers = Servers(folder, ending, databases=options.databases, brokers=1 if group else BROKERS)
        say(
            f"{len(servers.kafka.nodes)} brokers and a registry are up after {time.monotonic() - begun:.0f} s, in {folder}"
        )
        for seed in _seeds(options, results):
            left = options.minutes * 60 - (time.monotonic() - begun)
            if left < length * 0.5 and not options.again:
                break
            room = folder / f"seed{seed}"
            trial = partial(GroupTrial, sink=options.sink) if group else Trial
            seconds = min(length, left)
            result = trial(seed, seconds, kinds, servers, room, options.product, say, pace=options.pace).run()
            with results.open("a") as file:
                file.write(result.line() + "\n")
            say(f"seed {seed}: {result}")
            if result.violations:
                bad += 1
                say(
                    f"to repeat: make chaos ARGS='--seed {seed} --again --round {length:g} --faults {options.faults} --pace {options.pace:g} --databases {options.databases} --sink {options.sink}'; kept: {room}"
                )
            else:
                remove(room)
            if options.again:
                break
    if not bad:
        remove(folder)
    total = totals(results, *(("published", "cuts", "under_faults", "torn_without") if group else ()))
    print(json.dumps(total))
    return 1 if total["violations"] else 0


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def _seeds(options: argparse.Namespace, results: Path) -> Iterator[int]:
    if options.again:
        return iter([options.seed])
    done = {each["seed"] for each in rounds(results)}
    return (seed for seed in count(options.seed) if seed not in done)


def _kinds(text: str, known: frozenset[str]) -> frozenset[str]:
    """Kinds by their names or beginnings; of a single database those of Spark only where they are
    asked for.
    """
    chosen = {kind for kind in known for part in text.split(",") if part and kind.startswith(part)}
    if "all" in text.split(","):
        chosen |= known if known == GROUP_KINDS else {kind for kind in known if not kind.startswith("spark")}
    if not chosen and text != "none":
        raise SystemExit(f"--faults {text}: none of {', '.join(sorted(known))} begins like that")
    return frozenset(chosen)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m chaos")
    parser.add_argument("--seed", type=int, default=1, help="the first round's; each has the next")
    parser.add_argument("--minutes", type=float, default=5, help="how long, the servers' start among it")
    parser.add_argument(
        "--round", type=float, help=f"seconds of load and faults in a round: {ROUND_S}, of a group {GROUP_ROUND_S}"
    )
    parser.add_argument("--faults", default="all", help="kinds or beginnings of kinds, with commas; none")
    parser.add_argument("--pace", type=float, default=1, help="so many times as long between faults, for long rounds")
    parser.add_argument("--databases", type=int, default=1, help="above 1: a source group of so many")
    parser.add_argument("--sink", default=SINKS[0], choices=SINKS, help="where a source group is mirrored")
    parser.add_argument("--results", type=Path)
    parser.add_argument("--again", action="store_true", help="this seed alone, though it was done")
    parser.add_argument("--product", type=Path, help="a copy of the repository whose connector is tried")
    return parser.parse_args()


def _stop(*_: object) -> None:
    raise SystemExit(130)


if __name__ == "__main__":
    sys.exit(main())
