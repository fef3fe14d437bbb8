"""Keeps a connector running: it may end only by a refusal, whose repair is made as the refusal
says.
"""

from __future__ import annotations

import re
import subprocess
import threading
import time
from collections import Counter

import psycopg

from fixtures.connector import START_S, Installation, Running, wait_until
from helpers.reading import ask_registry
from helpers.topic_changes import delete_topic

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
        words = said[said.rindex("\ntwofold: ") :].strip()
        print(f"{time.strftime('%H:%M:%S')} {words}", flush=True)
        subject = re.search(r"set the subject (\S+) to another compatibility", words)
        tables = re.search(r"twofold backfill start ((?:[^\s,;()]+\.[^\s,;()]+ ?)+)", words)
        if subject is not None:
            self.refusals["set the subject to another compatibility"] += 1
            ask_registry(self._here.reader.registry_url, f"config/{subject[1]}", "PUT", {"compatibility": "NONE"})
        elif tables is not None:
            if (statements := re.search(r"repair: +(.*;) then twofold backfill start", words)) is not None:
                self.refusals["the table's repair, then twofold backfill start"] += 1
                self._here.sql(*re.findall(r".+?;(?= |$)", statements[1]))
            elif "delete the table's topic and the registry's subject" in words:
                self.refusals["delete the topic and its subject, then twofold backfill start"] += 1
                self._delete(f"{self._here.prefix}.{tables[1].strip()}")
            else:
                self.refusals["twofold backfill start"] += 1
            command = self._here.command("backfill", "start", *tables[1].split())
            subprocess.run(command, check=True, capture_output=True, timeout=START_S)
        else:
            raise AssertionError(f"no repair is known of: {said[-4000:]}")

    def _delete(self, topic: str) -> None:
        """The topic and the subject of its values."""
        delete_topic(self._here.reader.bootstrap, topic)
        ask_registry(self._here.reader.registry_url, f"subjects/{topic}-value", "DELETE")
