"""A crash of a real connector: it says where its threads were, and leaves no core, in which its
secrets would be.
"""

from __future__ import annotations

import resource
import signal
from pathlib import Path

import pytest

from fixtures.connector import Installation, Maker, Running

SECRET = "hunter2-in-a-core"


@pytest.fixture
def made(connector: Maker, tmp_path: Path) -> Installation:
    (tmp_path / "secret").write_text(SECRET)
    return connector(registry={"username": "twofold", "password_command": ["cat", str(tmp_path / "secret")]})


def crashed(run: Running, number: signal.Signals) -> str:
    run.signal(number)
    assert run.ended() == -number
    return run.said()


@pytest.mark.parametrize("number", [signal.SIGSEGV, pytest.param(signal.SIGABRT, marks=pytest.mark.slow)])
def test_rotation_leaves_no_secret_in_a_core(
    made: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """Where the system's pattern hands cores to a program, only the limit is shown: at 1 the kernel
    starts none.
    """
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
