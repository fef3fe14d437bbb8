"""Apicurio Registry on loopback, with Confluent's API and Confluent's default compatibility.

Its data is an H2 file that survives kill -9.
"""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any, Final

from twofold.stack import server_files
from twofold.stack.process import LOOPBACK, GuardedProcess, LocalServer, choose_port
from twofold_common import java
from twofold_common.http_client import open_url

_JVM: Final = ("-Xms64m", "-Xmx320m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true")
_READY_SUBJECT: Final = "twofold-stack-ready"
_START_S: Final = 120


class RegistryServer(LocalServer):
    """One registry: data, port and log stay the same."""

    def __init__(self, folder: Path, *, port: int | None = None) -> None:
        self.folder = folder
        self.log = folder / "registry.log"
        self.port = choose_port(port, "the registry")

    @property
    def url(self) -> str:
        """The address for clients of Confluent's API."""
        return self.address(self.port)

    @staticmethod
    def address(port: int) -> str:
        return f"http://{LOOPBACK}:{port}/apis/ccompat/v7"

    def start(self) -> None:
        """Start it, and return when a schema has been registered."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (artifact,) = server_files.locked("registry")
        program = server_files.unpacked(artifact) / "quarkus-run.jar"
        choose_port(self.port, "the registry")
        settings = {
            "quarkus.http.host": LOOPBACK,
            "quarkus.http.port": self.port,
            # By default this port opens on all interfaces.
            "quarkus.management.host": LOOPBACK,
            "quarkus.management.port": choose_port(None, "the registry's management"),
            "apicurio.storage.kind": "sql",
            "apicurio.storage.sql.kind": "h2",
            # By default H2 writes half a second after it has answered: kill -9 would take a schema
            # whose id is in Kafka.
            "apicurio.datasource.url": f"jdbc:h2:file:{self.folder.absolute() / 'registry'};WRITE_DELAY=0",
        }
        options = [f"-D{name}={value}" for name, value in settings.items()]
        self._process = GuardedProcess(
            "the registry", [java.for_registry().program, *_JVM, *options, "-jar", program], log=self.log
        )
        self._process.wait_until(self._registers, seconds=_START_S)

    def restart(self) -> None:
        self.stop()
        self.start()

    def _registers(self) -> bool:
        try:
            self.prove_ready(self.url)
        except OSError:
            # Not listening yet, or answering with an error while it starts: the caller asks again
            # until its deadline.
            return False
        return True

    @staticmethod
    def prove_ready(url: str) -> None:
        """Set the default compatibility, register a schema, delete it; OSError if not ready."""
        subject = f"{url}/subjects/{_READY_SUBJECT}"
        _call("PUT", f"{url}/config", {"compatibility": "BACKWARD"})
        _call("POST", f"{subject}/versions", {"schema": '"string"'})
        _call("DELETE", subject)
        _call("DELETE", f"{subject}?permanent=true")


def _call(method: str, address: str, body: dict[str, Any] | None = None) -> None:
    request = urllib.request.Request(  # noqa: S310  (the caller's own address)
        address,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/vnd.schemaregistry.v1+json"},
    )
    open_url(request, timeout_s=10).close()
