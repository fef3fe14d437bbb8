"""`twofold run` as a process whose memory, threads and open files are looked at."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from bench.ground import Ground, wait_until

STREAMING = "recovered:"
"""What it logs once the stream runs."""
_LOOK_S = 0.5

CONFIG = """
name = "{name}"
[source]
dsn = "{dsn}"
tables = ["{tables}"]
[kafka]
bootstrap = "{bootstrap}"
partitions = {partitions}
replication = 1
min_insync_replicas = 1
[registry]
url = "{registry}"
[spool]
folder = "{folder}/spool"
"""


def configure(
    ground: Ground, name: str, dsn: str, *, tables: str = "public.*", partitions: int = 6, more: str = ""
) -> Path:
    """Write a configuration, and return its file."""
    file = ground.folder / f"{name}.toml"
    settings = {
        "name": name,
        "dsn": dsn,
        "tables": tables,
        "partitions": partitions,
        "bootstrap": ground.bootstrap,
        "registry": ground.stack.registry.url,
        "folder": ground.folder,
    }
    file.write_text(CONFIG.format(**settings) + more)
    return file


def command(file: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "twofold", "-c", str(file), *words]


class MeasuredRun:
    """`twofold run` and its log."""

    def __init__(self, file: Path, log: Path, *, files: int | None = None, spool: Path | None = None) -> None:
        """`files`: the limit of open files. `spool`: a folder whose greatest size is noted."""
        self._log = log
        self._began = time.monotonic()
        self._process = subprocess.Popen(command(file, "run"), stdout=log.open("w"), stderr=subprocess.STDOUT)
        if files is not None:
            resource.prlimit(self.pid, resource.RLIMIT_NOFILE, (files, files))
        self.seen: list[Mapping[str, int]] = []
        self.spool_bytes = 0
        self._spool = spool
        self._closing = threading.Event()
        self._looker = threading.Thread(target=self._look, daemon=True)
        self._looker.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def log(self) -> str:
        return self._log.read_text()

    def recoveries(self) -> int:
        return self.log.count(STREAMING)

    def seconds_until_streaming(self) -> float:
        wait_until("the stream runs", lambda: self.check() and STREAMING in self.log, 600)
        return time.monotonic() - self._began

    def check(self) -> bool:
        """Return True, or end the benchmark with the log if the process has ended."""
        if self._process.poll() is not None:
            raise SystemExit(f"the connector has ended:\n{self.log[-5000:]}")
        return True

    def look(self) -> dict[str, int]:
        """Return memory in bytes (now, and the peak), threads and open files."""
        return look(self.pid)

    def _look(self) -> None:
        while not self._closing.wait(_LOOK_S):
            try:
                self.seen.append(self.look())
            except (OSError, KeyError):  # it has ended
                return
            if self._spool is not None:
                self.spool_bytes = max(self.spool_bytes, _disk_bytes(self.pid, self._spool))

    def stop(self) -> int:
        """Stop it; return its peak of memory in bytes."""
        peak = self.look()["peak"]
        self._closing.set()
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(120)
        return peak

    def kill(self) -> None:
        self._closing.set()
        self._process.kill()
        self._process.wait()


def look(pid: int) -> dict[str, int]:
    """Return a process's memory in bytes (now, and the peak), threads and open files."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    return {
        "memory": int(status["VmRSS"].split()[0]) * 1024,
        "peak": int(status["VmHWM"].split()[0]) * 1024,
        "threads": int(status["Threads"]),
        "files": len(list(Path(f"/proc/{pid}/fd").iterdir())),
    }


def family(pid: int) -> list[int]:
    """Return the process and all below it."""
    children: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # the thread has just ended
            children += map(int, task.read_text().split())
    return [pid, *(each for child in children for each in family(child))]


def _disk_bytes(pid: int, folder: Path) -> int:
    """What the process's open files of this folder take; they have no names."""
    total = 0
    for each in Path(f"/proc/{pid}/fd").iterdir():
        try:
            if str(each.readlink()).startswith(str(folder)):
                total += each.stat().st_blocks * 512
        except OSError:  # it has just been closed
            continue
    return total
