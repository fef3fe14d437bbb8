"""A command whose output is a secret: a password or a token that expires.

It is asked again for each connection, without a shell, and must end within `LIMIT_S`. The secret is
the first line of its output. Neither its output nor its errors are repeated anywhere, because both
may hold the secret; its arguments are not either.
"""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from twofold_common.errors import Unreachable

LIMIT_S: Final = 15.0


@dataclass(frozen=True, slots=True)
class SecretCommand:
    """The command that a setting names."""

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
        secret = output.partition(b"\n")[0].rstrip(b"\r")
        try:
            text = secret.decode()
        except UnicodeDecodeError:
            raise self._failure("gave an output that is not UTF-8") from None
        if not text.strip():
            raise self._failure("gave no output")
        return text

    def _failure(self, what: str) -> Unreachable:
        return Unreachable(
            f"the command of {self.setting}, {self.arguments[0]}, {what}; remedy: run it as this process's user, and correct it"
            " (its output is not shown, because it may hold the secret)"
        )


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
