"""`make model`: every scenario in full, then every mutant, on two cores. The last line is the
result as JSON; the exit status is 0 if all is as it must be.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from collections.abc import Iterator
from typing import Any

from model import mutants, run, scenarios
from model.explore import Found, explore
from model.lives import model as lives_model
from model.lives import mutants as lives_mutants
from model.lives import scenarios as lives_scenarios

Job = tuple[str, str, bool]
"""The model, a name, and whether it is a mutant's."""
MODELS: dict[str, tuple[Any, Any, Any]] = {
    "transactions": (run.Model, scenarios.FULL, mutants.MUTANTS),
    "lives": (lives_model.LivesModel, lives_scenarios.FULL, lives_mutants.MUTANTS),
}
JOBS: list[Job] = [
    *((name, each.name, False) for name, (_, full, _) in MODELS.items() for each in full),
    *((name, each.name, True) for name, (_, _, broken) in MODELS.items() for each in broken),
]


def explored(job: Job) -> tuple[Job, Found, float]:
    """One scenario, or one mutant in its scenario; by name, since what is patched does not travel
    between processes.
    """
    began = time.process_time()
    name, what, is_mutant = job
    model, full, broken = MODELS[name]
    found: Found
    if is_mutant:
        with next(each for each in broken if each.name == what).applied() as mutant:
            found = explore(mutant)
    else:
        found = explore(model(next(each for each in full if each.name == what)))
    return job, found._replace(way=()), time.process_time() - began


def lines(results: Iterator[tuple[Job, Found, float]]) -> Iterator[str]:
    states = violations = caught = 0
    for (name, what, is_mutant), found, seconds in results:
        if is_mutant:
            caught += found.violation is not None
            yield f"{name}, mutant, {what} ({seconds:.0f} s of CPU): {found.violation or 'NOT CAUGHT'}"
        else:
            states += found.states
            violations += found.violation is not None
            told = found.violation or "all promises hold"
            yield f"{name}, {what}: {found.states:,} states in {seconds:.0f} s of CPU; {told}"
    count = sum(is_mutant for *_, is_mutant in JOBS)
    yield json.dumps({"states": states, "violations": violations, "mutants": count, "mutants_caught": caught})


def main() -> int:
    with multiprocessing.get_context("spawn").Pool(2, maxtasksperchild=1) as pool:
        line = ""
        for line in lines(pool.imap_unordered(explored, JOBS, chunksize=1)):
            print(line, flush=True)
    result = json.loads(line)
    return 0 if result["violations"] == 0 and result["mutants"] == result["mutants_caught"] else 1


if __name__ == "__main__":
    sys.exit(main())
