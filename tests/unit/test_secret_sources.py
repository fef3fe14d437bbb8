"""A file or a command that gives a secret: what it gives, and how a failure is told."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from twofold_common import secret_sources
from twofold_common.errors import Unreachable
from twofold_common.secret_sources import SecretCommand, SecretFile


def python(script: str) -> SecretCommand:
    return SecretCommand("source.password_command", (sys.executable, "-c", script))


def test_rotation_asks_again_and_takes_the_first_line() -> None:
    command = python("import time; print(time.monotonic_ns()); print('not this')")
    assert int(command.ask()) < int(command.ask())


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("import sys; print('hunter2'); sys.exit('hunter2')", "ended with status 1"),
        ("import os; print('hunter2', flush=True); os.kill(os.getpid(), 9)", "ended with status -9"),
        ("pass", "has an empty first line"),
        ("print(' '); print('hunter2')", "has an empty first line"),
        (r"import sys; sys.stdout.buffer.write(b'\xff\n')", "has a first line that is not UTF-8"),
    ],
    ids=["status", "killed", "nothing", "blank", "bytes"],
)
def test_rotation_tells_a_failure_without_the_secret(script: str, said: str) -> None:
    with pytest.raises(Unreachable, match=said) as failed:
        python(script).ask()
    assert "source.password_command" in str(failed.value)
    assert "hunter2" not in repr(failed.value)


def test_rotation_reads_the_file_again(tmp_path: Path) -> None:
    file = SecretFile("source.password_file", tmp_path / "secret")
    for secret in ("one", "two"):
        file.path.write_text(f"{secret}\r\nnot this\n")
        assert file.ask() == secret


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "No such file"), (b" \nhunter2\n", "has an empty first line"), (b"hunter2\xff\n", "is not UTF-8")],
    ids=["absent", "blank", "bytes"],
)
def test_rotation_tells_what_is_wrong_with_a_file(tmp_path: Path, content: bytes | None, said: str) -> None:
    file = SecretFile("source.password_file", tmp_path / "secret")
    if content is not None:
        file.path.write_bytes(content)
    with pytest.raises(Unreachable, match=rf"source\.password_file, .*secret, .*{said}") as failed:
        file.ask()
    assert "hunter2" not in f"{failed.value!r}{failed.value.__cause__!r}"


def test_rotation_tells_a_command_that_does_not_exist() -> None:
    with pytest.raises(Unreachable, match=r"/nowhere/at-all, cannot be started \(No such file or directory\)"):
        SecretCommand("source.password_command", ("/nowhere/at-all", "hunter2")).ask()


def test_rotation_waits_no_longer_than_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its children end with it."""
    monkeypatch.setattr(secret_sources, "LIMIT_S", 0.2)
    begun = time.monotonic()
    with pytest.raises(Unreachable, match="has not ended within"):
        python("import subprocess; subprocess.run(['sleep', '60'])").ask()
    assert time.monotonic() - begun < 20
