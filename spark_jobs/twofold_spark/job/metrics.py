"""A job's metrics for Prometheus: what it applied, how far it is behind, the time of each stage.

The job's own reports give rows, lag, and the stages of a batch. Spark's StreamingQueryListener
gives the stages of a trigger, and the offsets that the stream has not read. `--metrics` serves them
at `/metrics`; without it nothing listens. A failure of the endpoint does not touch the job.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler

from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from twofold_common.http_server import REQUEST_S, LimitedHttpServer
from twofold_spark import __version__
from twofold_spark.errors import SetupError

_INFO = "twofold_job_build_info"
_HELP = {
    "twofold_job_rows_total": ("counter", "changes that this process applied"),
    "twofold_job_batches_total": (
        "counter",
        "batches that this process applied and published (changelog: turns in which a topic had more)",
    ),
    "twofold_job_lag_seconds": (
        "gauge",
        "time from the source's commit to its cut, for the last batch; by the clocks of two machines",
    ),
    "twofold_job_cut_sequence": ("gauge", "sequence number of the last published cut"),
    "twofold_job_tables_stopped": ("gauge", "tables stopped by a refusal of their own"),
    "twofold_job_global_waits": ("gauge", "global transactions that hold back the cut of a source group"),
    "twofold_job_stage_seconds_total": (
        "counter",
        "seconds in each stage of a batch; a sum over tables that run at once",
    ),
    "twofold_job_trigger_seconds_total": ("counter", "seconds in each stage of Spark's triggers"),
    "twofold_job_triggers_total": ("counter", "Spark's triggers that had a micro-batch"),
    "twofold_job_offsets_behind": ("gauge", "offsets that the stream had not read at the last trigger"),
}


class JobMetrics(StreamingQueryListener):
    """Counts, and renders Prometheus' text format."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._lock = threading.Lock()
        self._values: dict[tuple[str, str], float] = {}
        self.worked_at: float | None = None
        """When a micro-batch ended, or a batch was reported, by the monotonic clock."""

    def add(self, name: str, value: float, stage: str = "") -> None:
        with self._lock:
            self._values[name, stage] = self._values.get((name, stage), 0.0) + value

    def set_gauge(self, name: str, value: float) -> None:
        with self._lock:
            self._values[name, ""] = value

    def record_batch(self, rows: int, stages: Mapping[str, float], **gauges: float) -> None:
        self.worked_at = time.monotonic()
        self.add("twofold_job_rows_total", rows)
        self.add("twofold_job_batches_total", 1)
        for stage, seconds in stages.items():
            self.add("twofold_job_stage_seconds_total", seconds, stage)
        for name, value in gauges.items():
            self.set_gauge(f"twofold_job_{name}", value)

    def render(self) -> str:
        with self._lock:
            values = sorted(self._values.items())
        version = f'{_INFO}{{job="{self._job}",version="{__version__}"}} 1'
        lines = [f"# HELP {_INFO} constant 1", f"# TYPE {_INFO} gauge", version]
        for name, (kind, help_text) in _HELP.items():
            found = [(stage, value) for (of, stage), value in values if of == name]
            if found:
                lines += [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"]
            for stage, value in found:
                labels = f'job="{self._job}"' + (f',stage="{stage}"' if stage else "")
                lines.append(f"{name}{{{labels}}} {value:.15g}")
        return "\n".join((*lines, ""))

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802  (Spark's name)
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802  (Spark's name)
        progress = event.progress
        if "addBatch" in progress.durationMs:
            self.worked_at = time.monotonic()
            self.add("twofold_job_triggers_total", 1)
            for stage, ms in progress.durationMs.items():
                self.add("twofold_job_trigger_seconds_total", ms / 1000, stage)
        for source in progress.sources:
            behind = source.metrics.get("maxOffsetsBehindLatest")
            if behind is not None:
                self.set_gauge("twofold_job_offsets_behind", float(behind))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802  (Spark's name)
        pass


def serve_metrics(metrics: JobMetrics, address: tuple[str, int]) -> LimitedHttpServer:
    """Serve `/metrics` until the process ends."""

    class Handler(BaseHTTPRequestHandler):
        timeout = REQUEST_S

        def do_GET(self) -> None:
            body = metrics.render().encode()
            self.send_response(200 if self.path == "/metrics" else 404)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.end_headers()
            if self.path == "/metrics":
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Keep requests off the terminal."""

    try:
        server = LimitedHttpServer(address, Handler)
    except OSError as error:
        raise SetupError(
            f"--metrics cannot listen on {address[0]}:{address[1]} ({error.strerror}); "
            "if another job listens there, give each a port of its own"
        ) from error
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return server
