"""What it costs that the tables of eight databases are shards of one.

    make bench-shards [ARGS='[PARTS [SECONDS [ROWS]]]']

PARTS are `latency` and `rows` (default: both).

- latency: after loads that only warm the JVM, for SECONDS (40) two transfers a second of two rows
  each, and then ten, between two of the shards; and the same within one database. From COMMIT
  PREPARED of what is ended last to the cut, with a trigger of a second: by the mirror of the
  shards, and by that of the one database. And what of that the last of all members' frontiers took
  to be written, what each step of a round takes, and how many jobs of Spark it runs.
- rows: each shard has ROWS inserts (50,000) and as many updates of them. A mirror of the eight
  reads this backlog into eight tables and into one, by turns, after one round that only warms the
  JVM. In the end both have what was written.

The last line is one JSON object.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import psycopg
from bench import writers
from bench.ground import Committed, Ground, wait_until
from bench.latency import percentiles
from group import WARMS, Connectors, Cuts, find_places, follow, run_beside
from pyspark.sql import SparkSession

from chaos.reading import avro, read_all
from twofold_common import java
from twofold_spark import session
from twofold_spark.mirror.mirror_job import Mirror
from twofold_spark.session import member_catalog
from twofold_spark.sinks.sharding import NO_SHARDING, Sharding
from twofold_spark.sources.kafka_client import Kafka
from twofold_spark.sources.registry import Registry

SHARDS = tuple(f"shard{letter}" for letter in "abcdefgh")
WHOLE = ("whole",)
"""The database that has all rows."""
RATES = (2, 10)
"""Transfers a second. With ten the connectors, the broker and Spark leave a tenth of two cores."""
SHARDED = Sharding.parse("*")
ROUND = "round"
"""The step that the others are parts of."""


class Databases:
    """The shards, and the database that has all rows."""

    def __init__(self, ground: Ground) -> None:
        self.dsns = {name: ground.database(name) for name in (*SHARDS, *WHOLE)}
        for dsn in self.dsns.values():
            with psycopg.connect(dsn, autocommit=True) as connection:
                connection.execute("CREATE TABLE part (id bigint PRIMARY KEY, amount bigint)")
                connection.execute("CREATE PUBLICATION bench FOR TABLE part")
        self._next = 0

    def fill(self, rows: int) -> None:
        """Write so many rows into each shard, and change each once."""
        for place, name in enumerate(SHARDS):
            with psycopg.connect(self.dsns[name], autocommit=True) as connection:
                connection.execute(
                    f"INSERT INTO part SELECT -n * {len(SHARDS)} - {place}, 0 FROM generate_series(1, {rows}) n".encode()
                )
                connection.execute("UPDATE part SET amount = 1")

    def transfer_for(self, names: Sequence[str], seconds: float, rate: float) -> dict[int, tuple[str, float]]:
        """Transfer so many times a second between two of these; return which branch of each
        transfer was ended last, and when that was sent.
        """
        ended, rng = dict[int, tuple[str, float]](), random.Random(5)
        with ExitStack() as opened:
            sessions = {name: opened.enter_context(psycopg.connect(self.dsns[name], autocommit=True)) for name in names}
            begun = time.monotonic()
            while time.monotonic() < begun + seconds:
                number, self._next = self._next, self._next + 2
                branches = rng.sample(names, min(2, len(names)))
                rows = [f"({number}, 1)", f"({number + 1}, -1)"]
                written = rows if len(branches) == 2 else [", ".join(rows)]
                for name, row in zip(branches, written, strict=True):
                    gid = f"1_{number}_{name}"
                    sessions[name].execute(
                        f"BEGIN; INSERT INTO part VALUES {row}; PREPARE TRANSACTION '{gid}'".encode()
                    )
                for name in reversed(branches):  # the first row is in the branch that is ended last
                    ended[number] = name, time.time()
                    sessions[name].execute(f"COMMIT PREPARED '1_{number}_{name}'".encode())
                writers.sleep_until(begun + len(ended) / rate)
        return ended


class Steps:
    """Times the steps of a mirror's rounds, one call after the other, and counts Spark's jobs."""

    def __init__(self, spark: SparkSession) -> None:
        self._context: Any = spark.sparkContext._jsc.sc()
        self._took: dict[str, list[tuple[float, int]]] = defaultdict(list)
        self._ended: float | None = None

    def watch(self, owner: Any, names: Iterable[str]) -> None:
        """Time these methods from now on."""
        for name in names:
            self._watch(owner, name)

    def _watch(self, owner: Any, name: str) -> None:
        method, step = getattr(owner, name), ROUND if name == "_run_round" else f"{type(owner).__name__}.{name}"

        def timed(*given: Any, **named: Any) -> Any:
            began, jobs = time.monotonic(), self._count_jobs()
            if step == ROUND and self._ended is not None:
                self._took["between two rounds"].append((began - self._ended, 0))
            try:
                return method(*given, **named)
            finally:
                now = time.monotonic()
                self._took[step].append((now - began, self._count_jobs() - jobs))
                if step == ROUND:
                    self._ended = now

        setattr(owner, name, timed)

    def describe(self) -> dict[str, dict[str, float]]:
        """Return the median of each step, in ms, its jobs, and how often it was called."""
        return {
            step: {
                "p50": round(median(seconds for seconds, _ in took) * 1000),
                "jobs": round(sum(jobs for _, jobs in took) / len(took), 1),
                "calls": len(took),
            }
            for step, took in sorted(self._took.items())
        }

    def _count_jobs(self) -> int:
        return int(self._context.dagScheduler().numTotalJobs())


class Lake:
    """Mirrors of what the connectors carry, each in a folder of its own."""

    def __init__(self, ground: Ground, databases: Databases, prefixes: dict[str, str], spark: SparkSession) -> None:
        self._ground = ground
        self._databases = databases
        self._prefixes = prefixes
        self._spark = spark
        self._kafka, self._registry = Kafka(ground.bootstrap), Registry(ground.stack.registry.url)

    def read_backlog(self, sharding: Sharding, rows: int) -> float:
        """Return how many changes a second a mirror of the shards applies."""
        shards = [self._prefixes[name] for name in SHARDS]
        began = time.monotonic()
        job, close, catalog = follow(
            self._spark, self._kafka, self._registry, shards, self._folder(), Cuts(),
            sharding=sharding, trigger="available-now",
        )  # fmt: skip
        job.run()
        took = time.monotonic() - began
        close()
        tables = [catalog] if sharding is SHARDED else [member_catalog(catalog, prefix) for prefix in shards]
        counts = [self._spark.table(f"{each}.public.part").where("amount = 1 AND id < 0").count() for each in tables]
        assert sum(counts) == len(SHARDS) * rows, counts
        return len(SHARDS) * 2 * rows / took

    def follow_transfers(self, names: Sequence[str], seconds: float, rate: float) -> dict[str, object]:
        """Return the times from COMMIT PREPARED to the cut, by a mirror of these databases."""
        cuts, prefixes, steps = Cuts(), [self._prefixes[name] for name in names], Steps(self._spark)

        def watch(mirror: Mirror) -> None:
            steps.watch(mirror, ("_run_round", "_choose", "_apply", "_fold_shards", "_publish"))
            steps.watch(mirror._reader, ("read",))
            steps.watch(mirror._shared, ("merge",))

        job, close, _ = follow(
            self._spark, self._kafka, self._registry, prefixes, self._folder(), cuts,
            sharding=SHARDED if names is SHARDS else NO_SHARDING, watch=watch,
        )  # fmt: skip

        def find() -> dict[str, dict[int, int]]:
            return find_places(self._ground.bootstrap, self._ground.stack.registry.url, prefixes)

        def show(ended: dict[int, tuple[str, float]]) -> None:
            last = {self._prefixes[name]: number for number, (name, _) in ended.items()}

            def is_shown() -> bool:
                places = find()
                return all(cuts.reached(p) >= places[p].get(n, sys.maxsize) for p, n in last.items())

            wait_until("all is shown", is_shown, 120, pause_s=1)

        def load() -> dict[int, tuple[str, float]]:
            show(self._databases.transfer_for(names, 1, rate))  # a start reads what was written before
            ended = self._databases.transfer_for(names, seconds, rate)
            show(self._databases.transfer_for(names, 5, rate))  # to look for their places takes processors
            return ended

        ended = run_beside(job, load)
        close()
        places = find()
        times = [
            cuts.shown_at(self._prefixes[name], places[self._prefixes[name]][number]) - sent
            for number, (name, sent) in ended.items()
        ]
        found: dict[str, object] = {**percentiles(times)}
        print(
            f"{len(names)} databases, {rate} a second: {len(times)} transfers, {len(cuts.at)} cuts, ms {found}",
            flush=True,
        )
        if names is SHARDS:
            found["frontiers"] = percentiles(self._time_frontiers(prefixes, ended, places))
        found["steps"] = steps.describe()
        for step in ("frontiers", "steps"):
            print(f"  {step}: {json.dumps(found.get(step))}", flush=True)
        return found

    def _time_frontiers(
        self, prefixes: Sequence[str], ended: Mapping[int, tuple[str, float]], places: Mapping[str, Mapping[int, int]]
    ) -> list[float]:
        """Return the times from COMMIT PREPARED to the last member's frontier that speaks of it."""
        decode = avro(self._ground.stack.registry.url)
        written: dict[str, list[tuple[float, dict[str, int]]]] = {
            prefix: [
                (
                    each.written_ms / 1000,
                    {
                        prefix: each.value["sequence"],
                        **{seen["prefix"]: seen["sequence"] for seen in each.value["seen"]},
                    },
                )
                for each in read_all(self._ground.bootstrap, decode, [f"{prefix}.frontiers"])
            ]
            for prefix in prefixes
        }
        times = []
        for number, (name, sent) in ended.items():
            branch = self._prefixes[name]
            spoken = (
                next(at for at, known in written[prefix] if known.get(branch, 0) >= places[branch][number])
                for prefix in prefixes
            )
            times.append(max(spoken) - sent)
        return times

    def _folder(self) -> Path:
        return self._ground.folder / f"lake-{time.monotonic_ns()}"


def measure_rows(ground: Ground, lake: Lake, databases: Databases, prefixes: dict[str, str], rows: int) -> object:
    databases.fill(rows)
    consumer = Committed(ground.bootstrap)
    topics = [f"{prefixes[name]}.public.part" for name in SHARDS]
    wait_until("all is in Kafka", lambda: consumer.count(topics) >= len(SHARDS) * 2 * rows, 600, pause_s=1)
    consumer.close()
    figures: dict[str, list[int]] = {"eight_tables": [], "one_table": []}
    lake.read_backlog(SHARDED, rows)
    for what in ("eight_tables", "one_table", "one_table", "eight_tables"):
        figures[what].append(round(lake.read_backlog(SHARDED if what == "one_table" else NO_SHARDING, rows)))
        print(f"{what}: {figures[what][-1]} changes a second", flush=True)
    return figures


def measure_latency(lake: Lake, seconds: float) -> object:
    for names in (SHARDS, SHARDS, WHOLE) * (WARMS // 2):
        lake.follow_transfers(names, seconds, max(RATES))
    figures: dict[str, list[dict[str, object]]] = defaultdict(list)
    for _ in range(2):
        for rate in RATES:
            for what, names in (("shards", SHARDS), ("one_database", WHOLE)):
                figures[f"{what}, {rate} a second"].append(lake.follow_transfers(names, seconds, rate))
    return figures


def main(parts: str = "latency,rows", seconds: str = "40", rows: str = "50_000") -> None:
    figures: dict[str, object] = {}
    with ExitStack() as ending:
        ground = ending.enter_context(Ground())
        databases = Databases(ground)
        shards = ending.enter_context(Connectors(ground, databases.dsns, "group", SHARDS))
        whole = ending.enter_context(Connectors(ground, databases.dsns, "none", WHOLE))
        prefixes = {**shards.prefixes, **whole.prefixes}
        spark = session.open_session(ground.folder / "lake", java_home=str(java.spark_java_home()))
        ending.callback(spark.stop)
        lake = Lake(ground, databases, prefixes, spark)
        if "latency" in parts:
            figures["latency"] = measure_latency(lake, float(seconds))
        if "rows" in parts:
            figures["rows"] = measure_rows(ground, lake, databases, prefixes, int(rows))
    print(json.dumps(figures))


if __name__ == "__main__":
    main(*sys.argv[1:])
