"""DuckDB with its Iceberg extension, in a process and an environment of its own (uv's group
`readers`)."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[3]


def command(*words: str) -> list[str]:
    """Return the command of DuckDB's process, or of one that runs a script with these words."""
    uv = shutil.which("uv") or str(ROOT / ".tools/bin/uv")
    alone = ("run", "--isolated", "--quiet", "--locked", "--only-group", "readers", "--python", sys.executable)
    return [uv, *alone, "python", "-I", str(Path(__file__).with_name("duckdb_process.py")), *words]


class DuckdbProcess:
    """The process; used by one thread."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            command(),
            cwd=ROOT,
            env={**os.environ, "UV_PYTHON_DOWNLOADS": "never"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def ask(self, statement: str) -> list[list[Any]]:
        """Run a statement, and return its rows."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(statement) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline() or '{"error": "DuckDB has ended"}')
        if "error" in answer:
            raise RuntimeError(f"DuckDB: {answer['error']}")
        rows: list[list[Any]] = answer["rows"]
        return rows

    def close(self) -> None:
        with self._process as process:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
