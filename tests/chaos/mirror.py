"""The Spark job of a round: kept running under faults, then brought to the end of the topics and
checked. Several prefixes are a source group.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chaos.keeper import Keeper
from helpers.spark import class_archive, interpreted
from twofold_common.java import spark_java_home

_ENDS_WITH_KAFKA = (1, 3, 8)
"""Without its brokers a job may end with the error that Spark had, or say at its start that none
answers; who keeps it starts it again. What does not pass by itself is found at the end: the tables
lack rows."""
_TO_THE_END_S = 240
_PATIENCE = ("--kafka", "request.timeout.ms=8000", "--kafka", "socket.connection.setup.timeout.ms=4000")
"""As the connectors have it: the client's own half a minute is a third of a round for each
connection that the network forgets."""


class MirrorJob:
    """`python -m twofold_spark mirror` into a lake of the round's own."""

    def __init__(
        self, folder: Path, bootstrap: str, registry: str, prefixes: Sequence[str], environment: Mapping[str, str], *arguments: str
    ) -> None:  # fmt: skip
        self.lake = folder / "lake"
        self._journal = folder / "journal"
        # The round is over before Java's second compiler would pay.
        quick = {"JAVA_TOOL_OPTIONS": class_archive.find_options(), "JAVA_HOME": str(spark_java_home())}
        self.environment = {**environment, **quick, **interpreted.ENVIRONMENT}
        self._job = [
            sys.executable, "-m", "twofold_spark", "mirror", "--bootstrap", bootstrap, "--registry", registry, "--warehouse", str(self.lake),
            "--batch-rows", "20000", "--maintain-every", "20", *_PATIENCE, *arguments,
        ]  # fmt: skip
        self._prefixes = prefixes
        self.keeper = Keeper(
            "mirror", self._running(prefixes), folder / "mirror.log", self.environment, allowed=_ENDS_WITH_KAFKA
        )  # fmt: skip

    def restart_with(self, prefixes: Sequence[str]) -> None:
        """The group has these members from here on."""
        self._prefixes = prefixes
        self.keeper.change_command(self._running(prefixes))
        self.keeper.stop(0.0)

    def _running(self, prefixes: Sequence[str]) -> list[str]:
        return [*self._of(prefixes), "--trigger", "interval=1s"]

    def _of(self, prefixes: Sequence[str]) -> list[str]:
        return [*self._job, *(word for prefix in prefixes for word in ("--prefix", prefix))]

    def check(self) -> tuple[dict[str, Any], list[str]]:
        """What the checker's other half says, and its lines."""
        self.keeper.close()
        self._run([*self._of(self._prefixes), "--trigger", "available-now"])
        jars = self._run([sys.executable, "-m", "twofold_spark", "jars"]).strip()
        command = [sys.executable, "-m", "chaos.tables", "--warehouse", str(self.lake), "--journal", str(self._journal), "--jars", jars]  # fmt: skip
        lines = self._run(command, statuses=(0, 1)).splitlines()
        found: dict[str, Any] = json.loads(lines[-1])
        return found, lines[:-1]

    def _run(self, command: list[str], statuses: tuple[int, ...] = (0,)) -> str:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_TO_THE_END_S, env={**os.environ, **self.environment}
        )  # fmt: skip
        if done.returncode not in statuses:
            raise RuntimeError(f"{' '.join(command[:4])} ended with {done.returncode}: {done.stderr[-3000:]}")
        return done.stdout
