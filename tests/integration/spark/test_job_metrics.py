"""`--metrics` of a job that runs: what Prometheus reads is what the job does."""

from __future__ import annotations

import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from fixtures.spark import Lake
from helpers.spark import process as spark_process
from helpers.spark.writer import table
from twofold.stack.process import choose_port


class Values(dict[Any, float]):
    """By a metric's name without `twofold_job_`, or name and stage; what is not there yet is -1."""

    def __missing__(self, name: Any) -> float:
        return -1.0

    def stages(self, name: str) -> set[str]:
        return {key[1] for key in self if isinstance(key, tuple) and key[0] == name}


STAGES = {"addBatch", "queryPlanning", "latestOffset", "walCommit", "commitOffsets", "triggerExecution"}
"""Of Spark's triggers, what its StreamingQueryListener always tells."""


class _Page:
    """A job's `/metrics`."""

    def __init__(self, process: subprocess.Popen[str], port: int, job: str) -> None:
        self._process = process
        self._address = f"http://127.0.0.1:{port}/metrics"
        self._job = job

    def when(self, holds: Callable[[Values], bool]) -> Values:
        """The first page of which it holds."""
        deadline, values = time.monotonic() + 150, Values()
        while time.monotonic() < deadline:
            assert self._process.poll() is None, "the job ended"
            with suppress(urllib.error.URLError):  # it does not listen yet
                values = self._read()
                if holds(values):
                    return values
            time.sleep(0.02)
        raise AssertionError(f"not within two minutes and a half: {values}")

    def _read(self) -> Values:
        with urllib.request.urlopen(self._address, timeout=10) as answer:
            text = answer.read().decode()
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        assert {sample.labels["job"] for sample in samples} <= {self._job}
        named = [(sample.name.removeprefix("twofold_job_"), sample) for sample in samples]
        return Values({(n, s.labels["stage"]) if "stage" in s.labels else n: s.value for n, s in named})


@contextmanager
def _watched(lake: Lake, command: str, *arguments: str) -> Iterator[_Page]:
    port = choose_port(None, "metrics")
    with spark_process.running(lake, "--metrics", f"127.0.0.1:{port}", *arguments, command=command) as process:
        yield _Page(process, port, command)
        process.terminate()
        spark_process.finish(process, within_s=60)


def test_of_a_mirror_the_figures_are_those_of_its_batches_and_change_with_the_next(lake: Lake) -> None:
    w = lake.writer
    names = [w.table(table(n, {"id": "int8", "v": "text"})) for n in ("a", "b")]
    with w.commit() as tx:
        for name in names:
            for i in range(15):
                tx.upsert(name, {"id": i, "v": "v"})
    committed = time.time()
    with _watched(lake, "mirror", "--trigger", "interval=200ms") as page:
        first = page.when(lambda v: v["batches_total"] == 1 and v["triggers_total"] == 1)
        assert (first["rows_total"], first["cut_sequence"], first["tables_stopped"]) == (30, 1, 0)
        assert 0 < first["lag_seconds"] <= time.time() - committed + 1
        assert first.stages("stage_seconds_total") == {"fold", "merge", "publish"}
        assert all(0 < first["stage_seconds_total", stage] < 60 for stage in ("fold", "merge", "publish"))
        assert first.stages("trigger_seconds_total") >= STAGES
        _assert_triggers_add_up(first)
        assert first["offsets_behind"] == 0

        with w.commit() as tx:
            tx.upsert("a", {"id": 1, "v": "second"})
        committed = time.time()
        second = page.when(lambda v: v["batches_total"] == 2 and v["triggers_total"] == 2)
        assert (second["rows_total"], second["cut_sequence"]) == (31, 2)
        assert 0 < second["lag_seconds"] <= time.time() - committed + 1
        for name in ("stage_seconds_total", "trigger_seconds_total"):
            assert all(second[name, stage] >= first[name, stage] for stage in first.stages(name))
        for grown in (("stage_seconds_total", "publish"), ("trigger_seconds_total", "addBatch")):
            assert second[grown] > first[grown]
        _assert_triggers_add_up(second)


def test_of_a_changelog_that_reads_in_small_steps_what_it_has_not_read_yet_is_told(lake: Lake) -> None:
    w = lake.writer
    t = w.table(table("t", {"id": "int8", "v": "text"}), partitions=1)
    with w.commit() as tx:
        for i in range(50):
            tx.upsert(t, {"id": i, "v": "v"})
    with _watched(lake, "changelog", "--batch-rows", "10") as page:
        early = page.when(lambda v: v["offsets_behind"] > 0)
        assert early["offsets_behind"] <= 50 - 10 + 1  # the commit's marker has an offset too
        assert 10 <= early["rows_total"] < 50
        last = page.when(lambda v: v["offsets_behind"] == 0 and v["rows_total"] == 50 and v["triggers_total"] >= 1)
        assert last["batches_total"] >= 5
        _assert_triggers_add_up(last)


def _assert_triggers_add_up(values: Values) -> None:
    """A trigger's stages are parts of it, and a batch is one of them."""
    whole = values["trigger_seconds_total", "triggerExecution"]
    assert 0 < values["trigger_seconds_total", "addBatch"] <= whole
    assert sum(values["trigger_seconds_total", stage] for stage in STAGES - {"triggerExecution"}) <= 1.01 * whole
