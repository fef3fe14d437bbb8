"""`make limits`: what large or unlucky installations bring, each on a stack of its own.

    xa        a backlog of 20,000 prepared transactions with gids of 199 characters
    in_doubt  10,000 transactions in doubt while the connector may have 256 files open
    rows      one transaction of 20 million rows
    backlog   a backlog of 5 million rows, and 1,000 transactions a second meanwhile
    beside    a transaction of 500,000 rows beside 200 small ones a second: how long these wait
    value     a row with a value of 300 million bytes
    steady    500 transactions a second, with a mirror beside

At the end of each a reader of its own compares what is visible with the table. A line of JSON has
the figures.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise

import psycopg
from bench.ground import Committed, Ground, wait_until
from bench.measured_run import MeasuredRun, command, configure, family, look
from confluent_kafka import KafkaError, KafkaException

from twofold_avro import wire

NAME = "limits"
TOPIC = f"{NAME}.public.account"
PATIENCE_S = 900.0
Figures = dict[str, float | str]


@dataclass(frozen=True, slots=True)
class Case:
    """One stack with one table, which the connector publishes."""

    ground: Ground
    dsn: str
    ending: ExitStack
    more: str

    def init(self) -> None:
        file = configure(self.ground, NAME, self.dsn, more=self.more)
        subprocess.run(command(file, "init"), check=True, stdout=subprocess.DEVNULL)

    def start(self, *, files: int | None = None) -> MeasuredRun:
        spool = self.ground.folder / "spool"
        log = self.ground.folder / f"run-{time.monotonic_ns()}.log"
        run = MeasuredRun(self.ground.folder / f"{NAME}.toml", log, files=files, spool=spool)
        self.ending.callback(run.kill)
        return run

    def connect(self) -> psycopg.Connection[tuple[object, ...]]:
        connection = psycopg.connect(self.dsn, autocommit=True)
        connection.execute("SET synchronous_commit = off")
        self.ending.callback(connection.close)
        return connection


@contextmanager
def case(
    *, more: str = "", postgres: dict[str, str] | None = None, kafka: dict[str, str] | None = None
) -> Iterator[Case]:
    with ExitStack() as ending:
        ground = ending.enter_context(Ground(settings=postgres, kafka=kafka))
        dsn = ground.database(NAME)
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("CREATE TABLE account (id bigint PRIMARY KEY, balance int, note text)")
        ending.callback(shutil.rmtree, ground.folder / "spool", ignore_errors=True)
        here = Case(ground, dsn, ending, more)
        here.init()
        yield here


class Visible:
    """The keys of the records that a read_committed consumer sees, each counted."""

    def __init__(self, here: Case, most: int) -> None:
        self._committed = Committed(here.ground.bootstrap)
        self.times = bytearray(most + 1)
        self.rows = 0
        places = self._committed.partitions(TOPIC)
        assert places, f"{TOPIC} is not there"
        self._committed.consumer.assign(places)
        here.ending.callback(self._committed.close)

    def read(self, wait_s: float = 0.2) -> list[int]:
        """Read on; return the keys of the new records."""
        new = []
        for message in self._committed.consumer.consume(10_000, wait_s):
            if (error := message.error()) is None:
                new.append(_key(message.key()))
            elif error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
        for key in new:
            self.times[key] += 1
        self.rows += len(new)
        return new

    def await_rows(self, rows: int, check: Callable[[], object]) -> None:
        """Read until so many are visible."""
        deadline = time.monotonic() + PATIENCE_S
        while self.rows < rows:
            check()
            self.read()
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.rows} of {rows} rows are visible after {PATIENCE_S:.0f} s")

    def assert_equal(self, here: Case) -> None:
        """Read to the end, and compare with the table: each row once, and no other."""
        quiet = 0
        while quiet < 5:
            quiet = 0 if self.read() else quiet + 1
        expected = bytearray(len(self.times))
        with psycopg.connect(here.dsn) as connection, connection.cursor("ids") as cursor:
            cursor.itersize = 100_000
            for (key,) in cursor.execute("SELECT id FROM account"):
                expected[key] += 1
        if self.times != expected:
            wrong = [n for n, (found, there) in enumerate(zip(self.times, expected, strict=True)) if found != there]
            raise SystemExit(f"{len(wrong)} keys differ, the first are {wrong[:10]}")


def _key(data: bytes | str | None) -> int:
    assert isinstance(data, bytes)
    value = shift = 0
    for byte in data[wire.HEADER_BYTES :]:
        value |= (byte & 0x7F) << shift
        shift += 7
    return value >> 1


def xa(count: int = 20_000) -> Figures:
    with case(postgres={"max_prepared_transactions": "64"}) as here:
        writer = here.connect()
        for first in range(0, count, 500):
            with writer.pipeline() as pipeline:
                for n in range(first, min(first + 500, count)):
                    gid = f"{n:0199}"
                    for statement in (
                        "BEGIN",
                        f"INSERT INTO account VALUES ({n}, 1, 'x')",
                        f"PREPARE TRANSACTION '{gid}'",
                    ):
                        writer.execute(statement.encode())
                    pipeline.sync()
                    writer.execute(f"COMMIT PREPARED '{gid}'".encode())
                    pipeline.sync()
        run, began = here.start(), time.monotonic()
        visible = Visible(here, count)
        visible.await_rows(count, run.check)
        took = time.monotonic() - began
        visible.assert_equal(here)
        return {"transactions": count, "visible_s": took, "recoveries": run.recoveries(), "memory_mb": run.stop() / 1e6}


def in_doubt(count: int = 10_000, files: int = 256) -> Figures:
    with case(postgres={"max_prepared_transactions": str(count + 100)}, more="memory = 16777216\n") as here:
        run = here.start(files=files)
        run.seconds_until_streaming()
        writer, began = here.connect(), time.monotonic()
        for first in range(0, count, 500):
            with writer.pipeline() as pipeline:
                for n in range(first, first + 500):
                    for statement in (
                        "BEGIN",
                        f"INSERT INTO account SELECT {n} * 10 + i, 1, repeat('n', 1000) FROM generate_series(0, 9) i",
                        f"PREPARE TRANSACTION 'g{n}'",
                    ):
                        writer.execute(statement.encode())
                    pipeline.sync()
        at = writer.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
        assert at is not None
        wait_until(
            "all are read",
            lambda: run.check() and _sent(here, str(at[0])),
            PATIENCE_S,
        )
        prepared_s = time.monotonic() - began
        time.sleep(5)  # so that all of them are taken from the socket, and the most files are open
        doubted = run.look()
        began = time.monotonic()
        for first in range(0, count, 500):
            with writer.pipeline() as pipeline:
                for n in range(first, first + 500):
                    writer.execute(f"{'COMMIT' if n % 2 else 'ROLLBACK'} PREPARED 'g{n}'".encode())
                    pipeline.sync()
        visible = Visible(here, count * 10)
        visible.await_rows(count // 2 * 10, run.check)
        took = time.monotonic() - began
        visible.assert_equal(here)
        return {
            "in_doubt": count,
            "prepared_s": prepared_s,
            "ended_s": took,
            "files": max(doubted["files"], *(each["files"] for each in run.seen)),
            "spool_mb": run.spool_bytes / 1e6,
            "recoveries": run.recoveries(),
            "memory_mb": run.stop() / 1e6,
        }


def _sent(here: Case, lsn: str) -> bool:
    with psycopg.connect(here.dsn) as connection:
        query = "SELECT sent_lsn >= %s::pg_lsn FROM pg_stat_replication WHERE application_name = %s"
        row = connection.execute(query, (lsn, NAME)).fetchone()
    return bool(row and row[0])


def _confirmed_lag(here: Case) -> int:
    with psycopg.connect(here.dsn) as connection:
        query = "SELECT pg_current_wal_lsn() - confirmed_flush_lsn FROM pg_replication_slots"
        row = connection.execute(query).fetchone()
    assert row is not None
    return int(row[0])


def rows(count: int = 20_000_000) -> Figures:
    with case() as here:
        run = here.start()
        run.seconds_until_streaming()
        writer = here.connect()
        began = time.monotonic()
        writer.execute("BEGIN")
        writer.execute(
            f"INSERT INTO account SELECT i, 1, 'a note of some length ' || i FROM generate_series(1, {count}) i".encode()
        )
        written_s = time.monotonic() - began
        began = time.monotonic()
        writer.execute("COMMIT")
        committed = Committed(here.ground.bootstrap)
        here.ending.callback(committed.close)
        wait_until("it is visible", lambda: run.check() and committed.has_any(TOPIC), PATIENCE_S)
        took = time.monotonic() - began
        figures: Figures = {
            "rows": count,
            "written_s": written_s,
            "visible_s": took,
            "spool_mb": run.spool_bytes / 1e6,
            "recoveries": run.recoveries(),
            "memory_mb": run.look()["peak"] / 1e6,
        }
        visible = Visible(here, count)
        visible.await_rows(count, run.check)
        visible.assert_equal(here)
        run.stop()
        return figures


class Live:
    """Small transactions at a rate, on a thread of its own: of one row each, with keys from `first`
    on.
    """

    def __init__(self, here: Case, first: int, a_second: int) -> None:
        self.committed_at: dict[int, float] = {}
        self.behind_s = 0.0
        self._here, self._first, self._a_second = here, first, a_second
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def _write(self) -> None:
        connection = self._here.connect()
        a_turn = max(1, self._a_second // 50)
        key, due = self._first, time.monotonic()
        while not self._stop.is_set():
            with connection.pipeline() as pipeline:
                for _ in range(a_turn):
                    connection.execute("INSERT INTO account VALUES (%s, 1, 'live')", (key,))
                    pipeline.sync()
                    key += 1
            now = time.monotonic()
            self.committed_at.update(dict.fromkeys(range(key - a_turn, key), now))
            due += a_turn / self._a_second
            self.behind_s = max(self.behind_s, now - due)
            time.sleep(max(0.0, due - time.monotonic()))

    def stop(self) -> int:
        """Return the number of transactions."""
        self._stop.set()
        self._thread.join()
        return len(self.committed_at)


def backlog(count: int = 5_000_000, a_second: int = 1_000) -> Figures:
    with case() as here:
        writer = here.connect()
        for first in range(0, count, 50_000):
            with writer.pipeline() as pipeline:
                for begin in range(first + 1, first + 50_001, 1000):
                    writer.execute(
                        f"INSERT INTO account SELECT i, 1, 'a note of some length ' || i FROM generate_series({begin}, {begin + 999}) i".encode()
                    )
                    pipeline.sync()
        live = Live(here, count + 1, a_second)
        run, began = here.start(), time.monotonic()
        curve: list[str] = []
        caught_up_s = 0.0
        while not caught_up_s:
            run.check()
            lag, now = _confirmed_lag(here), time.monotonic() - began
            if now >= 5 * len(curve):
                curve.append(f"{lag / 1e6:.0f}")
            caught_up_s = now if lag < 1_000_000 else 0.0
            if now > PATIENCE_S:
                raise TimeoutError(f"a lag of {lag} bytes after {now:.0f} s")
            time.sleep(0.2)
        time.sleep(10)
        lag = _confirmed_lag(here)
        written = live.stop()
        visible = Visible(here, count + written + 1000)
        visible.await_rows(count + written, run.check)
        visible.assert_equal(here)
        return {
            "rows": count,
            "caught_up_s": caught_up_s,
            "live": written,
            "live_behind_s": live.behind_s,
            "lag_mb_each_5_s": " ".join(curve),
            "lag_10_s_later_kb": lag / 1e3,
            "recoveries": run.recoveries(),
            "memory_mb": run.stop() / 1e6,
        }


def beside(count: int = 500_000, a_second: int = 200) -> Figures:
    with case() as here:
        run = here.start()
        run.seconds_until_streaming()
        visible, seen_at = Visible(here, count + 1_000_000), dict[int, float]()
        reading = threading.Event()

        def read() -> None:
            while not reading.is_set():
                new = visible.read(0.05)
                seen_at.update(dict.fromkeys(new, time.monotonic()))

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        live = Live(here, count + 1, a_second)
        time.sleep(10)
        writer = here.connect()
        writer.execute("BEGIN")
        writer.execute(
            f"INSERT INTO account SELECT i, 1, 'a note of some length ' || i FROM generate_series(1, {count}) i".encode()
        )
        began = time.monotonic()
        writer.execute("COMMIT")
        large_s = 0.0
        while not large_s:
            run.check()
            large_s = time.monotonic() - began if count in seen_at else 0.0
            time.sleep(0.01)
        time.sleep(10)
        written = live.stop()
        wait_until("all are visible", lambda: run.check() and visible.rows >= count + written, PATIENCE_S)
        reading.set()
        reader.join()
        visible.assert_equal(here)
        before = sorted(seen_at[k] - at for k, at in live.committed_at.items() if at < began - 2)
        waits = sorted(seen_at[k] - at for k, at in live.committed_at.items() if at >= began - 2)
        return {
            "rows": count,
            "large_s": large_s,
            "live_p99_before_s": before[int(len(before) * 0.99)],
            "live_median_s": statistics.median(waits),
            "live_longest_s": waits[-1],
            "recoveries": run.recoveries(),
            "memory_mb": run.stop() / 1e6,
        }


def value(size: int = 300_000_000) -> Figures:
    limit = str((size >> 20) + 3 << 20)
    options = f'options = {{ "message.max.bytes" = {limit} }}\n'
    kafka = {"socket.request.max.bytes": str(int(limit) + (2 << 20)), "message.max.bytes": limit}
    with case(kafka=kafka) as here:
        file = here.ground.folder / f"{NAME}.toml"
        file.write_text(file.read_text().replace("replication = 1\n", f"replication = 1\n{options}"))
        run = here.start()
        run.seconds_until_streaming()
        writer, began = here.connect(), time.monotonic()
        writer.execute(
            f"INSERT INTO account SELECT 1, 1, string_agg(md5(i::text), '') FROM generate_series(1, {size // 32}) i".encode()
        )
        written_s, began = time.monotonic() - began, time.monotonic()
        committed = Committed(here.ground.bootstrap)
        here.ending.callback(committed.close)
        wait_until("it is visible", lambda: run.check() and committed.has_any(TOPIC), PATIENCE_S)
        return {
            "bytes": size,
            "written_s": written_s,
            "visible_s": time.monotonic() - began,
            "recoveries": run.recoveries(),
            "memory_mb": run.stop() / 1e6,
        }


def steady(minutes: float = 10, a_second: int = 500) -> Figures:
    """Memory, threads and files: the median of each fifth of the time."""
    with case() as here:
        run = here.start()
        run.seconds_until_streaming()
        servers = ["--bootstrap", here.ground.bootstrap, "--registry", here.ground.stack.registry.url]
        warehouse = ["--prefix", NAME, "--warehouse", str(here.ground.folder / "lake")]
        log = (here.ground.folder / "mirror.log").open("w")
        mirror = subprocess.Popen(
            [sys.executable, "-m", "twofold_spark", "mirror", *servers, *warehouse, "--trigger", "interval=1s"],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        here.ending.callback(mirror.kill)
        live, seen = Live(here, 1, a_second), list[tuple[int, int, int]]()
        until = time.monotonic() + minutes * 60
        while time.monotonic() < until:
            run.check()
            if mirror.poll() is not None:
                raise SystemExit(f"the mirror has ended: see {log.name}")
            seen.append(_family(mirror.pid))
            time.sleep(2)
        written = live.stop()
        visible = Visible(here, written + 1000)
        visible.await_rows(written, run.check)
        visible.assert_equal(here)
        verify = [sys.executable, "-m", "twofold_spark", "verify", "--source", here.dsn, *warehouse]

        def is_equal() -> bool:
            return subprocess.run(verify, stdout=log, stderr=subprocess.STDOUT, check=False).returncode == 0

        wait_until("the mirror is equal", is_equal, 180)
        connector = [(each["memory"], each["threads"], each["files"]) for each in run.seen]
        return {
            "transactions": written,
            "live_behind_s": live.behind_s,
            **_fifths("connector", connector),
            **_fifths("mirror", seen),
            "recoveries": run.recoveries(),
        }


def _fifths(of: str, seen: list[tuple[int, int, int]]) -> Figures:
    edges = [len(seen) * n // 5 for n in range(6)]
    parts = [seen[first:last] for first, last in pairwise(edges)]
    names = ("memory_mb", "threads", "files")
    return {
        f"{of}_{name}": " ".join(
            f"{statistics.median(each[n] for each in part) / (1 if n else 1e6):.0f}" for part in parts
        )
        for n, name in enumerate(names)
    }


def _family(pid: int) -> tuple[int, int, int]:
    """Memory, threads and files of the process with all below it."""
    memory = threads = files = 0
    for each in family(pid):
        try:
            found = look(each)
        except (OSError, KeyError):  # it has ended
            continue
        memory, threads, files = memory + found["memory"], threads + found["threads"], files + found["files"]
    return memory, threads, files


CASES: dict[str, Callable[..., Figures]] = {
    "xa": xa,
    "in_doubt": in_doubt,
    "rows": rows,
    "backlog": backlog,
    "beside": beside,
    "value": value,
    "steady": steady,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks/limits.py", description=__doc__)
    parser.add_argument("cases", nargs="?", default=",".join(CASES), help="cases, by comma; NAME=N has another size")
    for chosen in parser.parse_args().cases.split(","):
        name, _, size = chosen.partition("=")
        figures = CASES[name](int(size)) if size else CASES[name]()
        figures = {k: round(v, 1) if isinstance(v, float) else v for k, v in figures.items()}
        print(json.dumps({"case": name, **figures}), flush=True)


if __name__ == "__main__":
    main()
