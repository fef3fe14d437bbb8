"""`make model`: every scenario in full, then every mutant, on two cores. The last line is the
result as JSON; the exit status is 0 if all is as it must be.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from collections.abc import Iterator

from model.explore import Found, explore
from model.mutants import MUTANTS
from model.run import Model
from model.scenarios import FULL

JOBS = [*((each.name, None) for each in FULL), *((None, each.name) for each in MUTANTS)]


def run(job: tuple[str | None, str | None]) -> tuple[str | None, str | None, Found, float]:
    """One scenario, or one mutant in its scenario; by name, since what is patched does not travel
    between processes.
    """
    began = time.process_time()
    scenario, mutant = job
    if mutant is None:
        found = explore(Model(next(each for each in FULL if each.name == scenario)))
    else:
        with next(each for each in MUTANTS if each.name == mutant).applied() as broken:
            found = explore(broken)
    return scenario, mutant, found._replace(way=()), time.process_time() - began


def lines(results: Iterator[tuple[str | None, str | None, Found, float]]) -> Iterator[str]:
    states = violations = caught = 0
    for scenario, mutant, found, seconds in results:
        if mutant is None:
            states += found.states
            violations += found.violation is not None
            yield f"{scenario}: {found.states:,} states in {seconds:.0f} s of CPU; {found.violation or 'all promises hold'}"
        else:
            caught += found.violation is not None
            yield f"mutant, {mutant} ({seconds:.0f} s of CPU): {found.violation or 'NOT CAUGHT'}"
    yield json.dumps({"states": states, "violations": violations, "mutants": len(MUTANTS), "mutants_caught": caught})


def main() -> int:
    with multiprocessing.get_context("spawn").Pool(2, maxtasksperchild=1) as pool:
        line = ""
        for line in lines(pool.imap_unordered(run, JOBS, chunksize=1)):
            print(line, flush=True)
    result = json.loads(line)
    return 0 if result["violations"] == 0 and result["mutants"] == result["mutants_caught"] else 1


if __name__ == "__main__":
    sys.exit(main())
