"""Flink's SQL gateway on loopback, from locked jars."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from helpers.flink.home import FlinkHome
from twofold.stack.process import LOOPBACK, GuardedProcess, choose_port

_START_S = 180
_STATEMENT_S = 180
_JVM: Final = ("-Xmx768m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
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
    """A running gateway with one session. `run` takes a statement to its end.

    The settings say where its jobs run: with `execution.target = local`, each in a small cluster of
    its own in the gateway's JVM.
    """

    def __init__(self, folder: Path, jars: Sequence[Path], settings: Mapping[str, str]) -> None:
        self._port = choose_port(None, "Flink")
        place = {"sql-gateway.endpoint.rest.address": LOOPBACK, "sql-gateway.endpoint.rest.port": str(self._port)}
        self._home = FlinkHome(folder, jars, {**settings, **place})
        self._process: GuardedProcess | None = None
        self._session = ""

    def start(self) -> None:
        """Return when statements are taken."""
        self._home.prepare()
        command = self._home.command("org.apache.flink.table.gateway.SqlGateway", jvm=_JVM)
        log = self._home.folder / "flink.log"
        self._process = GuardedProcess("Flink", command, log=log, environment=self._home.environment)
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


def innermost_cause(trace: str) -> str:
    """The sentence of the last exception in a trace that says more than that something failed."""
    lines = [line for line in trace.splitlines() if "Exception: " in line or "Error: " in line]
    told = [line for line in lines if not any(chaff in line for chaff in _CHAFF)] or lines or [trace]
    _, _, sentence = told[-1].rpartition("Exception: ") if "Exception: " in told[-1] else told[-1].rpartition("Error: ")
    return sentence.partition(" The Debezium Avro message is")[0].strip()[:300]
