"""Kafka Connect with Debezium's connectors on loopback: one distributed worker with exactly-once,
from locked jars, tuned for throughput.

What is set and why: docs/inside/performance.md. One worker serves all runs, so its code is warm;
each run is a connector of its own.
"""

from __future__ import annotations

import json
import shutil
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from psycopg.conninfo import conninfo_to_dict

from twofold.stack import server_files
from twofold.stack.process import LOOPBACK, GuardedProcess, LocalServer, choose_port
from twofold_common import artifacts, java
from twofold_common.artifacts import Artifact

_JVM = ("-XX:+UseParallelGC", "-Djava.net.preferIPv4Stack=true")
_HEAP = ("-Xms512m", "-Xmx4g")
_START_S = 180
_ANSWER_S = 60
SOON_S = 5
"""For whoever asks again."""
_LOG4J = """\
appender.console.type = Console
appender.console.name = STDOUT
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{ISO8601} %p %c{1} %m%n
rootLogger.level = WARN
rootLogger.appenderRef.stdout.ref = STDOUT
logger.dbz.name = io.debezium
logger.dbz.level = INFO
"""


def locked(name: str) -> tuple[Artifact, ...]:
    return artifacts.read_lock(Path(__file__).with_name(f"{name}.lock").read_text())


def debezium_settings(dsn: str, name: str, publication: str, partitions: int) -> dict[str, str]:
    """Of Debezium's connector for a database, exactly once.

    `name` prefixes its topics, and is its slot's.
    """
    source = conninfo_to_dict(dsn)
    return {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "tasks.max": "1",
        "database.hostname": str(source["host"]),
        "database.port": str(source["port"]),
        "database.user": str(source["user"]),
        "database.dbname": str(source["dbname"]),
        "topic.prefix": name,
        "plugin.name": "pgoutput",
        "slot.name": name,
        "publication.name": publication,
        "publication.autocreate.mode": "disabled",
        "exactly.once.support": "required",
        "topic.creation.default.partitions": str(partitions),
        "topic.creation.default.replication.factor": "1",
    }


def converter_settings(kind: Mapping[str, str]) -> dict[str, str]:
    """Of a connector whose keys and values one converter writes or reads; "" names its class."""
    return {f"{part}.converter{name}": value for part in ("key", "value") for name, value in kind.items()}


def avro_converter(registry_port: int) -> dict[str, str]:
    return {
        "": "io.apicurio.registry.utils.converter.AvroConverter",
        ".apicurio.registry.url": f"http://{LOOPBACK}:{registry_port}/apis/registry/v2",
        ".apicurio.registry.auto-register": "true",
        ".apicurio.registry.find-latest": "true",
    }


class ConnectWorker(LocalServer):
    """One worker; `make` and `remove` connectors in it."""

    def __init__(
        self,
        folder: Path,
        bootstrap: str,
        *,
        plugins: Sequence[str] = ("debezium",),
        group: str = "bench-connect",
        jvm: Sequence[str] = _HEAP,
    ) -> None:
        """`plugins` are the lock files of the archives with the connectors."""
        self.folder = folder
        self.log = folder / "connect.log"
        self._bootstrap = bootstrap
        self._plugins = plugins
        self._group = group
        self._jvm = (*_JVM, *jvm)
        self._port = choose_port(None, "Kafka Connect")

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self._port}"

    def start(self) -> None:
        """Returns when the worker takes connectors."""
        self.launch()
        self.await_answers()

    def await_answers(self) -> None:
        assert self._process is not None, "the worker was launched"
        self._process.wait_until(self._answers, seconds=_START_S)

    def launch(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        jars = ":".join(map(str, server_files.fetched(locked("connect"))))
        log4j, properties = self.folder / "log4j2.properties", self.folder / "worker.properties"
        log4j.write_text(_LOG4J)
        properties.write_text("".join(f"{name}={value}\n" for name, value in self._settings().items()))
        command: list[str | Path] = [
            java.for_kafka().program,
            *self._jvm,
            f"-Dlog4j2.configurationFile={log4j}",
            "-cp",
            jars,
        ]
        command += ["org.apache.kafka.connect.cli.ConnectDistributed", properties]
        self._process = GuardedProcess("Kafka Connect", command, log=self.log)

    def make(self, name: str, config: Mapping[str, str]) -> None:
        self._call("PUT", f"/connectors/{name}/config", config)

    def remove(self, name: str) -> None:
        self._call("DELETE", f"/connectors/{name}")

    def restart(self, name: str) -> None:
        """What of a connector has failed."""
        self._call("POST", f"/connectors/{name}/restart?includeTasks=true&onlyFailed=true", timeout_s=SOON_S)

    def failure(self, name: str, timeout_s: float = _ANSWER_S) -> str | None:
        """Why a connector does not run, if it has failed."""
        try:
            status = self._call("GET", f"/connectors/{name}/status", timeout_s=timeout_s)
        except urllib.error.HTTPError:
            # Not known to the worker yet: it was asked for a moment ago.
            return None
        parts = [status["connector"], *status["tasks"]]
        return next((str(part.get("trace", part)) for part in parts if part["state"] == "FAILED"), None)

    def _settings(self) -> dict[str, str]:
        topics = {f"{kind}.storage.topic": f"{self._group}-{kind}" for kind in ("config", "offset", "status")}
        return {
            "bootstrap.servers": self._bootstrap,
            "group.id": self._group,
            **topics,
            **{f"{kind}.storage.replication.factor": "1" for kind in ("config", "offset", "status")},
            "offset.storage.partitions": "1",
            "status.storage.partitions": "1",
            "exactly.once.source.support": "enabled",
            "key.converter": "org.apache.kafka.connect.json.JsonConverter",
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            "key.converter.schemas.enable": "false",
            "value.converter.schemas.enable": "false",
            "listeners": self.url,
            "plugin.path": str(self._plugin_folder()),
            "plugin.discovery": "hybrid_warn",
            "connector.client.config.override.policy": "All",
            "scheduled.rebalance.max.delay.ms": "0",
        }

    def _plugin_folder(self) -> Path:
        """The archives' contents and the converter's jars, each in a folder of its own."""
        folder = self.folder / "plugins"
        for plugin in self._plugins:
            (archive,) = locked(plugin)
            shutil.copytree(server_files.unpacked(archive), folder / plugin, dirs_exist_ok=True)
        converter = folder / "converter"
        converter.mkdir(exist_ok=True)
        for jar in server_files.fetched(locked("converter")):
            shutil.copy(jar, converter / jar.name)
        return folder

    def _answers(self) -> bool:
        try:
            self._call("GET", "/connectors")
        except OSError:
            # Not listening yet, or still joining its group: the caller asks again until its
            # deadline.
            return False
        return True

    def _call(self, method: str, path: str, body: Mapping[str, str] | None = None, timeout_s: float = _ANSWER_S) -> Any:
        request = urllib.request.Request(
            f"{self.url}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            return json.loads(answer.read() or b"null")
