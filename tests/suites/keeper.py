"""Keeps a connector running: it may end only by a refusal, whose repair is made as the refusal says."""

from __future__ import annotations

import re
import subprocess
import threading
import time
from collections import Counter

import psycopg

from fixtures.connector import START_S, Installation, Running, wait_until

REFUSED = 5
REPAIRS_MAX = 200


class Keeper:
    """`twofold run`, started again by a thread of its own after each refusal."""

    def __init__(self, here: Installation) -> None:
        self._here = here
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._attend, name="keeper")
        self._run: Running | None = None
        self._failure: BaseException | None = None
        self.refusals: Counter[str] = Counter()

    def start(self) -> None:
        self._run = self._here.start()
        self._thread.start()

    def check(self) -> None:
        """An error if the connector cannot be kept running, or has said what nobody foresaw."""
        if self._failure is not None:
            raise AssertionError(str(self._failure)) from self._failure

    def catch_up(self, within_s: float) -> None:
        """Until everything that was committed before this call is published."""
        with psycopg.connect(self._here.conninfo, autocommit=True) as connection:
            row = connection.execute("SELECT pg_logical_emit_message(true, 'suites', 'an end')").fetchone()
            assert row is not None
            question = f"SELECT confirmed_flush_lsn > '{row[0]}' FROM pg_replication_slots WHERE slot_name = '{self._here.prefix}'"

            def published() -> bool:
                self.check()
                found = connection.execute(question).fetchone()
                return found is not None and bool(found[0])

            wait_until(published, within_s, "all is published")

    def start_again(self) -> None:
        with self._lock:
            assert self._run is not None
            self._run.stop(START_S)
            self._run = self._here.start()

    def stop(self) -> None:
        """As an operator does; its status must be 0."""
        self._stopping.set()
        self._thread.join()
        self.check()
        assert self._run is not None
        self._run.stop(START_S)
        for run in self._here.runs:
            assert "Traceback" not in run.said(), run.said()

    def close(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        for run in self._here.runs:
            if not run.dead:
                run.kill9()

    def _attend(self) -> None:
        try:
            while not self._stopping.wait(0.2):
                with self._lock:
                    assert self._run is not None
                    if self._run.dead:
                        self._repair(self._run)
                        self._run = self._here.start(ready=False)
        except BaseException as error:  # told to the thread that waits
            self._failure = error

    def _repair(self, run: Running) -> None:
        said = run.said()
        assert run.process.returncode == REFUSED, f"ended with {run.process.returncode}: {said[-4000:]}"
        assert self.refusals.total() < REPAIRS_MAX, f"refused more than {REPAIRS_MAX} times: {said[-4000:]}"
        words = said.strip().splitlines()[-1]
        print(f"{time.strftime('%H:%M:%S')} refused: {words}", flush=True)
        if found := re.search(r"twofold backfill start ((?:[^\s,;]+ ?)+)", words):
            self.refusals["twofold backfill start"] += 1
            tables = found[1].split()
            subprocess.run(
                self._here.command("backfill", "start", *tables), check=True, capture_output=True, timeout=START_S
            )
        else:
            raise AssertionError(f"no repair is known of: {said[-4000:]}")
