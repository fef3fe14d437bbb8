"""The checker's process, for the trial of a group."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import IO, Any, Final

from chaos.ground import Servers

CHECKED_S: Final = 900.0


class CheckerProcess:
    """Reads along from its start, and checks all cuts in `end`."""

    def __init__(
        self,
        folder: Path,
        servers: Servers,
        members: list[str],
        warehouse: Path,
        environment: dict[str, str],
        *arguments: str,
    ) -> None:
        jars = subprocess.run(
            [sys.executable, "-m", "twofold_spark", "jars"], capture_output=True, text=True, check=True
        ).stdout.strip()
        command = [
            sys.executable, "-m", "chaos.group.checker", "--bootstrap", servers.kafka.bootstrap, "--registry", servers.registry_url,
            "--warehouse", str(warehouse), "--source", str(folder / "source.json"), "--jars", jars,
            *(word for prefix in members for word in ("--prefix", prefix)), *arguments,
        ]  # fmt: skip
        self._log = folder / "checker.log"
        self._errors: IO[bytes] = self._log.open("wb")
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, **environment},
        )

    def end(self, begun: float, ended: float) -> dict[str, Any]:
        """What it found, and its lines. There were faults between these times."""
        try:
            said, _ = self._process.communicate(json.dumps([begun, ended]), timeout=CHECKED_S)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"the checker took {CHECKED_S:.0f} s: {self._log.read_text()[-3000:]}") from None
        lines = said.splitlines()
        if not lines or not lines[-1].startswith("{"):
            raise RuntimeError(f"the checker failed: {self._log.read_text()[-3000:]}")
        return {**json.loads(lines[-1]), "lines": lines[:-1]}

    def __enter__(self) -> CheckerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()
