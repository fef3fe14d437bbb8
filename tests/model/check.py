"""`make model`: every scenario of transactions and of tables' lives in full, histories of source
groups, then every mutant, on two cores. The last line is the result as JSON; the exit status is 0
if all is as it must be.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from model import group_mutants, mutants, run, scenarios
from model.explore import Found, explore
from model.group_world import GroupWorld, first_violation
from model.lives import model as lives_model
from model.lives import mutants as lives_mutants
from model.lives import scenarios as lives_scenarios
from model.member_world import MemberWorld
from model.order_world import OrderWorld
from model.remade_world import RemadeWorld
from model.shard_world import ShardWorld

HISTORIES, AT_ONCE = 20_000, 2_500
EXPLORED: dict[str, tuple[Any, Any, Any]] = {
    "transactions": (run.Model, scenarios.FULL, mutants.MUTANTS),
    "lives": (lives_model.LivesModel, lives_scenarios.FULL, lives_mutants.MUTANTS),
}
"""The models whose worlds are all visited. "groups" is tried with random histories instead."""


class Job(NamedTuple):
    """By name, since what is patched does not travel between processes."""

    model: str
    name: str
    """A scenario, a mutant, or the number of the first history."""
    is_mutant: bool


class Result(NamedTuple):
    """How many worlds or histories there were, and the first broken promise."""

    job: Job
    number: int
    violation: str | None
    seconds: float


JOBS = [
    *(Job(name, each.name, False) for name, (_, full, _) in EXPLORED.items() for each in full),
    *(Job("groups", str(first), False) for first in range(0, HISTORIES, AT_ONCE)),
    *(Job(name, each.name, True) for name, (_, _, broken) in EXPLORED.items() for each in broken),
    *(Job("groups", each.name, True) for each in group_mutants.MUTANTS),
]


def check(job: Job) -> Result:
    began = time.process_time()
    number, violation = tried(job) if job.model == "groups" else explored(job)
    return Result(job, number, violation, time.process_time() - began)


def explored(job: Job) -> tuple[int, str | None]:
    model, full, broken = EXPLORED[job.model]
    found: Found
    if job.is_mutant:
        with next(each for each in broken if each.name == job.name).applied() as mutant:
            found = explore(mutant)
    else:
        found = explore(model(next(each for each in full if each.name == job.name)))
    return found.states, found.violation


def tried(job: Job) -> tuple[int, str | None]:
    if not job.is_mutant:
        seeds = range(int(job.name), int(job.name) + AT_ONCE)
        others = seeds[: AT_ONCE // 4]
        worlds = {GroupWorld: seeds, MemberWorld: others, RemadeWorld: others, OrderWorld: others, ShardWorld: seeds}
        found = (first_violation(world, its) for world, its in worlds.items())
        return sum(map(len, worlds.values())), next(filter(None, found), None)
    mutant = next(each for each in group_mutants.MUTANTS if each.name == job.name)
    with mutant.applied():
        return HISTORIES, first_violation(GroupWorld, range(HISTORIES))


def lines(results: Iterator[Result]) -> Iterator[str]:
    states = histories = violations = caught = 0
    for (model, name, is_mutant), number, violation, seconds in results:
        if is_mutant:
            caught += violation is not None
            yield f"{model}, mutant, {name} ({seconds:.0f} s of CPU): {violation or 'NOT CAUGHT'}"
            continue
        violations += violation is not None
        histories, states = (histories + number, states) if model == "groups" else (histories, states + number)
        counted = f"{number:,} histories from" if model == "groups" else f"{number:,} states:"
        yield f"{model}, {counted} {name}, in {seconds:.0f} s of CPU; {violation or 'all promises hold'}"
    yield json.dumps(
        {
            "states": states,
            "histories": histories,
            "violations": violations,
            "mutants": sum(job.is_mutant for job in JOBS),
            "mutants_caught": caught,
        }
    )


def main() -> int:
    with multiprocessing.get_context("spawn").Pool(2, maxtasksperchild=1) as pool:
        line = ""
        for line in lines(pool.imap_unordered(check, JOBS, chunksize=1)):
            print(line, flush=True)
    result = json.loads(line)
    return 0 if result["violations"] == 0 and result["mutants"] == result["mutants_caught"] else 1


if __name__ == "__main__":
    sys.exit(main())
