"""`make bench`: every case loaded once, drained by every system in turn, several rounds
interleaved.

python -m bench [--quick] [--cases adh] [--systems twofold,pg_recvlogical] [--rounds N] [--rows N]
[--uncompiled]
"""

from __future__ import annotations

import argparse
import sys

import psycopg

from bench import in_doubt, initial, report
from bench.cases import CASES, END_TABLE, Case, published
from bench.drain import Sample, drain
from bench.ground import Ground
from bench.systems import ROUTER, Debezium, Recvlogical, Run, System, Twofold, refuse_uncompiled

SLOWEST = "debezium-avro"
OF_EVENTS = f"debezium-{ROUTER}"
ALL = ("pg_recvlogical", "twofold", "debezium-json", SLOWEST, OF_EVENTS)


def main() -> None:
    wanted = arguments()
    refuse_uncompiled(wanted.systems, wanted.uncompiled)
    rounds = wanted.rounds or (2 if wanted.quick else 5)
    results: list[tuple[Case, list[Sample]]] = []
    with Ground(wanted.postgres, {"fsync": "off"}) as ground:
        systems = [system for system in everyone(ground) if system.name in wanted.systems]
        for case in (case for case in CASES if case.letter in wanted.cases):
            rows = wanted.rows or case.full_rows // (10 if wanted.quick else 1)
            measure = initial.bench if case.first_load else in_doubt.bench if case.in_doubt else bench
            later = wanted.quick and bool(results)
            beside = [system for system in systems if takes(system, case) and not (later and system.name == SLOWEST)]
            results.append((case, measure(ground, case, beside, rows, range(1 if later else 0, rounds + 1))))
            print(report.table(*results[-1]) + "\n", flush=True)
    print(report.write("bench", report.cases_body(results)))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench")
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"a tenth of the rows, two rounds; only the first case warms and has {SLOWEST}",
    )
    parser.add_argument("--cases", default="".join(case.letter for case in CASES))
    parser.add_argument("--systems", default=ALL, type=lambda text: text.split(","))
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--rows", type=int)
    parser.add_argument("--uncompiled", action="store_true", help="compare a row path that is not compiled")
    parser.add_argument("--postgres", help="major version; this machine's own if not given")
    return parser.parse_args()


def everyone(ground: Ground) -> list[System]:
    debezium = [Debezium(ground, converter) for converter in ("json", "avro", ROUTER)]
    return [Recvlogical(), Twofold(ground, backfill=False), *debezium]


def takes(system: System, case: Case) -> bool:
    """Of Debezium's, the one with the EventRouter takes outboxes, and the others all else."""
    return not isinstance(system, Debezium) or (system.name == OF_EVENTS) == bool(case.events)


def bench(ground: Ground, case: Case, systems: list[System], rows: int, rounds: range) -> list[Sample]:
    """Round 0 warms: what is compiled, cached and made at first use is there before anything is
    counted.
    """
    database = f"bench_{case.letter}"
    dsn = ground.database(database)
    case.prepare(dsn, rows)
    publication = published(case, dsn)
    runs = [
        (
            number,
            system,
            Run(f"{case.letter}_{system.name.replace('-', '_')}_{number}", dsn, case.tables, publication, case.events),
        )
        for number in rounds
        for system in (*systems[number % len(systems) :], *systems[: number % len(systems)])
    ]
    for _, system, run in runs:
        system.reserve(run)
    loaded, upto = load(case, dsn, rows)
    samples = []
    for number, system, run in runs:
        sample = drain(ground, system, run, loaded, upto)
        print(f"  {case.letter} round {number} {sample}", file=sys.stderr, flush=True)
        if number:
            samples.append(sample)
        if system.counted:
            ground.drop_topics((*run.topics, run.end_topic))
    ground.drop_database(database)
    return samples


def load(case: Case, dsn: str, rows: int) -> tuple[int, str]:
    """How many changes were committed, and where the backlog ends."""
    loaded = case.load(dsn, rows)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"INSERT INTO {END_TABLE} VALUES (1)".encode())
        row = connection.execute("SELECT pg_current_wal_insert_lsn()").fetchone()
        assert row is not None, "one row was asked for"
        # Nothing is sent that is not flushed; the records behind the end let the walsender pass it.
        connection.execute("CHECKPOINT")
    return loaded, str(row[0])


if __name__ == "__main__":
    main()
