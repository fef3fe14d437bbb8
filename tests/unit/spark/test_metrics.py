"""What Prometheus is told of a job."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest

from fixtures.connector import wait_until
from twofold_common.http_server import CONNECTIONS_MAX
from twofold_spark import __version__
from twofold_spark.errors import SetupError
from twofold_spark.job.metrics import JobMetrics, serve_metrics


def test_batches_are_added_up_and_gauges_are_the_last_ones() -> None:
    metrics = JobMetrics("mirror")
    seen = [metrics.worked_at]
    metrics.record_batch(10, {"fold": 1.5, "merge": 2.0}, lag_seconds=4.0, cut_sequence=7)
    metrics.record_batch(5, {"fold": 0.5}, lag_seconds=2.0, cut_sequence=8)
    seen.append(metrics.worked_at)
    assert [each is not None for each in seen] == [False, True]
    server = serve_metrics(metrics, ("127.0.0.1", 0))
    address = f"http://127.0.0.1:{server.server_port}"
    try:
        with urllib.request.urlopen(f"{address}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        with pytest.raises(urllib.error.HTTPError, match="404") as refused:
            urllib.request.urlopen(f"{address}/else", timeout=5)
        refused.value.close()
    finally:
        server.shutdown()
        server.server_close()
    assert [line for line in lines if not line.startswith("#")] == [
        f'twofold_job_build_info{{job="mirror",version="{__version__}"}} 1',
        'twofold_job_rows_total{job="mirror"} 15',
        'twofold_job_batches_total{job="mirror"} 2',
        'twofold_job_lag_seconds{job="mirror"} 2',
        'twofold_job_cut_sequence{job="mirror"} 8',
        'twofold_job_stage_seconds_total{job="mirror",stage="fold"} 2',
        'twofold_job_stage_seconds_total{job="mirror",stage="merge"} 2',
    ]


@pytest.mark.parametrize("host", ["127.0.0.1", "no-such-host.invalid"])
def test_where_nothing_can_listen_the_job_says_so_before_it_starts(host: str) -> None:
    taken = serve_metrics(JobMetrics("mirror"), ("127.0.0.1", 0))
    try:
        with pytest.raises(
            SetupError, match=rf"--metrics cannot listen on {host}:{taken.server_port} .* a port of its own"
        ):
            serve_metrics(JobMetrics("changelog"), (host, taken.server_port))
    finally:
        taken.shutdown()
        taken.server_close()


def test_many_slow_connections_leave_the_job_its_descriptors() -> None:
    server = serve_metrics(JobMetrics("mirror"), ("127.0.0.1", 0))
    before = len([*Path("/proc/self/fd").iterdir()])
    try:
        with ExitStack() as opened:
            place = ("127.0.0.1", server.server_port)
            for _ in range(200):
                opened.enter_context(socket.create_connection(place, 5)).sendall(b"GET /metrics HTTP/1.1\r\n")
            with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics", timeout=5) as answer:
                assert b"twofold_job_build_info" in answer.read()
            most = before + 200 + CONNECTIONS_MAX + 3
            wait_until(lambda: len([*Path("/proc/self/fd").iterdir()]) <= most, within_s=5)
    finally:
        server.shutdown()
        server.server_close()
