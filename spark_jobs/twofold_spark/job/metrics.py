"""A job's metrics for Prometheus: what it applied, how far behind it is, and where the time of its batches goes.

Two sources: the job's own reports (rows, lag, the stages of a bite) and Spark's StreamingQueryListener (the stages of a
trigger, how many offsets the stream has not read yet). Served at `/metrics` where `--metrics` says; without it nothing
listens. A metrics endpoint that falls over does not touch the job.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from twofold_spark import __version__
from twofold_spark.errors import MissingGround

_INFO = "twofold_job_build_info"
_HELP = {
    "twofold_job_rows_total": ("counter", "changes applied by this process"),
    "twofold_job_batches_total": (
        "counter",
        "bites applied and published (changelog: turns that had something) by this process",
    ),
    "twofold_job_lag_seconds": ("gauge", "from the source's commit to its cut, of the last one; two machines' clocks"),
    "twofold_job_cut_sequence": ("gauge", "the last published cut's sequence number"),
    "twofold_job_tables_stopped": ("gauge", "tables that a refusal of their own has stopped"),
    "twofold_job_stage_seconds_total": ("counter", "seconds in each stage of a bite; of tables at once, their sum"),
    "twofold_job_trigger_seconds_total": ("counter", "seconds in each stage of Spark's triggers"),
    "twofold_job_triggers_total": ("counter", "Spark's triggers that had a batch"),
    "twofold_job_offsets_behind": ("gauge", "offsets that the stream has not read yet, at the last trigger"),
}


class Metrics(StreamingQueryListener):
    """Counts; `text()` is Prometheus' form."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._lock = threading.Lock()
        self._values: dict[tuple[str, str], float] = {}

    def add(self, name: str, value: float, stage: str = "") -> None:
        with self._lock:
            self._values[name, stage] = self._values.get((name, stage), 0.0) + value

    def put(self, name: str, value: float) -> None:
        with self._lock:
            self._values[name, ""] = value

    def applied(self, rows: int, stages: Mapping[str, float], **gauges: float) -> None:
        """What a job reports of each bite."""
        self.add("twofold_job_rows_total", rows)
        self.add("twofold_job_batches_total", 1)
        for stage, seconds in stages.items():
            self.add("twofold_job_stage_seconds_total", seconds, stage)
        for name, value in gauges.items():
            self.put(f"twofold_job_{name}", value)

    def text(self) -> str:
        with self._lock:
            values = sorted(self._values.items())
        version = f'{_INFO}{{job="{self._job}",version="{__version__}"}} 1'
        lines = [f"# HELP {_INFO} constant 1", f"# TYPE {_INFO} gauge", version]
        for name, (kind, what) in _HELP.items():
            found = [(stage, value) for (of, stage), value in values if of == name]
            if found:
                lines += [f"# HELP {name} {what}", f"# TYPE {name} {kind}"]
            for stage, value in found:
                labels = f'job="{self._job}"' + (f',stage="{stage}"' if stage else "")
                lines.append(f"{name}{{{labels}}} {value:.15g}")
        return "\n".join((*lines, ""))

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802  (Spark's name)
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802  (Spark's name)
        progress = event.progress
        if "addBatch" in progress.durationMs:
            self.add("twofold_job_triggers_total", 1)
            for stage, ms in progress.durationMs.items():
                self.add("twofold_job_trigger_seconds_total", ms / 1000, stage)
        for source in progress.sources:
            behind = source.metrics.get("maxOffsetsBehindLatest")
            if behind is not None:
                self.put("twofold_job_offsets_behind", float(behind))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802  (Spark's name)
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802  (Spark's name)
        pass


def serve(metrics: Metrics, address: tuple[str, int]) -> ThreadingHTTPServer:
    """Serves `/metrics` until the process ends."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = metrics.text().encode()
            self.send_response(200 if self.path == "/metrics" else 404)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.end_headers()
            if self.path == "/metrics":
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Not on the terminal."""

    try:
        server = ThreadingHTTPServer(address, Handler)
    except OSError as error:
        raise MissingGround(
            f"--metrics {address[0]}:{address[1]}: {error.strerror}; another job may listen there: give each a port of its own"
        ) from error
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return server
