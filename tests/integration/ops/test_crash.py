"""A crash of a real connector: it says where its threads were, and leaves no core, in which its
secrets would be.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fixtures.connector import Installation, Maker, Running

SECRET = "hunter2-in-a-core"


@pytest.fixture
def made(connector: Maker, tmp_path: Path) -> Installation:
    """The driver keeps the password of a connection for as long as it lives."""
    (tmp_path / "secret").write_text(SECRET)
    return connector(source={"password_command": ["cat", str(tmp_path / "secret")]})


def crashed(run: Running, number: signal.Signals) -> str:
    run.signal(number)
    assert run.ended() == -number
    return run.said()


@pytest.mark.parametrize("number", [signal.SIGSEGV, pytest.param(signal.SIGABRT, marks=pytest.mark.slow)])
def test_rotation_leaves_no_secret_in_a_core(
    made: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """Where the system's pattern hands cores to a program, only the limit is shown."""
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    if hard != resource.RLIM_INFINITY:
        pytest.skip("no process here may leave a core")
    leaves_files = not Path("/proc/sys/kernel/core_pattern").read_text().startswith(("|", "/"))
    monkeypatch.chdir(tmp_path)
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
    try:
        run, other = made.start(), None
        assert resource.prlimit(run.process.pid, resource.RLIMIT_CORE) == (1, hard)
        said = crashed(run, number)
        assert list(tmp_path.glob("core*")) == []
        other = made.start()
        resource.prlimit(other.process.pid, resource.RLIMIT_CORE, (hard, hard))  # as docs/use/security.md says
        said += crashed(other, number)
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))
    assert said.count("Fatal Python error") == 2
    assert "supervise" in said
    assert SECRET not in said
    if leaves_files:
        [core] = tmp_path.glob("core*")
        assert SECRET.encode() in core.read_bytes()  # so it would have been in the first one
        core.unlink()


MEMORY = """
import os, resource, signal, sys
from twofold_common.crashes import leave_no_core
secret = sys.stdin.readline()
resource.setrlimit(resource.RLIMIT_CORE, ({soft}, {hard}))
{then}
"""
DIES = "os.kill(os.getpid(), signal.SIGABRT)"
CHILD_DIES = f"""
import subprocess
text = "import os, signal, sys; secret = sys.stdin.readline(); {DIES}"
child = subprocess.Popen([sys.executable, "-c", text], stdin=subprocess.PIPE, text=True)
child.communicate(secret)
print(child.pid)
"""


@contextmanager
def cores_go_to_a_program(folder: Path) -> Iterator[None]:
    """Each crash on this machine, for a moment. The kernel waits for the program."""
    settings = {name: Path("/proc/sys/kernel", name) for name in ("core_pattern", "core_pipe_limit")}
    before = {name: file.read_text() for name, file in settings.items()}
    program = folder / "take"
    program.write_text(f"#!/bin/sh\ncat > {folder}/core.$1\n")
    program.chmod(0o755)
    try:
        settings["core_pipe_limit"].write_text("8")
        settings["core_pattern"].write_text(f"|{program} %p")
        yield
    finally:
        for name, file in settings.items():
            file.write_text(before[name])


@pytest.mark.slow  # it changes the machine's core_pattern
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may change core_pattern")
def test_no_secret_is_in_what_a_program_gets_of_a_crash(tmp_path: Path) -> None:
    """Of a process that may leave a core, of one that may not, and of one that it has started."""

    def core(hard: int, then: str, soft: int = 0) -> bytes | None:
        script = MEMORY.format(soft=soft, hard=hard, then=then)
        process = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # fmt: skip
        said, _ = process.communicate(f"{SECRET}\n")
        taken = tmp_path / f"core.{said.strip() or process.pid}"
        return taken.read_bytes() if taken.exists() else None

    with cores_go_to_a_program(tmp_path):
        leaks = [core(0, DIES), core(0, CHILD_DIES)]  # the limit 0 alone does not help
        assert core(0, f"leave_no_core()\n{DIES}") is None
        assert core(1 << 20, f"leave_no_core()\n{DIES}", 1 << 20) is None
        of_child = core(0, f"leave_no_core()\n{CHILD_DIES}")
    assert all(leak is not None and SECRET.encode() in leak for leak in leaks)
    assert of_child is not None
    assert SECRET.encode() not in of_child
