"""The servers of the laboratory: brokers behind the proxy, a registry and PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from chaos.proxy import Proxy
from twofold.stack import KafkaCluster, PostgresServer, RegistryServer
from twofold.stack.process import choose_port

POSTGRES_SETTINGS = {"wal_sender_timeout": "6s", "max_connections": "100", "logical_decoding_work_mem": "64kB"}


class FrontedKafka:
    """A cluster whose every broker stands behind a front that knows Kafka's frames."""

    def __init__(
        self, folder: Path, ending: ExitStack, *, brokers: int = 1, settings: Mapping[str, str] | None = None
    ) -> None:
        self.fronts = [choose_port(None, "a front") for _ in range(brokers)]
        self.cluster = KafkaCluster(folder / "kafka", brokers=brokers, fronts=self.fronts, settings=settings)
        behind = dict(zip(self.fronts, (node.port for node in self.cluster.nodes), strict=True))
        self.events = folder / "events.jsonl"
        folder.mkdir(parents=True, exist_ok=True)
        self.proxy = Proxy(behind, self.fronts, self.events)
        ending.callback(self.proxy.close)
        ending.callback(self.cluster.stop)
        self.cluster.start()

    @property
    def bootstrap(self) -> str:
        return self.cluster.bootstrap


class Servers:
    """All that a connector needs."""

    def __init__(
        self, folder: Path, ending: ExitStack, *, brokers: int = 1, settings: Mapping[str, str] | None = None
    ) -> None:
        self.registry = RegistryServer(folder / "registry")
        self.postgres = PostgresServer(folder / "postgres", settings=POSTGRES_SETTINGS)
        ending.callback(self.registry.stop)
        ending.callback(self.postgres.stop)
        with ThreadPoolExecutor() as pool:
            others = [pool.submit(server.start) for server in (self.registry, self.postgres)]
            self.kafka = FrontedKafka(folder, ending, brokers=brokers, settings=settings)
            for other in others:
                other.result()
