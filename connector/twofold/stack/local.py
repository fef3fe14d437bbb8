"""The three servers together: started side by side, ready together, ended together."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from twofold.stack import server_files
from twofold.stack.kafka import SMALL_JVM, KafkaCluster
from twofold.stack.postgres import PostgresServer
from twofold.stack.registry import RegistryServer


@dataclass(frozen=True, slots=True)
class Ports:
    """Ports that the caller chose; None takes a free one."""

    postgres: int | None = None
    kafka: int | None = None
    registry: int | None = None


class LocalStack:
    """PostgreSQL, Kafka and a registry in one folder, as a context manager.

    Without a folder it makes one, and removes it at the end unless something failed: the logs then
    say why.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        postgres: str | None = None,
        brokers: int = 1,
        registry: bool = True,
        ports: Ports | None = None,
        postgres_settings: Mapping[str, str] | None = None,
        kafka_settings: Mapping[str, str] | None = None,
        kafka_jvm: Sequence[str] = SMALL_JVM,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`say` receives what is being waited for."""
        self._say = say
        server_files.require_linux()
        self._temporary = folder is None
        self.folder = temporary_folder() if folder is None else folder.absolute()
        ports = ports or Ports()
        self.postgres = PostgresServer(
            self.folder / "postgres", version=postgres, port=ports.postgres, settings=postgres_settings
        )
        self.kafka = KafkaCluster(
            self.folder / "kafka", brokers=brokers, port=ports.kafka, settings=kafka_settings, jvm=kafka_jvm
        )
        self.has_registry = registry
        self.registry = RegistryServer(self.folder / "registry", port=ports.registry if registry else None)

    def start(self) -> None:
        """Start all three, and return when they are ready; if one fails, none stays."""
        fetch_all(registry=self.has_registry)
        with ThreadPoolExecutor() as pool:
            starting = [pool.submit(self._start, name, server.start) for name, server in self._servers.items()]
            try:
                wait(starting, return_when=FIRST_EXCEPTION)
                for future in starting:
                    if future.done():
                        future.result()
            except BaseException:
                # An error or Ctrl-C: what has started ends, until no thread is left that could
                # start another.
                while wait(starting, timeout=0.1).not_done:
                    self.stop()
                self.stop()
                raise

    def _start(self, name: str, start: Callable[[], None]) -> None:
        self._say(f"{name}: starting")
        began = time.monotonic()
        start()
        self._say(f"{name}: ready after {time.monotonic() - began:.0f} s")

    def stop(self) -> None:
        """Stop all three side by side, each to its end; then raise the first error."""
        with ThreadPoolExecutor() as pool:
            stopping = [pool.submit(server.stop) for server in self._servers.values()]
        for future in stopping:
            future.result()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()
        if self._temporary and kind is None:
            shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def _servers(self) -> dict[str, PostgresServer | KafkaCluster | RegistryServer]:
        return {
            "PostgreSQL": self.postgres,
            "Kafka": self.kafka,
            **({"registry": self.registry} if self.has_registry else {}),
        }


def fetch_all(*, registry: bool = True) -> None:
    """Download everything at once before anything starts, so that progress is one line."""
    server_files.fetched(server_files.locked("kafka") + (server_files.locked("registry") if registry else ()))


def temporary_folder() -> Path:
    """Return a fresh folder that an unprivileged PostgreSQL can reach."""
    folder = Path(tempfile.mkdtemp(prefix="stack-", dir=server_files.open_folder()))
    folder.chmod(0o755)
    return folder
