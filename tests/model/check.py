"""`make model`: every scenario in full, the histories of source groups, then every mutant, on two
cores. The last line is the result as JSON; the exit status is 0 if all is as it must be.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from collections.abc import Iterator
from typing import Literal, NamedTuple

from model.explore import explore
from model.group_mutants import MUTANTS as GROUP_MUTANTS
from model.group_world import first_violation
from model.mutants import MUTANTS
from model.run import Model
from model.scenarios import FULL

HISTORIES, AT_ONCE = 20_000, 2_500


class Job(NamedTuple):
    """By name, since what is patched does not travel between processes."""

    kind: Literal["scenario", "histories", "mutant", "group mutant"]
    name: str

    @property
    def is_mutant(self) -> bool:
        return self.kind in {"mutant", "group mutant"}


class Result(NamedTuple):
    """How many worlds or histories there were, and the first broken promise."""

    job: Job
    number: int
    violation: str | None
    seconds: float


JOBS = [
    *(Job("scenario", each.name) for each in FULL),
    *(Job("histories", str(first)) for first in range(0, HISTORIES, AT_ONCE)),
    *(Job("mutant", each.name) for each in MUTANTS),
    *(Job("group mutant", each.name) for each in GROUP_MUTANTS),
]


def run(job: Job) -> Result:
    began = time.process_time()
    number, violation = explored(job)
    return Result(job, number, violation, time.process_time() - began)


def explored(job: Job) -> tuple[int, str | None]:
    match job.kind:
        case "scenario":
            found = explore(Model(next(each for each in FULL if each.name == job.name)))
            return found.states, found.violation
        case "mutant":
            with next(each for each in MUTANTS if each.name == job.name).applied() as broken:
                found = explore(broken)
                return found.states, found.violation
        case "histories":
            return AT_ONCE, first_violation(range(int(job.name), int(job.name) + AT_ONCE))
        case "group mutant":
            with next(each for each in GROUP_MUTANTS if each.name == job.name).applied():
                return HISTORIES, first_violation(range(HISTORIES))


def lines(results: Iterator[Result]) -> Iterator[str]:
    states = histories = violations = caught = 0
    for job, number, violation, seconds in results:
        if job.is_mutant:
            caught += violation is not None
            yield f"{job.kind}, {job.name} ({seconds:.0f} s of CPU): {violation or 'NOT CAUGHT'}"
            continue
        violations += violation is not None
        states += number if job.kind == "scenario" else 0
        histories += number if job.kind == "histories" else 0
        what = f"{job.name}: {number:,} states" if job.kind == "scenario" else f"{number:,} histories from {job.name}"
        yield f"{what} in {seconds:.0f} s of CPU; {violation or 'all promises hold'}"
    mutants = sum(job.is_mutant for job in JOBS)
    yield json.dumps(
        {
            "states": states,
            "histories": histories,
            "violations": violations,
            "mutants": mutants,
            "mutants_caught": caught,
        }
    )


def main() -> int:
    with multiprocessing.get_context("spawn").Pool(2, maxtasksperchild=1) as pool:
        line = ""
        for line in lines(pool.imap_unordered(run, JOBS, chunksize=1)):
            print(line, flush=True)
    result = json.loads(line)
    return 0 if result["violations"] == 0 and result["mutants"] == result["mutants_caught"] else 1


if __name__ == "__main__":
    sys.exit(main())
