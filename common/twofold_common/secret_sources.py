"""Where secrets come from: a file, or a command that prints one.

Each connection asks again, so a secret may change at any time. The secret is the first line. No
message repeats what a file or a command gave.
"""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from twofold_common.errors import Unreachable

LIMIT_S: Final = 15.0


@dataclass(frozen=True, slots=True)
class SecretFile:
    """The file that a setting names."""

    setting: str
    path: Path

    def ask(self) -> str:
        """Return the secret. A failure is an outage: the next attempt reads the file again."""
        try:
            return _first_line(self.path.read_bytes())
        except OSError as error:
            what = f"cannot be read ({_cause(error)})"
        except ValueError as error:
            what = str(error)
        raise Unreachable(f"the file of {self.setting}, {self.path}, {what}; remedy: write the secret into it")


@dataclass(frozen=True, slots=True)
class SecretCommand:
    """The command that a setting names. It runs without a shell, and must end within `LIMIT_S`."""

    setting: str
    arguments: tuple[str, ...]

    def ask(self) -> str:
        """Return the secret. A failure is an outage: the next attempt asks again."""
        try:
            process = subprocess.Popen(
                self.arguments,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise self._failure(f"cannot be started ({_cause(error)})") from None
        try:
            output, _ = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            raise self._failure(f"has not ended within {LIMIT_S:g} s") from None
        finally:
            _end(process)
        if process.returncode != 0:
            raise self._failure(f"ended with status {process.returncode}")
        try:
            return _first_line(output)
        except ValueError as error:
            raise self._failure(str(error)) from None

    def _failure(self, what: str) -> Unreachable:
        return Unreachable(
            f"the command of {self.setting}, {self.arguments[0]}, {what}; remedy: run it as this process's user, and correct it"
            " (its output is not shown, because it may hold the secret)"
        )


SecretSource: TypeAlias = SecretFile | SecretCommand


def _first_line(text: bytes) -> str:
    """Return the secret. Raise ValueError with what is wrong, which does not repeat the text."""
    try:
        line = text.partition(b"\n")[0].rstrip(b"\r").decode()
    except UnicodeDecodeError:
        raise ValueError("has a first line that is not UTF-8") from None
    if not line.strip():
        raise ValueError("has an empty first line")
    return line


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the command's process and its children, as far as they still run."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _cause(error: OSError | ValueError) -> str:
    return (isinstance(error, OSError) and error.strerror) or type(error).__name__
