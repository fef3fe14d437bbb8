"""A server process under guard: started, watched until it is ready, stopped, killed, and never left
behind.

It may touch its folder, loopback ports, and the processes that it starts. When this process ends,
by an exception, a signal or kill -9, the server and all its children end too (guard.py). The
server's output is appended to a log file that is kept.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from twofold.errors import SetupError, Unreachable

LOOPBACK: Final = "127.0.0.1"
_GUARD: Final = Path(__file__).with_name("guard.py")
_PATIENCE_S: Final = 15.0


class GuardedProcess:
    """One run of a server."""

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        log: Path,
        user: str | None = None,
        stop_signal: signal.Signals = signal.SIGTERM,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        guard = [sys.executable, "-I", "-S", _GUARD, user or "-", str(_PATIENCE_S), str(int(stop_signal)), *command]
        with log.open("ab") as output:
            self._log_start = output.tell()
            self._guard = subprocess.Popen(
                guard,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                start_new_session=True,
                cwd=log.parent,
                env={**os.environ, **(environment or {})},
            )
        assert self._guard.stdout is not None
        with self._guard.stdout:
            line = self._guard.stdout.readline()
        if not line:
            self._guard.wait()
            raise SetupError(f"{name} cannot be started: {self.last_words()}")
        self.pid = int(line)

    def running(self) -> bool:
        return self._guard.poll() is None

    def stop(self) -> None:
        """Stop the server in order; kill it if it does not stop in time."""
        assert self._guard.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._guard.stdin.close()
        self._guard.wait()

    def kill(self) -> None:
        """Send kill -9 to the server; its guard ends what it leaves."""
        if self.running():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        self.stop()

    def wait_until(self, ready: Callable[[], bool], *, seconds: float) -> None:
        """Poll until the server is ready; quote its log if it ends before or takes too long."""
        deadline = time.monotonic() + seconds
        while not ready():
            if not self.running():
                raise SetupError(f"{self.name} ended before it was ready: {self.last_words()} (log: {self.log})")
            if time.monotonic() > deadline:
                raise Unreachable(
                    f"{self.name} was not ready within {seconds:.0f} s: {self.last_words()} (log: {self.log})"
                )
            time.sleep(0.05)

    def last_words(self) -> str:
        """Return the line of this run's log that most likely says what went wrong."""
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            lines = [line.strip() for line in log.read().decode(errors="replace").splitlines() if line.strip()]
        for mark in ("FATAL", "Caused by", "Exception", "ERROR", "rror"):
            for line in lines:
                if mark in line:
                    return line[:400]
        return lines[-1][:400] if lines else "it said nothing"


class LocalServer:
    """A server that runs as one process at a time, and keeps its data over stop, kill and start."""

    _process: GuardedProcess | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server was started"
        return self._process.pid

    def stop(self) -> None:
        """End it in order. PostgreSQL ends its sessions and flushes WAL."""
        if self._process is not None:
            self._process.stop()

    def kill(self) -> None:
        """Send kill -9; what it leaves ends too."""
        if self._process is not None:
            self._process.kill()


def choose_port(wanted: int | None, server: str) -> int:
    """Return the wanted port if it is free, else a free one outside the range of outgoing
    connections.

    A client that keeps connecting to a stopped server may otherwise get that very port and connect
    to itself. The server could then not return.
    """
    if wanted is not None:
        if not _is_free(wanted):
            raise SetupError(
                f"port {wanted} for {server} is taken on {LOOPBACK}: end what listens there (ss -ltnp 'sport = :{wanted}') or choose another port"
            )
        return wanted
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    candidates = range(10_000, lowest) if lowest > 12_000 else range(61_000, 65_535)
    # The system's own chance: two processes whose `random` was seeded alike would choose the same
    # port at the same time.
    for port in random.SystemRandom().sample(candidates, min(200, len(candidates))):
        if _is_free(port):
            return port
    raise SetupError(f"no free port for {server} between {candidates[0]} and {candidates[-1]}: end what uses them")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As the servers do: a port in TIME_WAIT is free, one that is listened on is not.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True
