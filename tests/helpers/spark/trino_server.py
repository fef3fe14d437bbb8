"""A Trino server with one catalog, that of a REST catalog of Iceberg, and its client.

The server is 821 MB, so only the slow forms start it; `trino.lock` is beside this file. It needs
Java 24. Its launcher is left out: it only starts Java with the files that are written here.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from twofold.stack import server_files
from twofold.stack.process import LOOPBACK, GuardedProcess, choose_port
from twofold_common import artifacts, java

CATALOG: Final = "lake"
_JAVA: Final = 24
_MEMORY: Final = "2g"
_LIMIT_S: Final = 60


def rest_catalog(address: str) -> dict[str, str]:
    """Return the properties of a REST catalog whose tables are files of this machine."""
    return {"iceberg.catalog.type": "rest", "iceberg.rest-catalog.uri": address, "fs.hadoop.enabled": "true"}


class TrinoServer:
    """One server, coordinator and worker; `properties` are those of its catalog."""

    def __init__(self, folder: Path, properties: Mapping[str, str]) -> None:
        self._folder = folder
        self._properties = {"connector.name": "iceberg", **properties}
        self._port = choose_port(None, "Trino")
        self._process: GuardedProcess | None = None

    def start(self) -> None:
        lock = Path(__file__).with_name("trino.lock").read_text("utf-8")
        (archive,) = artifacts.read_lock(lock)
        (program,) = server_files.unpacked(archive).iterdir()
        files = self._write_files(program)
        command: list[str | Path] = [
            java.find("Trino", _JAVA).program, f"-Xmx{_MEMORY}", "-XX:+UseSerialGC", "-Djdk.attach.allowAttachSelf=true",
            "--add-modules=jdk.incubator.vector", "--sun-misc-unsafe-memory-access=allow", "--enable-native-access=ALL-UNNAMED",
            f"-Dconfig={files['config']}", f"-Dnode.data-dir={self._folder / 'data'}",
            "-cp", f"{program}/lib/*", "io.trino.server.TrinoServer",
        ]  # fmt: skip
        self._process = GuardedProcess("Trino", command, log=self._folder / "trino.log")
        self._process.wait_until(self._answers, seconds=240)

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop()

    def query(self, statement: str) -> list[list[Any]]:
        """Run a statement, and return its rows."""
        answer, rows = self._ask("/v1/statement", statement.encode()), []
        while True:
            if (error := answer.get("error")) is not None:
                raise RuntimeError(f"Trino: {error['message']}")
            rows += answer.get("data", [])
            if (following := answer.get("nextUri")) is None:
                return rows
            answer = self._ask(following)

    def _ask(self, place: str, body: bytes | None = None) -> dict[str, Any]:
        url = place if place.startswith("http:") else f"http://{LOOPBACK}:{self._port}{place}"
        asked = urllib.request.Request(url, data=body, headers={"X-Trino-User": "reader"})
        with urllib.request.urlopen(asked, timeout=_LIMIT_S) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def _answers(self) -> bool:
        """Whether it is up, and its one node can be given work."""
        try:
            return not self._ask("/v1/info")["starting"] and self.query("SELECT 1") == [[1]]
        except (OSError, RuntimeError):
            return False

    def _write_files(self, program: Path) -> dict[str, Path]:
        """Write its settings; plugins that are not needed would cost it a minute."""
        plugins = self._folder / "plugin"
        plugins.mkdir(parents=True)
        (plugins / "iceberg").symlink_to(program / "plugin" / "iceberg")
        contents: dict[str, Mapping[str, str]] = {
            "config": {
                "coordinator": "true", "node-scheduler.include-coordinator": "true", "node.environment": "test",
                "http-server.http.port": str(self._port), "node.internal-address": LOOPBACK, "node.bind-ip": LOOPBACK,
                "discovery.uri": f"http://{LOOPBACK}:{self._port}", "plugin.dir": str(plugins),
                "catalog.config-dir": str(self._folder / "catalog"), "query.max-memory-per-node": "512MB",
            },
            f"catalog/{CATALOG}": self._properties,
        }  # fmt: skip
        files = {name: self._folder / f"{name}.properties" for name in contents}
        for name, file in files.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("".join(f"{key}={value}\n" for key, value in contents[name].items()))
        return files
