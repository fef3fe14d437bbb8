"""Programs of the command line: Kafka's console consumer, with Apicurio's deserializer for the
registry, and kcat.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from bench.connect import locked

from clients.flink_gateway import lock
from clients.rows import CannotReadError, Rows, fold_envelopes, value_of
from clients.samples import Sample
from clients.tables import Table
from twofold.stack import server_files
from twofold_common import java

DESERIALIZER: Final = (
    "an Avro deserializer on its classpath and `--skip-message-on-error`; who reads the text knows the types"
)
LISTS: Final = "such a deserializer; who reads the text looks at `special` and `unchanged` too"
_IDLE_MS = 8000


class ConsoleConsumer:
    """`kafka-console-consumer`; what it prints is Avro's text of a record, which is JSON."""

    name = "Kafka's console consumer"
    at_once = 1

    def ways(self, _table: Table) -> tuple[str, ...]:
        return ("", DESERIALIZER, LISTS)

    def __init__(self, folder: Path, bootstrap: str, registry: str, prefix: str) -> None:
        self._folder = folder
        self._bootstrap = bootstrap
        self._prefix = prefix
        address = urlsplit(registry)
        self._registry = f"{address.scheme}://{address.netloc}/apis/registry/v2"
        self._printed: dict[str, list[str]] = {}
        self._undecoded = ""

    def read(self, way: str, table: Table, samples: Sequence[Sample]) -> Rows:
        if not way:
            raise CannotReadError("prints the bytes" if "\0" in self._plain() else "prints no bytes")
        types = {sample.column: sample.type for sample in table.samples}
        envelopes = [json.loads(line) for line in self._lines(table)]
        for envelope in envelopes:
            after = envelope["after"] or {}
            after |= {name: _value(shown, types[name]) for name, shown in after.items() if name in types}
        return fold_envelopes(envelopes, lists=way == LISTS)

    def _plain(self) -> str:
        """Without a deserializer; that does the same with every topic, so one time is enough."""
        if not self._undecoded:
            self._undecoded = "\n".join(self._run(rf"{self._prefix}\.public\..*"))
        return self._undecoded

    def _lines(self, table: Table) -> list[str]:
        if not self._printed:
            options = {
                "apicurio.registry.url": self._registry,
                "apicurio.registry.as-confluent": "true",
                "apicurio.registry.use-id": "contentId",
            }
            deserializer = ["--value-deserializer", "io.apicurio.registry.serde.avro.AvroKafkaDeserializer"]
            # It hands a tombstone to the deserializer as the text "null", which is no record of the
            # registry's.
            deserializer.append("--skip-message-on-error")
            for name, value in options.items():
                deserializer += ["--formatter-property", f"value.deserializer.{name}={value}"]
            for line in self._run(rf"{self._prefix}\.public\..*", *deserializer):
                if line.startswith("{"):  # No tombstone, and none of the log's lines.
                    self._printed.setdefault(json.loads(line)["source"]["table"], []).append(line)
        return self._printed[table.table]

    def _run(self, topics: str, *options: str) -> list[str]:
        jars = (
            *server_files.fetched(lock("console")),
            *server_files.fetched(server_files.locked("kafka")),
            *server_files.fetched(locked("converter")),
        )
        command = [
            str(java.for_kafka().program),
            *("-XX:TieredStopAtLevel=1", "-Dfile.encoding=UTF-8", "-Dstdout.encoding=UTF-8"),
            *("-cp", ":".join(map(str, jars)), "org.apache.kafka.tools.consumer.ConsoleConsumer"),
            *("--bootstrap-server", self._bootstrap, "--include", topics, "--from-beginning"),
            *("--isolation-level", "read_committed", "--timeout-ms", str(_IDLE_MS), *options),
        ]
        done = subprocess.run(command, capture_output=True, cwd=self._folder, check=False, timeout=240)
        lines = done.stdout.decode(errors="replace").splitlines()
        if not lines:
            raise CannotReadError(done.stderr.decode(errors="replace").strip()[-300:])
        return lines


def _value(shown: Any, type_: str) -> Any:
    """Avro writes bytes as text of Latin 1."""
    if isinstance(shown, list):
        return [_value(item, type_.removesuffix("[]")) for item in shown]
    is_bytes = type_ == "bytea" or type_.startswith(("numeric(", "cents"))
    return value_of(shown.encode("latin-1") if is_bytes and isinstance(shown, str) else shown, type_)


def kcat_says(bootstrap: str, registry: str, topic: str) -> str:
    """What kcat does with a topic, in a sentence; whether it is there at all."""
    program = shutil.which("kcat")
    if program is None:
        return "not tried: kcat is not on PATH"
    common = [program, "-b", bootstrap, "-C", "-t", topic, "-e", "-q", "-X", "isolation.level=read_committed"]
    avro = subprocess.run(
        [*common, "-s", "value=avro", "-r", registry], capture_output=True, check=False, timeout=60, text=True
    )
    if avro.returncode == 0 and '"after"' in avro.stdout:
        return "prints the envelopes with `-s value=avro -r <registry>`"
    framed = subprocess.run([*common, "-f", "%S %K %o\n"], capture_output=True, check=True, timeout=60, text=True)
    records = [line.split() for line in framed.stdout.splitlines()]
    tombstones = sum(size == "-1" for size, _, _ in records)
    why = (avro.stderr.strip().splitlines() or ["no output"])[-1].removeprefix("% ERROR: ")[:200]
    return (
        f'cannot: `-s value=avro` answers "{why}"; lengths, keys\' bytes and offsets of {len(records)} records '
        f"({tombstones} tombstones) are there, and whole bytes with `-f '%R%s'` for a program behind it"
    )
