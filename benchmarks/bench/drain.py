"""One drain, measured: from the moment a walsender serves the slot until the last row of the
backlog is visible.

The walsender's start is the one moment that all systems share: what a connector does before it (its
own start) is told apart, as seconds of CPU.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import psycopg

from bench.events import compare
from bench.ground import Committed, Ground
from bench.meter import Meter, cpu_seconds
from bench.systems import Run, System

_LONGEST_S = 1800
_LOOK_S = 0.02


@dataclass(frozen=True, slots=True)
class Sample:
    """What one drain cost."""

    system: str
    rows: int
    seconds: float
    start_cpu_s: float
    connector_cpu_s: float
    broker_cpu_s: float
    walsender_cpu_s: float
    peak_mb: float
    kafka_bytes: int
    reconnected: bool
    """Another walsender served the end than the beginning: the connector recovered on the way, and
    the figures are not of one drain.
    """
    first_s: float = 0.0
    """Until something of the first table was visible: what a connector does before it comes to the
    backlog is in there, and in `seconds`.
    """

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.seconds

    def cpu_per_million(self, seconds: float) -> float:
        return seconds * 1e6 / self.rows


def drain(ground: Ground, system: System, run: Run, rows: int, upto: str) -> Sample:
    """Runs it once and counts what a read_committed consumer finds: a number that is not the
    backlog's is an error.
    """
    ground.settle()
    with psycopg.connect(run.dsn, autocommit=True) as watching:
        before = time.monotonic()
        system.start(run, upto)
        own = Meter(system.pid())
        own_begun = own.cpu_s
        visible = Committed(ground.bootstrap)
        try:
            sender = _wait_for_walsender(watching, system, run, before)
            begun = time.monotonic()
            own.read()
            own_begun = own.cpu_s
            walsender, broker_begun = Meter(sender), cpu_seconds(ground.broker_pid)
            sender_begun = cpu_seconds(sender)
            first_s = 0.0
            while not system.done(run):
                own.read()
                walsender.read()
                if system.counted and not first_s and visible.has_any(run.topics[0]):
                    first_s = time.monotonic() - begun
                if time.monotonic() - begun > _LONGEST_S:
                    raise TimeoutError(f"{system.name} did not drain {rows} rows within {_LONGEST_S} s")
                time.sleep(_LOOK_S)
            seconds = time.monotonic() - begun
            own.read()
            walsender.read()
            reconnected = system.counted and run.walsender() != sender
            broker_cpu = cpu_seconds(ground.broker_pid) - broker_begun
        finally:
            visible.close()
            system.stop(run)
    if system.counted:
        check(ground, system, run, rows)
    return Sample(
        system.name,
        rows,
        round(seconds, 3),
        round(own_begun, 2),
        round(own.cpu_s - own_begun, 2),
        round(broker_cpu, 2),
        round(walsender.cpu_s + sender_begun, 2),
        round(own.peak_mb, 1),
        ground.kafka_bytes(run.topics) if system.counted else 0,
        reconnected,
        round(first_s or seconds, 3) if system.counted else 0.0,
    )


def _wait_for_walsender(watching: psycopg.Connection, system: System, run: Run, since: float) -> int:
    query = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s"
    while time.monotonic() - since < _LONGEST_S:
        row = watching.execute(query, [run.slot]).fetchone()
        if row is not None and row[0] is not None:
            return int(row[0])
        if system.done(run):
            raise RuntimeError(f"{system.name} was over before it was seen to begin: the backlog is too small")
        time.sleep(0.002)
    raise TimeoutError(f"{system.name} did not start streaming")


def check(ground: Ground, system: System, run: Run, rows: int) -> None:
    """A read_committed consumer finds as many rows, or the figures mean nothing."""
    consumer = Committed(ground.bootstrap)
    try:
        found = consumer.count(run.topics)
    finally:
        consumer.close()
    if found != rows:
        raise RuntimeError(f"{system.name} published {found} rows of {rows}: its figures mean nothing")
    if run.events:
        compare(ground, system, run)
