"""The case of a first load: rows that were there before. Each system loads the same table into
Kafka for the first time; COPY to /dev/null is what the server can give.

The clock runs from the connector's start (of Debezium: from the call that makes it, in a worker
that is warm) until the last row is visible to a read_committed consumer; what passes before the
first row is visible is told apart.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psycopg

from bench.cases import Case
from bench.drain import Sample
from bench.ground import Committed, Ground
from bench.meter import Meter, cpu_seconds
from bench.systems import Debezium, Recvlogical, Run, System, Twofold

_LONGEST_S = 1800
_LOOK_S = 0.02
_QUIET_S = 1.0
"""Nothing more has become visible for so long: that was all."""


class Copy:
    """COPY in binary by psql to /dev/null."""

    name = "copy"
    counted = False
    opens_at_prepare = False

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def reserve(self, run: Run) -> None:
        pass

    def start(self, run: Run, upto: str) -> None:  # noqa: ARG002
        command = ["psql", "--quiet", "--no-psqlrc", f"--dbname={run.dsn}"]
        command += ["--command", f"COPY {run.tables[0]} TO STDOUT (FORMAT binary)"]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)

    def pid(self) -> int:
        assert self._process is not None, "it was started"
        return self._process.pid

    def done(self, run: Run) -> bool:  # noqa: ARG002
        assert self._process is not None, "it was started"
        if self._process.poll():
            raise RuntimeError(f"psql ended with {self._process.returncode}")
        return self._process.returncode == 0

    def stop(self, run: Run) -> None:
        pass


def bench(ground: Ground, case: Case, systems: Sequence[System], rows: int, rounds: range) -> list[Sample]:
    """Round 0 warms, as in the other cases."""
    dsn = ground.database("bench_initial")
    case.prepare(dsn, rows)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"CREATE PUBLICATION bench FOR TABLE {', '.join(case.tables)}".encode())
    loaders, samples = list(_loaders(ground, systems)), []
    for number in rounds:
        for system in (*loaders[number % len(loaders) :], *loaders[: number % len(loaders)]):
            run = Run(f"{case.letter}_{system.name.replace('-', '_')}_{number}", dsn, case.tables, "bench")
            sample = load(ground, system, run, rows)
            print(f"  {case.letter} round {number} {sample}", file=sys.stderr, flush=True)
            if number:
                samples.append(sample)
            if system.counted:
                ground.drop_topics(run.topics)
    ground.drop_database("bench_initial")
    return samples


def _loaders(ground: Ground, systems: Sequence[System]) -> Iterator[System]:
    """The same systems, told to load; of the source's own limit COPY."""
    for system in systems:
        match system:
            case Recvlogical():
                yield Copy()
            case Twofold():
                yield Twofold(ground)
            case Debezium():
                yield Debezium(ground, system.converter, {"snapshot.mode": "initial"})
            case _:
                yield system


@dataclass(slots=True)
class Visible:
    """How many records a read_committed consumer could read; commit markers count as well."""

    consumer: Committed
    topic: str
    records: int = 0
    first_at: float | None = None
    moved_at: float = 0.0

    def look(self) -> None:
        records = sum(
            self.consumer.consumer.get_watermark_offsets(partition, timeout=10)[1]
            for partition in self.consumer.partitions(self.topic)
        )
        if records != self.records:
            self.records, self.moved_at = records, time.monotonic()
            self.first_at = self.first_at or self.moved_at


def load(ground: Ground, system: System, run: Run, rows: int) -> Sample:
    """Once, and counted: another number of rows than the table has is an error."""
    consumer = Committed(ground.bootstrap)
    visible = Visible(consumer, run.topics[0])
    if system.counted:
        ground.make_topics(run.topics)
    system.reserve(run)
    server = Server(run.dsn)
    broker_begun, begun = cpu_seconds(ground.broker_pid), time.monotonic()
    system.start(run, "")
    own = Meter(system.pid())
    try:
        while not (visible.records >= rows and time.monotonic() - visible.moved_at > _QUIET_S):
            own.read()
            if not system.counted and system.done(run):
                visible.moved_at = visible.first_at = time.monotonic()
                break
            if system.counted:
                visible.look()
            if time.monotonic() - begun > _LONGEST_S:
                raise TimeoutError(f"{system.name} did not load {rows} rows within {_LONGEST_S} s")
            time.sleep(_LOOK_S)
        own.read()
        cpu_s, broker_cpu_s = server.cpu_s(), cpu_seconds(ground.broker_pid) - broker_begun
    finally:
        system.stop(run)
    try:
        if system.counted and (found := consumer.count(run.topics)) != rows:
            raise RuntimeError(f"{system.name} published {found} rows of {rows}: its figures mean nothing")
    finally:
        consumer.close()
    assert visible.first_at is not None, "something was visible"
    return Sample(
        system.name,
        rows,
        round(visible.moved_at - begun, 3),
        0.0,
        round(own.cpu_s, 2),
        round(broker_cpu_s, 2),
        round(cpu_s, 2),
        round(own.peak_mb, 1),
        ground.kafka_bytes(run.topics) if system.counted else 0,
        reconnected=False,
        first_s=round(visible.first_at - begun, 3),
    )


class Server:
    """What all processes of a PostgreSQL server have used since this was made, those that have
    ended included.
    """

    def __init__(self, dsn: str) -> None:
        with psycopg.connect(dsn) as connection:
            row = connection.execute("SELECT pg_read_file('postmaster.pid')").fetchone()
        assert row is not None, "one row was asked for"
        self._pid = int(str(row[0]).splitlines()[0])
        self._begun = self._used()

    def cpu_s(self) -> float:
        return self._used() - self._begun

    def _used(self) -> float:
        ticks = os.sysconf("SC_CLK_TCK")
        own = Path(f"/proc/{self._pid}")
        ended = sum(map(int, (own / "stat").read_text().rpartition(")")[2].split()[13:15])) / ticks
        children = (own / f"task/{self._pid}/children").read_text()
        return ended + sum(map(_used_by, children.split()))


def _used_by(pid: str) -> float:
    try:
        return cpu_seconds(int(pid))
    except (FileNotFoundError, ProcessLookupError):
        return 0.0  # it has just ended, a few hundredths of a second are not counted
