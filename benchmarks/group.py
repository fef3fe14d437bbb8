"""What a source group costs: the frontiers of its connectors, and what its mirror adds to the time
from a commit to the cut.

    make bench-group [ARGS='[PARTS [SECONDS]]']

PARTS are `cost` and `latency` (default: both), SECONDS (40) the length of one load.

Three databases. The first takes plain transactions at a fixed rate; the first two take part in
transfers of two branches each, so that a frontier is due all the time; the third is idle.

- cost: 1,000 plain transactions a second. Two connectors of each of the first two databases run
  side by side, one of a group and one of none, in three rounds. Their CPU time is compared, as a
  whole and by kind of thread: the one that asks, and the threads of Kafka's clients.
- latency: ten transfers a second, once the mirror has shown what was there before. From COMMIT
  PREPARED of the branch that is ended last to the cut, with a trigger of a second: by the mirror of
  the group, and by a mirror of that source alone.

The last line is one JSON object.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import psycopg
from bench import writers
from bench.ground import Ground, wait_until
from bench.latency import percentiles
from pyspark.sql import SparkSession

from chaos.reading import avro, read_all
from twofold_common import java
from twofold_spark import session
from twofold_spark.catalog_choice import WAREHOUSE_CATALOG
from twofold_spark.mirror.batching import MirrorSettings
from twofold_spark.mirror.mirror_job import Mirror
from twofold_spark.session import member_catalog
from twofold_spark.sinks.iceberg_place import IcebergPlace
from twofold_spark.sinks.sharding import NO_SHARDING, Sharding
from twofold_spark.sources.kafka_client import Kafka
from twofold_spark.sources.registry import Registry
from twofold_spark.streaming import StreamingJob, Trigger

DATABASES = ("east", "west", "north")
PLAIN_A_SECOND = 1000
TRANSFERS_A_SECOND = 10
ROUNDS = 3
WARMS = 4
"""So many loads: in its first minutes the JVM's compiler takes half of the CPU."""
NAMED_THREADS = """
import ctypes, sys, threading
libc, run = ctypes.CDLL(None), threading.Thread.run
def named(self):
    libc.prctl(15, self.name.encode()[:15], 0, 0, 0)
    run(self)
threading.Thread.run = named
from twofold.cli import main
main()
"""
"""Runs the command with threads that the kernel knows by name."""


class Bank:
    """The databases, and transfers between the first two."""

    def __init__(self, ground: Ground) -> None:
        self.dsns = {name: ground.database(name) for name in DATABASES}
        for dsn in self.dsns.values():
            with psycopg.connect(dsn, autocommit=True) as connection:
                connection.execute("CREATE TABLE live (id bigint PRIMARY KEY, note text, at timestamptz)")
                connection.execute("CREATE TABLE part (id bigint PRIMARY KEY, amount bigint)")
                connection.execute("CREATE PUBLICATION bench FOR TABLE live, part")
        self._next = 1

    def transfer_for(self, seconds: float) -> dict[int, tuple[str, float]]:
        """Transfer at the rate; return which branch of each was ended last, and when that was
        sent.
        """
        ended, rng = {}, random.Random(5)
        with ExitStack() as opened:
            branches = {name: opened.enter_context(psycopg.connect(self.dsns[name], autocommit=True)) for name in DATABASES[:2]}  # fmt: skip
            begun = time.monotonic()
            while time.monotonic() < begun + seconds:
                number, self._next = self._next, self._next + 1
                gids = {name: f"1_{number}_{name}" for name in branches}
                for name, connection in branches.items():
                    row = f"INSERT INTO part VALUES ({number}, {1 if name == 'east' else -1})"
                    connection.execute(f"BEGIN; {row}; PREPARE TRANSACTION '{gids[name]}'".encode())
                for name in rng.sample(sorted(branches), 2):
                    ended[number] = name, time.time()
                    branches[name].execute(f"COMMIT PREPARED '{gids[name]}'".encode())
                writers.sleep_until(begun + len(ended) / TRANSFERS_A_SECOND)
        return ended

    def write_for(self, seconds: float) -> None:
        """Plain transactions of the first database."""
        with psycopg.connect(self.dsns["east"]) as connection:
            row = connection.execute("SELECT coalesce(max(id), 0) FROM live").fetchone()
        assert row is not None
        writers.Load(self.dsns["east"], row[0] + 1, int(seconds * PLAIN_A_SECOND), PLAIN_A_SECOND).run()


class Connectors:
    """One of each named database, of a group or of none."""

    def __init__(self, ground: Ground, dsns: Mapping[str, str], kind: str, databases: Iterable[str]) -> None:
        self._ground = ground
        self.prefixes = {name: f"{kind}_{name}" for name in databases}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        registry = ground.stack.registry
        group = f'[group]\nname = "{kind}"\nmembers = {json.dumps(list(self.prefixes.values()))}\n'
        for name, prefix in self.prefixes.items():
            self._file(prefix).write_text(
                f'name = "{prefix}"\n'
                f'[source]\ndsn = "{dsns[name]}"\npublication = "bench"\n'
                f'[kafka]\nbootstrap = "{ground.bootstrap}"\nreplication = 1\nmin_insync_replicas = 1\n'
                f'[registry]\nurl = "{registry.url}"\n[spool]\nfolder = "{ground.folder / "spool"}"\n'
                f"""[prepared]\ngid_patterns = ['1_(?P<global>[0-9]+)_(?P<branch>[a-z]+)']\n"""
                '[status]\nlisten = "none"\n' + (group if kind == "group" else "")
            )
            subprocess.run(self._command(prefix, "init"), check=True, stdout=subprocess.DEVNULL)

    def __enter__(self) -> Connectors:
        for prefix in self.prefixes.values():
            with self._log(prefix).open("wb") as log:
                self._processes[prefix] = subprocess.Popen(self._command(prefix, "run"), stdout=log, stderr=log)
        for prefix in self.prefixes.values():
            wait_until(f"{prefix} runs", lambda p=prefix: b" recovered: " in self._log(p).read_bytes(), 120)  # type: ignore[misc]
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.send_signal(signal.SIGTERM)
        for process in self._processes.values():
            process.wait(60)

    def cpu(self, name: str) -> dict[str, float]:
        """CPU seconds so far, by kind of thread."""
        found: dict[str, float] = defaultdict(float)
        for thread in Path(f"/proc/{self._processes[self.prefixes[name]].pid}/task").iterdir():
            kind = (thread / "comm").read_text().strip()
            kind = "clients of Kafka" if kind.startswith("rdk:") else kind if kind == "frontiers" else "rest"
            found[kind] += int((thread / "schedstat").read_text().split()[0]) / 1e9
        return found

    def _file(self, prefix: str) -> Path:
        return self._ground.folder / f"{prefix}.toml"

    def _log(self, prefix: str) -> Path:
        return self._ground.folder / f"{prefix}.log"

    def _command(self, prefix: str, command: str) -> list[str]:
        return [sys.executable, "-c", NAMED_THREADS, "-c", str(self._file(prefix)), command]


def measure_cost(ground: Ground, bank: Bank, seconds: float) -> dict[str, object]:
    groups = {kind: Connectors(ground, bank.dsns, kind, DATABASES[:2]) for kind in ("group", "none")}
    rounds = []
    for number in range(ROUNDS):
        order = sorted(groups, reverse=bool(number % 2))
        with ExitStack() as opened, ThreadPoolExecutor() as pool:
            for kind in order:
                opened.enter_context(groups[kind])
            before = {kind: groups[kind].cpu("east") for kind in groups}
            written, transferred = pool.submit(bank.write_for, seconds), pool.submit(bank.transfer_for, seconds)
            written.result(), transferred.result()
            used = {kind: subtract(groups[kind].cpu("east"), before[kind]) for kind in groups}
        rounds.append(used)
        print(f"round {number + 1}, CPU s of the busy member: {json.dumps(used)}", flush=True)
    whole = {kind: [sum(used[kind].values()) for used in rounds] for kind in groups}
    asking = [used["group"]["frontiers"] for used in rounds]
    clients = [used["group"]["clients of Kafka"] - used["none"]["clients of Kafka"] for used in rounds]
    return {
        "cpu_s": {kind: round(median(each), 2) for kind, each in whole.items()},
        "more_as_a_whole_percent": [round((a / b - 1) * 100, 2) for a, b in zip(whole["group"], whole["none"], strict=True)],
        "asking_percent": [round(a / b * 100, 2) for a, b in zip(asking, whole["group"], strict=True)],
        "clients_percent": [round(a / b * 100, 2) for a, b in zip(clients, whole["group"], strict=True)],
    }  # fmt: skip


def subtract(now: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    return {kind: round(now[kind] - before.get(kind, 0.0), 4) for kind in now}


class Cuts:
    """When each cut was published, by the commit record that each member's part ends with."""

    def __init__(self) -> None:
        self.at: list[tuple[float, dict[str, int]]] = []

    def note(self, sequences: Mapping[str, int]) -> None:
        self.at.append((time.time(), dict(sequences)))

    def shown_at(self, prefix: str, sequence: int) -> float:
        return next(at for at, sequences in self.at if sequences.get(prefix, 0) >= sequence)

    def reached(self, prefix: str) -> int:
        return self.at[-1][1].get(prefix, 0) if self.at else 0


def measure_latency(ground: Ground, bank: Bank, seconds: float) -> dict[str, object]:
    figures: dict[str, object] = {}
    registry = ground.stack.registry
    with Connectors(ground, bank.dsns, "group", DATABASES) as connectors, ExitStack() as opened:
        spark = session.open_session(ground.folder / "lake", java_home=str(java.spark_java_home()))
        opened.callback(spark.stop)
        for what in ("warm", "group", "one source", "group", "one source"):
            length = seconds * WARMS if what == "warm" else seconds
            cuts = Cuts()
            wanted = list(connectors.prefixes.values())
            if what == "one source":
                wanted = wanted[:1]
            folder = ground.folder / f"lake-{time.monotonic_ns()}"
            job, close, _ = follow(spark, Kafka(ground.bootstrap), Registry(registry.url), wanted, folder, cuts)

            def load(wanted: list[str] = wanted, cuts: Cuts = cuts, length: float = length) -> dict[int, tuple[str, float]]:  # fmt: skip
                show(bank.transfer_for(1), wanted, cuts)  # a start reads the loads before
                ended = bank.transfer_for(length)
                show(bank.transfer_for(5), wanted, cuts)  # to look for their places takes processors
                return ended

            def show(ended: dict[int, tuple[str, float]], wanted: list[str], cuts: Cuts) -> None:
                last = {connectors.prefixes[name]: max(n for n, (by, _) in ended.items() if by == name) for name in ("east", "west")}  # fmt: skip

                def is_shown() -> bool:
                    places = find_places(ground.bootstrap, registry.url, last)
                    return all(cuts.reached(p) >= places[p].get(last[p], sys.maxsize) for p in last if p in wanted)

                wait_until("all is shown", is_shown, 120, pause_s=1)

            ended = run_beside(job, load)
            close()
            places = find_places(ground.bootstrap, registry.url, [p for p in wanted if not p.endswith("north")])
            times = [
                cuts.shown_at(prefix, places[prefix][number]) - sent
                for number, (name, sent) in ended.items()
                if (prefix := connectors.prefixes[name]) in places
            ]
            found = percentiles(times)
            print(f"{what}: {len(times)} transfers, {len(cuts.at)} cuts, ms {found}", flush=True)
            if what != "warm":
                figures.setdefault(what, []).append(found)  # type: ignore[attr-defined]
    return figures


def find_places(bootstrap: str, registry: str, prefixes: Iterable[str]) -> dict[str, dict[int, int]]:
    """The visible commit record of each transfer's branch, by prefix."""
    decode = avro(registry)
    places = {}
    for prefix in prefixes:
        topic, ends = f"{prefix}.public.part", defaultdict[int, list[tuple[int, int]]](list)
        rows = read_all(bootstrap, decode, [topic])
        for commit in read_all(bootstrap, decode, [f"{prefix}.commits"]):
            for each in commit.value["ranges"]:
                if each["topic"] == topic:
                    ends[each["partition"]].append((each["last"], commit.value["sequence"]))
        places[prefix] = {
            row.value["after"]["id"]: ends[row.partition][place][1]
            for row in rows
            if (place := bisect_left(ends[row.partition], (row.offset, 0))) < len(ends[row.partition])
        }
    return places


def follow(
    spark: SparkSession,
    kafka: Kafka,
    registry: Registry,
    prefixes: list[str],
    folder: Path,
    cuts: Cuts,
    *,
    sharding: Sharding = NO_SHARDING,
    trigger: str = "interval=1s",
    watch: Callable[[Mirror], None] = lambda _: None,
) -> tuple[StreamingJob, Callable[[], None], str]:
    """Start a mirror, which `watch` gets before; return its job, its end, and its catalog."""
    catalog = f"lake{time.monotonic_ns()}"
    for name, its in {catalog: "group", **{member_catalog(catalog, p): p for p in prefixes}}.items():
        (folder / its).mkdir(parents=True)
        for key, value in WAREHOUSE_CATALOG.settings(str(folder / its), name).items():
            spark.conf.set(key, value)

    place = IcebergPlace(catalog, of_group=len(prefixes) > 1, sharding=sharding)

    # As a job that runs on.
    mirror = Mirror(
        spark, kafka, registry, prefixes, place, MirrorSettings(maintain_at_once=False),
        report_cut=lambda cut: cuts.note({p: each.sequence for p, each in cut.members.items()}),
    )  # fmt: skip
    watch(mirror)
    job = StreamingJob("mirror", mirror, meanwhile=mirror.look_if_due)
    job.start(mirror.open_stream(), folder / "checkpoint", Trigger.parse(trigger))
    return job, mirror.close, catalog


def run_beside(job: StreamingJob, load: Callable[[], dict[int, tuple[str, float]]]) -> dict[int, tuple[str, float]]:
    """Run the job while a thread writes; the end of the thread ends the job."""
    ending = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(load)
        writing.add_done_callback(lambda _: ending.set())
        job.run(ending)
        return writing.result()


def main(parts: str = "cost,latency", seconds: str = "40") -> None:
    figures: dict[str, object] = {}
    with Ground() as ground:
        bank = Bank(ground)
        for part in parts.split(","):
            measure = {"cost": measure_cost, "latency": measure_latency}[part]
            figures[part] = measure(ground, bank, float(seconds))
    print(json.dumps(figures))


if __name__ == "__main__":
    main(*sys.argv[1:])
