"""Apache Kafka on loopback: KRaft nodes that are broker and controller at once, from their jars.

One node by default; three make a real cluster with replication 3 and min.insync.replicas 2. Topics
are never created automatically. Nodes keep data and ports over stop, kill and start.
"""

from __future__ import annotations

import base64
import hashlib
import shutil
import time
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from twofold.errors import SetupError, UsageError
from twofold.stack import server_files
from twofold.stack.process import LOOPBACK, GuardedProcess, LocalServer, choose_port
from twofold_common import artifacts, java

SMALL_JVM: Final = ("-Xms64m", "-Xmx320m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
PRODUCTION_JVM: Final = ("-Xms512m", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35")  # fmt: skip
"""Settings of Kafka's own start script, for measurements.

The small JVM saves memory and start time, at half of the speed.
"""
_FEATURES: Final = "bootstrap.checkpoint"
_READY_TOPIC: Final = "twofold-stack-ready"
_START_S: Final = 120
_LOG4J: Final = """\
Configuration:
  Appenders:
    Console:
      name: STDOUT
      PatternLayout: {pattern: "%d{ISO8601} %p %c{1} %m%n"}
  Loggers:
    Root: {level: INFO, AppenderRef: [{ref: STDOUT}]}
"""


class KafkaNode(LocalServer):
    """One broker-and-controller of a cluster."""

    def __init__(
        self,
        folder: Path,
        number: int,
        port: int,
        controller_port: int,
        front: int | None = None,
        jvm: Sequence[str] = SMALL_JVM,
    ) -> None:
        self.folder = folder
        self._jvm = tuple(jvm)
        self.log = folder / "kafka.log"
        self.number = number
        self.port = port
        self.controller_port = controller_port
        self.front = front or port

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    @property
    def advertised(self) -> str:
        """The address for clients and for the other nodes."""
        return f"{LOOPBACK}:{self.front}"

    @property
    def voter(self) -> str:
        return f"{self.number}@{LOOPBACK}:{self.controller_port}"

    def launch(self, settings: Mapping[str, str], cluster_id: str) -> GuardedProcess:
        """Format new storage and start the node; it is not ready yet."""
        self.folder.mkdir(parents=True, exist_ok=True)
        properties, log4j, data = (self.folder / name for name in ("server.properties", "log4j2.yaml", "data"))
        log4j.write_text(_LOG4J)
        own = {
            "node.id": str(self.number),
            "log.dirs": str(data),
            "listeners": f"CLIENT://{self.address},CONTROLLER://{LOOPBACK}:{self.controller_port}",
            "advertised.listeners": f"CLIENT://{self.advertised}",
        }
        properties.write_text("".join(f"{name}={value}\n" for name, value in {**own, **settings}.items()))
        jars = ":".join(map(str, server_files.fetched(server_files.locked("kafka"))))
        options = (*self._jvm, "-Djava.net.preferIPv4Stack=true", f"-Dlog4j2.configurationFile={log4j}")
        command = [str(java.for_kafka().program), *options, "-cp", jars]
        if not (data / "meta.properties").exists():
            self._format(command, cluster_id, properties, hashlib.sha256(jars.encode()).hexdigest()[:16])
        choose_port(self.port, "Kafka")
        choose_port(self.controller_port, "Kafka's controller")
        self._process = GuardedProcess("Kafka", [*command, "kafka.Kafka", str(properties)], log=self.log)
        return self._process

    def _format(self, command: Sequence[str], cluster_id: str, properties: Path, version: str) -> None:
        """Format new storage.

        The features that Kafka's own tool writes are the same for all nodes of its version, so they
        are kept: the tool is a Java of its own, and takes a quarter of the whole start.
        """
        data = self.folder / "data"
        kept = artifacts.cache_folder() / "kafka-features" / version
        if not kept.exists():
            formatting = [*command, "kafka.tools.StorageTool", "format", f"--cluster-id={cluster_id}"]
            server_files.run("Kafka's storage cannot be formatted", [*formatting, "-c", str(properties)], log=self.log)
            if (data / _FEATURES).exists():  # Kafka 4.4 writes them elsewhere
                server_files.keep(data / _FEATURES, kept)
            return
        data.mkdir(exist_ok=True)
        shutil.copyfile(kept, data / _FEATURES)
        ids = {"cluster.id": cluster_id, "directory.id": _make_id(), "node.id": self.number, "version": 1}
        (data / "meta.properties").write_text("".join(f"{name}={value}\n" for name, value in ids.items()))


class KafkaCluster:
    """All nodes. `kill(0)` and `start(0)` act on one node.

    `fronts` are ports of proxies, one a node: everything except the controllers goes through them.
    """

    def __init__(
        self,
        folder: Path,
        *,
        brokers: int = 1,
        port: int | None = None,
        settings: Mapping[str, str] | None = None,
        fronts: Sequence[int] = (),
        jvm: Sequence[str] = SMALL_JVM,
    ) -> None:
        if not 1 <= brokers <= 9:
            raise UsageError(f"{brokers} brokers: 1 to 9 make sense on one machine")
        if port is not None and brokers > 1:
            raise UsageError("a port can be chosen for one broker only: leave it out")
        self.folder = folder
        self.nodes = [
            KafkaNode(
                folder / f"node{number}", number, choose_port(port, "Kafka"), choose_port(None, "Kafka"), front, jvm
            )
            for number, front in zip(range(brokers), fronts or (None,) * brokers, strict=True)
        ]
        self._settings = {**self._cluster_settings(), **(settings or {})}

    @property
    def bootstrap(self) -> str:
        return ",".join(node.advertised for node in self.nodes)

    def start(self, *numbers: int) -> None:
        """Start all nodes, or the named ones; return when all running ones commit."""
        chosen = self._chosen(numbers)
        self.folder.mkdir(parents=True, exist_ok=True)
        made_for = len(list(self.folder.glob("node*/data")))
        if made_for not in (0, len(self.nodes)):
            raise SetupError(
                f"{self.folder} has the data of {made_for} Kafka nodes, not of {len(self.nodes)}: "
                f"ask for {made_for} brokers or choose another folder"
            )
        cluster_id = self._cluster_id()
        with ThreadPoolExecutor(len(chosen)) as pool:
            started = list(pool.map(lambda node: node.launch(self._settings, cluster_id), chosen))
        began = time.monotonic()
        for node, process in zip(chosen, started, strict=True):
            process.wait_until(lambda node=node: _knows(node), seconds=_START_S)
        started[0].wait_until(self._commits, seconds=max(1.0, _START_S - (time.monotonic() - began)))

    def stop(self, *numbers: int) -> None:
        """Stop all nodes at once, orderly: controllers that are left alone wait for each other."""
        chosen = self._chosen(numbers)
        with ThreadPoolExecutor(len(chosen)) as pool:
            list(pool.map(KafkaNode.stop, chosen))

    def kill(self, *numbers: int) -> None:
        """Send kill -9 to all nodes, or to the named ones."""
        for node in self._chosen(numbers):
            node.kill()

    def restart(self, *numbers: int) -> None:
        self.stop(*numbers)
        self.start(*numbers)

    def _chosen(self, numbers: Sequence[int]) -> list[KafkaNode]:
        return [self.nodes[number] for number in numbers] if numbers else self.nodes

    def _cluster_id(self) -> str:
        """Return an id that is kept beside the data."""
        place = self.folder / "cluster-id"
        if not place.exists():
            place.write_text(_make_id())
        return place.read_text()

    def _cluster_settings(self) -> dict[str, str]:
        replication = str(min(3, len(self.nodes)))
        in_sync = "2" if len(self.nodes) >= 3 else "1"
        settings = {
            "process.roles": "broker,controller",
            "controller.quorum.voters": ",".join(node.voter for node in self.nodes),
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "CLIENT",
            "listener.security.protocol.map": "CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "auto.create.topics.enable": "false",
            "default.replication.factor": replication,
            "min.insync.replicas": in_sync,
            "group.initial.rebalance.delay.ms": "0",
            # A transaction that outlived its timeout is aborted within a second of it instead of
            # ten.
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
            # A node that comes back from kill -9 waits until its former session has run out, 9 s by
            # default.
            "broker.session.timeout.ms": "4000",
            "broker.heartbeat.interval.ms": "500",
            # By default a record without content every half second: most of what an idle node does.
            "metadata.max.idle.interval.ms": "5000",
            # The cleaner's default buffer is half of this heap.
            "log.cleaner.dedupe.buffer.size": str(4 << 20),
            "num.network.threads": "2",
            "num.io.threads": "4",
        }
        for topic in ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic"):
            settings[f"{topic}.replication.factor"] = replication
            settings[f"{topic}.num.partitions"] = "4"
        for topic in ("transaction.state.log", "share.coordinator.state.topic"):
            settings[f"{topic}.min.isr"] = in_sync
        return settings

    def _commits(self) -> bool:
        """Commit one transaction, as a connector would: "started" is not ready."""
        running = [node for node in self.nodes if node._process is not None and node._process.running()]  # noqa: SLF001
        admin = AdminClient(_client(self.bootstrap))
        try:
            if len(admin.list_topics(timeout=5).brokers) < len(running):
                return False
            _make_topic(admin)
            producer = Producer({**_client(self.bootstrap), "transactional.id": _READY_TOPIC})
            producer.init_transactions(10)
            producer.begin_transaction()
            producer.produce(_READY_TOPIC, b"ready")
            producer.commit_transaction(10)
        except (KafkaException, TimeoutError):
            # Not ready: the coordinator still loads, or a broker has not joined. The caller asks
            # again until its deadline.
            return False
        return True


def _make_id() -> str:
    """Make an id as Kafka has them: 22 characters of base64."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


def _knows(node: KafkaNode) -> bool:
    """Whether the node answers clients."""
    try:
        return bool(AdminClient(_client(node.address)).list_topics(timeout=2).brokers)
    except KafkaException:
        return False


def _make_topic(admin: AdminClient) -> None:
    future = admin.create_topics([NewTopic(_READY_TOPIC, num_partitions=1)])[_READY_TOPIC]
    try:
        future.result(10)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise


def _client(bootstrap: str) -> dict[str, str | int | float | bool]:
    # A client that is only asking whether the server is there does not print that it is not.
    return {
        "bootstrap.servers": bootstrap,
        "log_level": 0,
        "reconnect.backoff.max.ms": 200,
        "socket.timeout.ms": 10_000,
    }
