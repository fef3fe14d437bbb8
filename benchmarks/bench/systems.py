"""The systems that drain a backlog: PostgreSQL's own client into nowhere, Twofold, and Debezium
with two converters, or with its EventRouter.

Each reserves its place before the load (a slot of its own for every run), starts, says when the
last row of the backlog is visible, and stops.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

import psycopg

from bench.cases import END_TABLE
from bench.connect import avro_converter, converter_settings, debezium_settings
from bench.ground import PARTITIONS, Committed, Ground, wait_until
from twofold.row_path import slowness

EVENTS = "outbox.event."
ROUTER = "router"
"""In place of a converter: Debezium's EventRouter, whose events are text as PostgreSQL sends it."""

_STOP_S = 60
_START_S = 120


def refuse_uncompiled(systems: Sequence[str], uncompiled: bool) -> None:
    """End a benchmark that would compare a row path that is not compiled, without being told to."""
    if "twofold" in systems and not uncompiled and (slow := slowness()):
        sys.exit(f"{slow}; to compare it as it is: ARGS=--uncompiled")


@dataclass(frozen=True, slots=True)
class Run:
    """One drain of one backlog by one system."""

    slot: str
    """Also names the connector and prefixes the topics."""
    dsn: str
    tables: Sequence[str]
    publication: str
    events: Sequence[str] = ()
    """The only table is an outbox, and these are the names of its events' topics."""

    @property
    def topics(self) -> tuple[str, ...]:
        if self.events:
            return tuple(f"{self.slot}.{EVENTS}{name}" for name in self.events)
        return tuple(f"{self.slot}.public.{table}" for table in self.tables)

    @property
    def end_topic(self) -> str:
        return f"{self.slot}.public.{END_TABLE}"

    def make_slot(self, *, two_phase: bool) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_create_logical_replication_slot(%s, 'pgoutput', false, %s)", [self.slot, two_phase]
            )

    def walsender(self) -> int | None:
        """The process that serves the slot."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            row = connection.execute(
                "SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s", [self.slot]
            ).fetchone()
            return row[0] if row else None

    def wait_for_walsender(self) -> None:
        wait_until(f"slot {self.slot} is served", lambda: self.walsender() is not None, _START_S)


class System(Protocol):
    """`pid` is the process whose use is the connector's; what `done` asks must cost next to
    nothing.
    """

    name: str
    counted: bool
    opens_at_prepare: bool
    """The rows of a prepared transaction are in Kafka before its outcome."""

    def reserve(self, run: Run) -> None: ...
    def start(self, run: Run, upto: str) -> None: ...
    def pid(self) -> int: ...
    def done(self, run: Run) -> bool: ...
    def stop(self, run: Run) -> None: ...


class Recvlogical:
    """The source's own limit: pg_recvlogical to /dev/null, with the options that Twofold asks
    for.
    """

    name = "pg_recvlogical"
    counted = False
    opens_at_prepare = False

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def reserve(self, run: Run) -> None:
        run.make_slot(two_phase=True)

    def start(self, run: Run, upto: str) -> None:
        with psycopg.connect(run.dsn) as connection:
            modern = connection.info.server_version >= 160000
        options = {
            "proto_version": "4" if modern else "3",
            "publication_names": run.publication,
            "streaming": "on",
            "two_phase": "on",
            "messages": "on",
        }
        command = [
            "pg_recvlogical",
            "--start",
            "--no-loop",
            f"--slot={run.slot}",
            f"--endpos={upto}",
            f"--dbname={run.dsn}",
        ]
        command += ["--file=/dev/null", *(f"--option={name}={value}" for name, value in options.items())]
        self._process = subprocess.Popen(command)

    def pid(self) -> int:
        assert self._process is not None, "it was started"
        return self._process.pid

    def done(self, run: Run) -> bool:  # noqa: ARG002
        assert self._process is not None, "it was started"
        ended = self._process.poll()
        if ended:
            raise RuntimeError(f"pg_recvlogical ended with {ended}")
        return ended == 0

    def stop(self, run: Run) -> None:  # noqa: ARG002
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()


class Twofold:
    """This project's connector, with its defaults; `backfill` False: rows that were there before
    the slot are none of the backlog.
    """

    name = "twofold"
    counted = True
    opens_at_prepare = True

    def __init__(self, ground: Ground, *, backfill: bool = True) -> None:
        self._ground = ground
        self._backfill = str(backfill).lower()
        self._consumer = Committed(ground.bootstrap)
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None

    def reserve(self, run: Run) -> None:
        self._file(run).write_text(
            f'name = "{run.slot}"\n'
            f'[source]\ndsn = "{run.dsn}"\npublication = "{run.publication}"\nbackfill = {self._backfill}\n'
            f'[kafka]\nbootstrap = "{self._ground.bootstrap}"\npartitions = {PARTITIONS}\nreplication = 1\nmin_insync_replicas = 1\n'
            f'[registry]\nurl = "{self._ground.stack.registry.url}"\n'
            f'[spool]\nfolder = "{self._ground.folder / "spool"}"\n'
            '[status]\nlisten = "none"\n'
            + "".join(f'[[outbox]]\ntable = "public.{table}"\n' for table in run.tables if run.events)
        )
        subprocess.run([*self._command(run), "init"], check=True, stdout=subprocess.DEVNULL)

    def start(self, run: Run, upto: str) -> None:  # noqa: ARG002
        self._log = (self._ground.folder / f"{run.slot}.log").open("wb")
        self._process = subprocess.Popen([*self._run_command(run), "run"], stdout=self._log, stderr=self._log)

    def pid(self) -> int:
        assert self._process is not None, "it was started"
        return self._process.pid

    def done(self, run: Run) -> bool:
        assert self._process is not None, "it was started"
        if self._process.poll() is not None:
            raise RuntimeError(f"twofold ended: {(self._ground.folder / f'{run.slot}.log').read_text()}")
        return self._consumer.has_any(run.end_topic)

    def stop(self, run: Run) -> None:  # noqa: ARG002
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(_STOP_S)
        if self._log is not None:
            self._log.close()

    def _file(self, run: Run) -> Path:
        return self._ground.folder / f"{run.slot}.toml"

    def _command(self, run: Run) -> list[str]:
        return [sys.executable, "-m", "twofold", "-c", str(self._file(run))]

    def _run_command(self, run: Run) -> list[str]:
        return self._command(run)


class TracedTwofold(Twofold):
    """The same with a clock at its edges; the trace is there when it has stopped."""

    def trace(self, run: Run) -> Path:
        return self._ground.folder / f"{run.slot}.trace.csv"

    def _run_command(self, run: Run) -> list[str]:
        return [sys.executable, "-m", "bench.traced", str(self.trace(run)), "-c", str(self._file(run))]


class Debezium:
    """Debezium in Kafka Connect with exactly-once, tuned for throughput."""

    counted = True
    opens_at_prepare = False

    def __init__(self, ground: Ground, converter: str, more: dict[str, str] | None = None) -> None:
        self.name = f"debezium-{converter}"
        self._ground = ground
        self.converter = converter
        self._more = more or {}
        self._consumer = Committed(ground.bootstrap)

    def reserve(self, run: Run) -> None:
        run.make_slot(two_phase=False)

    def start(self, run: Run, upto: str) -> None:  # noqa: ARG002
        self._ground.connect.make(run.slot, {**self._settings(run), **self._more})

    def pid(self) -> int:
        return self._ground.connect.pid

    def done(self, run: Run) -> bool:
        if self._consumer.has_any(run.end_topic):
            return True
        if (why := self._ground.connect.failure(run.slot)) is not None:
            raise RuntimeError(f"{self.name} failed: {why}")
        return False

    def stop(self, run: Run) -> None:
        self._ground.connect.remove(run.slot)
        wait_until(f"slot {run.slot} is free", lambda: run.walsender() is None, _STOP_S)

    def _settings(self, run: Run) -> dict[str, str]:
        return {
            **debezium_settings(run.dsn, run.slot, run.publication, PARTITIONS),
            "snapshot.mode": "no_data",
            # Throughput.
            "max.batch.size": "8192",
            "max.queue.size": "32768",
            "statistics.metrics.enabled": "false",
            "producer.override.batch.size": str(1 << 20),
            "producer.override.linger.ms": "20",
            "producer.override.compression.type": "lz4",
            **(_router(run) if self.converter == ROUTER else {}),
            **converter_settings(self._converter()),
        }

    def _converter(self) -> dict[str, str]:
        if self.converter == ROUTER:
            return {"": "org.apache.kafka.connect.storage.StringConverter"}
        if self.converter == "json":
            return {"": "org.apache.kafka.connect.json.JsonConverter", ".schemas.enable": "false"}
        return avro_converter(self._ground.registry_port)


def _router(run: Run) -> dict[str, str]:
    """The EventRouter for the outbox alone: the end's row passes by it. Without the headers that
    name the connector, so that both write the same bytes.
    """
    of_outbox, router = "predicates.of_outbox", "transforms.outbox"
    return {
        "predicates": "of_outbox",
        f"{of_outbox}.type": "org.apache.kafka.connect.transforms.predicates.TopicNameMatches",
        f"{of_outbox}.pattern": rf".*\.public\.({'|'.join(run.tables)})",
        "transforms": "outbox",
        f"{router}.type": "io.debezium.transforms.outbox.EventRouter",
        f"{router}.predicate": "of_outbox",
        f"{router}.route.topic.replacement": f"{run.slot}.{EVENTS}${{routedByValue}}",
        f"{router}.table.fields.additional.placement": "type:header",
        "extended.headers.enabled": "false",
    }
