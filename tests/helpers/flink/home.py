"""Flink from locked jars, without its scripts: a folder with the configuration that its processes
read, and their command lines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from twofold.stack.process import LOOPBACK
from twofold_common import java

_OPENED: Final = (
    *("java.lang", "java.lang.reflect", "java.net", "java.io", "java.nio", "sun.nio.ch", "java.text", "java.time"),
    *("java.util", "java.util.concurrent", "java.util.concurrent.atomic", "java.util.concurrent.locks"),
)
"""As `env.java.opts.all` of the configuration that Flink ships."""
_SETTINGS: Final = {
    "parallelism.default": "1",
    "table.local-time-zone": "UTC",
    "rest.bind-address": LOOPBACK,
}
_LOG4J: Final = """\
appender.console.type = Console
appender.console.name = STDOUT
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{ISO8601} %p %c{1} %m%n
rootLogger.level = WARN
rootLogger.appenderRef.stdout.ref = STDOUT
"""


class FlinkHome:
    """One configuration and one set of jars, for any number of processes."""

    def __init__(self, folder: Path, jars: Sequence[Path], settings: Mapping[str, str]) -> None:
        self.folder = folder
        self._jars = jars
        self._settings = {**_SETTINGS, **settings}

    @property
    def environment(self) -> Mapping[str, str]:
        """Of its processes."""
        return {"FLINK_CONF_DIR": str(self.folder)}

    def prepare(self) -> None:
        """Write what the processes read."""
        self.folder.mkdir(parents=True, exist_ok=True)
        settings = "".join(f"{name}: {value}\n" for name, value in self._settings.items())
        (self.folder / "config.yaml").write_text(settings)
        self._log4j.write_text(_LOG4J)

    def command(self, main: str, *words: str, jvm: Sequence[str]) -> list[str]:
        """Return the command line of a process, by the name of its class."""
        return [
            str(java.find("Flink", 17, only=(17, 21)).program),
            *(*jvm, "-Duser.timezone=UTC", "-Djava.net.preferIPv4Stack=true", f"-Djava.io.tmpdir={self.folder}"),
            f"-Dlog4j2.configurationFile={self._log4j}",
            *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED),
            *("-cp", ":".join(map(str, self._jars)), main, *words),
        ]

    @property
    def _log4j(self) -> Path:
        return self.folder / "log4j2.properties"
