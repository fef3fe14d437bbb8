"""The case of a large transaction in doubt: how long after its COMMIT PREPARED it is visible, when
there was all the time before to prepare for that.

Each system follows a database of its own. The transaction is prepared, and the clock starts with
COMMIT PREPARED only when the system has done what it can do until then: Twofold has its rows in an
open Kafka transaction; of Debezium, whose slot does not decode at PREPARE, PostgreSQL has read past
the PREPARE. It stops when the last row is visible to a read_committed consumer.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import psycopg
from confluent_kafka import KafkaException

from bench.cases import GID, Case, published
from bench.drain import Sample, check
from bench.ground import Committed, Ground, wait_until
from bench.meter import Meter, cpu_seconds
from bench.systems import Run, System

_LONGEST_S = 1800
_LOOK_S = 0.005


def bench(ground: Ground, case: Case, systems: Sequence[System], rows: int, rounds: range) -> list[Sample]:
    """Round 0 warms, with a tenth of the rows."""
    samples = []
    for number in rounds:
        for system in systems:
            if system.counted:
                sample = _one(ground, case, system, rows if number else max(rows // 10, 1), number)
                print(f"  {case.letter} round {number} {sample}", file=sys.stderr, flush=True)
                if number:
                    samples.append(sample)
    return samples


def _one(ground: Ground, case: Case, system: System, rows: int, number: int) -> Sample:
    name = f"{case.letter}_{system.name.replace('-', '_')}_{number}"
    dsn = ground.database(name)
    case.prepare(dsn, rows)
    run = Run(name, dsn, case.tables, published(case, dsn))
    system.reserve(run)
    system.start(run, "")
    own = Meter(system.pid())
    consumer = Committed(ground.bootstrap)
    try:
        run.wait_for_walsender()
        sender = run.walsender()
        assert sender is not None, "it was just there"
        case.load(dsn, rows)
        _wait_until_ready(consumer, system, run, rows)
        own.read()
        own_begun, broker_begun, sender_begun = own.cpu_s, cpu_seconds(ground.broker_pid), cpu_seconds(sender)
        with psycopg.connect(dsn, autocommit=True) as source:
            begun = time.monotonic()
            source.execute(f"COMMIT PREPARED '{GID}'".encode())
        while not system.done(run):
            own.read()
            if time.monotonic() - begun > _LONGEST_S:
                raise TimeoutError(f"{system.name} did not publish {rows} rows within {_LONGEST_S} s")
            time.sleep(_LOOK_S)
        seconds = time.monotonic() - begun
        own.read()
        broker_cpu_s, sender_cpu_s = cpu_seconds(ground.broker_pid) - broker_begun, cpu_seconds(sender) - sender_begun
    finally:
        consumer.close()
        system.stop(run)
    check(ground, system, run, rows)
    sample = Sample(
        system.name,
        rows,
        round(seconds, 4),
        round(own_begun, 2),
        round(own.cpu_s - own_begun, 2),
        round(broker_cpu_s, 2),
        round(sender_cpu_s, 2),
        round(own.peak_mb, 1),
        ground.kafka_bytes(run.topics),
        reconnected=False,
    )
    ground.drop_topics((*run.topics, run.end_topic))
    ground.drop_database(name)
    return sample


def _wait_until_ready(consumer: Committed, system: System, run: Run, rows: int) -> None:
    with psycopg.connect(run.dsn, autocommit=True) as source:
        # Only what is flushed is sent, and PREPARE's record was.
        row = source.execute("SELECT pg_current_wal_flush_lsn()").fetchone()
        assert row is not None, "one row was asked for"
        sent = "SELECT sent_lsn >= %s::pg_lsn FROM pg_stat_replication JOIN pg_replication_slots ON pid = active_pid WHERE slot_name = %s"
        wait_until(
            "PREPARE is read", lambda: source.execute(sent, [row[0], run.slot]).fetchone() == (True,), _LONGEST_S
        )
    if system.opens_at_prepare:
        wait_until("the rows are in Kafka", lambda: _written(consumer, run.topics[0]) >= rows, _LONGEST_S)


def _written(consumer: Committed, topic: str) -> int:
    """Records that are there, visible or not."""
    try:
        return consumer.written(topic)
    except KafkaException:
        return 0  # a topic that is being made
