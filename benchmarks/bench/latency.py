"""From COMMIT, and from COMMIT PREPARED, to what a read_committed consumer sees: Twofold and
Debezium side by side, the same transactions.

    python -m bench.latency [--count 1000] [--rates 50,1000] [--in-doubt 0.1]
                            [--systems twofold,debezium-json] [--loading ROWS] [--uncompiled]
                            [--trace]

The connectors take turns, each alone with the servers, since on one machine each would wait for the
other's use of the cores; one that does not run has no process but Connect's idle worker. A consumer
notes when a row's key arrives. The latency counts from the moment the outcome was *sent*: it holds
PostgreSQL's own flush, which is the same for both. Debezium is tuned for latency here: it asks its
queue every 5 ms and its producer does not linger. Prepared transactions stay in doubt long enough
to be open in Kafka before their outcome. With --loading another table of so many rows is loaded
meanwhile, as fast as it goes; that it was over before the live rows were is an error.

With --trace Twofold is measured alone, with a clock at its edges (`bench.traced`): the table says
where the time of one transaction in a hundred goes, leg by leg, and the medians are drawn. 20,000
transactions give 200 traces.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import psycopg
from confluent_kafka import TopicPartition

from bench import report, trace, writers
from bench.cases import CASES
from bench.ground import Committed, Ground, wait_until
from bench.meter import cpu_seconds
from bench.systems import Debezium, Run, System, TracedTwofold, Twofold, refuse_uncompiled

_LIVELY = {"poll.interval.ms": "5", "producer.override.linger.ms": "0"}
_ARRIVES_S = 120
_OUTCOMES = {"plain": "COMMIT", "prepared": "COMMIT PREPARED"}


class Watcher:
    """Notes when each key becomes visible in a run's table topic."""

    def __init__(self, bootstrap: str, run: Run, key_of: Callable[[bytes], int]) -> None:
        self._consumer = Committed(bootstrap)
        self._key_of = key_of
        self.seen: dict[int, float] = {}
        self.repeated = 0
        (topic,) = run.topics
        self._partitions: list[TopicPartition] = self._consumer.partitions(topic)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name=f"watch {topic}")

    def start(self) -> None:
        self._consumer.consumer.assign(self._partitions)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        self._consumer.close()

    def wait_for(self, done: Iterable[writers.Committed]) -> None:
        wait_until("all rows are visible", lambda: all(one.key in self.seen for one in done), _ARRIVES_S)

    def _watch(self) -> None:
        while not self._stop.is_set():
            message = self._consumer.consumer.poll(0.1)
            if message is not None and message.error() is None:
                raw = message.key()
                assert isinstance(raw, bytes), "every row has a key"
                key = self._key_of(raw)
                self.repeated += key in self.seen
                self.seen.setdefault(key, time.monotonic())


def json_key(raw: bytes) -> int:
    return int(json.loads(raw)["id"])


def avro_key(raw: bytes) -> int:
    """A record of one long behind the frame: zigzag, seven bits a byte."""
    value = sum((byte & 0x7F) << (7 * place) for place, byte in enumerate(raw[5:]))
    return (value >> 1) ^ -(value & 1)


def percentiles(latencies: list[float]) -> dict[str, float]:
    latencies.sort()
    places = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    return {
        name: round(latencies[min(int(len(latencies) * p), len(latencies) - 1)] * 1000, 1) for name, p in places.items()
    }


def main() -> None:
    wanted = arguments()
    refuse_uncompiled(wanted.systems, wanted.uncompiled)
    with Ground(wanted.postgres) as ground:
        dsn = ground.database("latency")
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("CREATE TABLE live (id bigint PRIMARY KEY, note text, at timestamptz)")
            connection.execute("CREATE PUBLICATION bench FOR TABLE live")
        if wanted.loading:
            first_load = next(case for case in CASES if case.first_load)
            first_load.prepare(dsn, wanted.loading)
            with psycopg.connect(dsn, autocommit=True) as connection:
                connection.execute(f"ALTER PUBLICATION bench ADD TABLE {first_load.tables[0]}".encode())
        if wanted.trace:
            print(measure_legs(ground, dsn, wanted))
        else:
            print(measure_all(ground, dsn, wanted))


def measure_all(ground: Ground, dsn: str, wanted: argparse.Namespace) -> Path:
    """Measure each system with each load, and return the file of the results."""
    systems: list[tuple[System, Callable[[bytes], int]]] = [
        (Twofold(ground, backfill=bool(wanted.loading)), avro_key),
        (Debezium(ground, "json", _LIVELY), json_key),
    ]
    results = [
        measured(ground, dsn, system, key_of, kind, rate, wanted)
        for rate in wanted.rates
        for kind in _OUTCOMES
        for system, key_of in systems
        if system.name in wanted.systems
    ]
    return report.write("latency", {"loading": wanted.loading, "latency_ms": results})


def measure_legs(ground: Ground, dsn: str, wanted: argparse.Namespace) -> Path:
    """Trace Twofold with each load; write figures, stamps, and the picture with its source."""
    import diagrams  # noqa: PLC0415  (of deploy/, which other benchmarks that import this module do without)

    loads: list[trace.Traced] = []
    stamps: dict[str, trace.Trace] = {}
    for rate in wanted.rates:
        for kind, outcome in _OUTCOMES.items():
            system = TracedTwofold(ground, backfill=bool(wanted.loading))
            seen = watch_load(ground, dsn, system, avro_key, kind, rate, wanted)
            ways = [
                trace.Way(each.xid, round(each.asked * 1e9), round(seen.at[each.key] * 1e9)) for each in seen.committed
            ]
            stamps[seen.run.slot] = trace.Trace.read(system.trace(seen.run))
            loads.append(trace.summarize(f"{outcome} {rate:g}/s", stamps[seen.run.slot], ways))
            print(trace.table(loads[-1]), f"cores used: {seen.cores}", sep="\n", end="\n\n", flush=True)
    place = report.write("trace", {"loading": wanted.loading, "loads": [asdict(load) for load in loads]})
    for name, each in stamps.items():
        each.write(place.with_suffix(f".{name}.csv"))
    source = place.with_suffix(".csv")
    source.write_text(trace.picture(loads))
    source.with_suffix(".svg").write_text(diagrams.draw(source))
    return source.with_suffix(".svg")


def _visible(ground: Ground, topic: str) -> int:
    consumer = Committed(ground.bootstrap)
    try:
        return sum(consumer.consumer.get_watermark_offsets(p, timeout=10)[1] for p in consumer.partitions(topic))
    finally:
        consumer.close()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.latency")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--rates", default=[50.0, 1000.0], type=lambda text: [float(rate) for rate in text.split(",")])
    parser.add_argument("--in-doubt", type=float, default=0.1)
    parser.add_argument("--loading", type=int, default=0, metavar="ROWS")
    parser.add_argument("--systems", default=("twofold", "debezium-json"), type=lambda text: tuple(text.split(",")))
    parser.add_argument("--uncompiled", action="store_true", help="compare a row path that is not compiled")
    parser.add_argument("--trace", action="store_true", help="where the time goes in Twofold, leg by leg")
    parser.add_argument("--postgres", help="major version; this machine's own if not given")
    return parser.parse_args()


@dataclass(frozen=True, slots=True)
class Seen:
    """A load that was written, and when its rows were visible."""

    run: Run
    committed: list[writers.Committed]
    at: dict[int, float]
    """By the row's key."""
    repeated: int
    loaded: int
    """The rows of the other table that were visible then."""
    cores: dict[str, float]
    """How many cores each process used meanwhile."""


def watch_load(
    ground: Ground,
    dsn: str,
    system: System,
    key_of: Callable[[bytes], int],
    kind: str,
    rate: float,
    wanted: argparse.Namespace,
) -> Seen:
    """One load by a connector of its own. One before it warms and is not told."""
    run = Run(f"{kind}_{rate:g}_{system.name.replace('-', '_')}", dsn, ("live",), "bench")
    ground.make_topics(run.topics)
    system.reserve(run)
    with ExitStack() as opened:
        system.start(run, "")
        opened.callback(system.stop, run)
        run.wait_for_walsender()
        watcher = Watcher(ground.bootstrap, run, key_of)
        watcher.start()
        opened.callback(watcher.stop)
        for _ in ("warms", "counts"):
            begun, used = time.monotonic(), _cpu_seconds(ground, system, run)
            with psycopg.connect(dsn) as connection:
                row = connection.execute("SELECT coalesce(max(id), 0) FROM live").fetchone()
            assert row is not None
            in_doubt_s = wanted.in_doubt if kind == "prepared" else 0.0
            done = writers.Load(dsn, row[0] + 1, wanted.count, rate, in_doubt_s=in_doubt_s).run()
            watcher.wait_for(done)
            took_s = time.monotonic() - begun
            cores = {
                name: round((seconds - used[name]) / took_s, 2)
                for name, seconds in _cpu_seconds(ground, system, run).items()
            }
        loaded = _visible(ground, f"{run.slot}.public.orders") if wanted.loading else 0
    if wanted.loading and loaded >= wanted.loading:
        raise RuntimeError("the load was over before the live rows were: ask for more rows or a lower --count")
    return Seen(run, done, watcher.seen, watcher.repeated, loaded, cores)


def _cpu_seconds(ground: Ground, system: System, run: Run) -> dict[str, float]:
    walsender = run.walsender()
    assert walsender is not None, "the slot is served until the system is stopped"
    pids = {"connector": system.pid(), "broker": ground.broker_pid, "walsender": walsender, "benchmark": os.getpid()}
    return {name: cpu_seconds(pid) for name, pid in pids.items()}


def measured(
    ground: Ground,
    dsn: str,
    system: System,
    key_of: Callable[[bytes], int],
    kind: str,
    rate: float,
    wanted: argparse.Namespace,
) -> dict[str, object]:
    seen = watch_load(ground, dsn, system, key_of, kind, rate, wanted)
    figures = percentiles([seen.at[each.key] - each.asked for each in seen.committed])
    result = {"kind": kind, "rate": rate, "count": wanted.count, "system": system.name, **figures}
    print("  ".join(f"{key} {value}" for key, value in result.items()), flush=True)
    return {**result, "loaded_meanwhile": seen.loaded, "repeated": seen.repeated, "cores": seen.cores}


if __name__ == "__main__":
    main()
