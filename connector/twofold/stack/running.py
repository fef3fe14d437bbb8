"""A stack that outlives a command: its folder, whether it runs, and how another process finds and
ends it.

The process that runs a stack holds a lock on a file in its folder. The kernel frees the lock with
the process, so a dead stack never looks alive.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Self

from twofold.errors import SetupError, Unreachable, UsageError
from twofold.stack import server_files
from twofold.stack.local import LocalStack


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The addresses of a running stack."""

    postgres: str
    postgres_version: int
    kafka: str
    registry: str | None
    folder: str
    pid: int

    @classmethod
    def of(cls, stack: LocalStack) -> Self:
        return cls(
            postgres=stack.postgres.dsn(),
            postgres_version=stack.postgres.version,
            kafka=stack.kafka.bootstrap,
            registry=stack.registry.url if stack.has_registry else None,
            folder=str(stack.folder),
            pid=os.getpid(),
        )


def default_folder() -> Path:
    """Return the default folder: not below the home folder, which PostgreSQL may not reach."""
    return server_files.open_folder() / "stack"


@contextmanager
def holding(folder: Path) -> Iterator[None]:
    """Make this process the one that runs the folder's stack."""
    _make(folder)
    with _lock_file(folder) as lock:
        if not _take_lock(lock):
            raise UsageError(f"a stack already runs in {folder}: twofold stack down, or choose another --folder")
        lock.truncate(0)
        lock.write(b"%d" % os.getpid())
        lock.flush()
        _state(folder).unlink(missing_ok=True)
        try:
            yield
        finally:
            _state(folder).unlink(missing_ok=True)


def publish(endpoints: Endpoints) -> None:
    """Tell other processes that the stack is ready, and its addresses."""
    place = _state(Path(endpoints.folder))
    part = place.with_suffix(".part")
    part.write_text(json.dumps(asdict(endpoints)))
    part.replace(place)


def endpoints(folder: Path) -> Endpoints | None:
    """Return the addresses of the running stack, or None if none is ready."""
    try:
        with _lock_file(folder) as lock:
            if _take_lock(lock):
                return None
            return Endpoints(**json.loads(_state(folder).read_text()))
    except FileNotFoundError:
        return None


def detach(folder: Path, arguments: Sequence[str], say: Callable[[str], None]) -> Endpoints:
    """Run `twofold stack up` in a session of its own, and return when it is ready.

    `say` is given what it says meanwhile.
    """
    _make(folder)
    log = folder / "stack.log"
    with log.open("wb") as output:
        child = subprocess.Popen(
            [sys.executable, "-m", "twofold", "stack", "up", "--folder", folder, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # the addresses, which this process prints
            stderr=output,
            start_new_session=True,
        )
    said = 0
    while True:
        lines = log.read_text().splitlines()
        for line in lines[said:]:
            if child.poll() is None:  # its last line is the error
                say(line)
        said = len(lines)
        if (found := endpoints(folder)) is not None and found.pid == child.pid:
            # It lives on; what Popen says of a running child at the end of its parent is not so
            # here.
            child.returncode = 0
            return found
        if child.poll() is not None:
            lines = log.read_text().strip().splitlines()
            raise SetupError(lines[-1].removeprefix("twofold: ") if lines else f"the stack ended at once (log: {log})")
        time.sleep(0.1)


def end(folder: Path, *, seconds: float = 60) -> bool:
    """End the running stack, or one that starts, and wait for its end; False if there was none."""
    pid = _holder(folder)
    if pid is None:
        return False
    with suppress(ProcessLookupError), os.fdopen(os.pidfd_open(pid), "rb") as process:
        signal.pidfd_send_signal(process.fileno(), signal.SIGTERM)
        # Not until the lock is free: it is given up some moments before the process is gone.
        ended = select.poll()
        ended.register(process, select.POLLIN)
        if not ended.poll(seconds * 1000):
            raise Unreachable(
                f"the stack in {folder} has not ended within {seconds:.0f} s: kill -9 {pid}, and its servers follow"
            )
    return True


def _holder(folder: Path) -> int | None:
    """Return the process that holds the lock; None if nobody does."""
    try:
        with _lock_file(folder) as lock:
            if _take_lock(lock):
                return None
            return int((folder / "stack.lock").read_bytes() or b"0") or None
    except FileNotFoundError:
        return None


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _lock_file(folder):
            pass
    except OSError as error:
        raise UsageError(
            f"the stack's folder {folder} cannot be made or written: {error.strerror}; remedy: choose another with --folder"
        ) from None


def _state(folder: Path) -> Path:
    return folder / "stack.json"


def _lock_file(folder: Path) -> IO[bytes]:
    return (folder / "stack.lock").open("ab") if folder.is_dir() else (folder / "stack.lock").open("rb")


def _take_lock(lock: IO[bytes]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
