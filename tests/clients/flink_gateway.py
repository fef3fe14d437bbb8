"""Flink's SQL gateway on loopback, from locked jars: one JVM, in which each job has a small cluster
of its own.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from twofold.stack import server_files
from twofold.stack.process import LOOPBACK, GuardedProcess, choose_port
from twofold_common import artifacts, java
from twofold_common.artifacts import Artifact

_START_S = 180
_STATEMENT_S = 180
_OPENED: Final = ("java.util", "java.lang", "java.util.concurrent", "java.time")
_CONFIG: Final = """\
execution.target: local
parallelism.default: 1
table.local-time-zone: UTC
sql-gateway.endpoint.rest.address: {address}
sql-gateway.endpoint.rest.port: {port}
rest.bind-address: {address}
"""
_LOG4J: Final = """\
appender.console.type = Console
appender.console.name = STDOUT
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{ISO8601} %p %c{1} %m%n
rootLogger.level = WARN
rootLogger.appenderRef.stdout.ref = STDOUT
"""
_CHAFF: Final = (
    "Failed to deserialize consumer record",
    "Can't deserialize",
    "Failed to fetchResults",
    "Failed to exec",
)

Change = tuple[str, list[Any]]
"""INSERT, UPDATE_BEFORE, UPDATE_AFTER or DELETE, and the row's values."""


class FlinkError(Exception):
    """Flink refused a statement, or its job failed; the message is the innermost cause."""


class FlinkGateway:
    """A running gateway with one session. `run` takes a statement to its end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._port = choose_port(None, "Flink")
        self._process: GuardedProcess | None = None
        self._session = ""

    def start(self) -> None:
        """Return when statements are taken."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "config.yaml").write_text(_CONFIG.format(address=LOOPBACK, port=self._port))
        log4j = self.folder / "log4j2.properties"
        log4j.write_text(_LOG4J)
        command: list[str | Path] = [
            java.find("Flink", 17, only=(17, 21)).program,
            *("-Xmx768m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Duser.timezone=UTC"),
            *("-Djava.net.preferIPv4Stack=true", f"-Djava.io.tmpdir={self.folder}"),
            f"-Dlog4j2.configurationFile={log4j}",
            *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED),
            *("-cp", ":".join(map(str, server_files.fetched(lock("flink"))))),
            "org.apache.flink.table.gateway.SqlGateway",
        ]
        environment = {"FLINK_CONF_DIR": str(self.folder)}
        self._process = GuardedProcess("Flink", command, log=self.folder / "flink.log", environment=environment)
        self._process.wait_until(self._answers, seconds=_START_S)
        self._session = self._call("POST", "/sessions", {"properties": {}})["sessionHandle"]

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop()

    def run(self, statement: str) -> list[Change]:
        """All changes that the statement gives."""
        path = f"/sessions/{self._session}"
        operation = self._call("POST", f"{path}/statements", {"statement": statement})["operationHandle"]
        next_page: str | None = f"{path}/operations/{operation}/result/0?rowFormat=JSON"
        changes: list[Change] = []
        deadline = time.monotonic() + _STATEMENT_S
        while next_page is not None:
            if time.monotonic() > deadline:
                raise FlinkError(f"no end within {_STATEMENT_S} s: {statement}")
            page = self._call("GET", next_page)
            found = page.get("results", {}).get("data", [])
            changes += [(change["kind"], change["fields"]) for change in found]
            if page["resultType"] != "EOS" and not found:
                time.sleep(0.05)  # The page is asked for again: the job has not filled it yet.
            address = page.get("nextResultUri")
            next_page = None if address is None else address[address.index("/sessions") :]
        return changes

    def _answers(self) -> bool:
        try:
            self._call("GET", "/info")
        except OSError:
            # Not listening yet: the caller asks again until its deadline.
            return False
        return True

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        request = urllib.request.Request(
            f"http://{LOOPBACK}:{self._port}/v3{path}".replace("/v3/v3", "/v3"),
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.loads(answer.read(), parse_float=Decimal)
        except urllib.error.HTTPError as error:
            raise FlinkError(innermost_cause("\n".join(json.loads(error.read())["errors"]))) from error


def lock(name: str) -> tuple[Artifact, ...]:
    """The artifacts of one of this package's lock files."""
    return artifacts.read_lock(Path(__file__).with_name(f"{name}.lock").read_text())


def innermost_cause(trace: str) -> str:
    """The sentence of the last exception in a trace that says more than that something failed."""
    lines = [line for line in trace.splitlines() if "Exception: " in line or "Error: " in line]
    told = [line for line in lines if not any(chaff in line for chaff in _CHAFF)] or lines or [trace]
    _, _, sentence = told[-1].rpartition("Exception: ") if "Exception: " in told[-1] else told[-1].rpartition("Error: ")
    return sentence.partition(" The Debezium Avro message is")[0].strip()[:300]
