"""A real Prometheus: the one on PATH, or Debian's package unpacked into the cache, so that nothing is installed."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.parse
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from twofold.stack.process import GuardedProcess, choose_port
from twofold_avro.artifacts import cache_folder


def program(name: str) -> Path:
    """`prometheus` or `promtool`; skips the test where neither the machine nor its packages have it."""
    if found := shutil.which(name):
        return Path(found)
    folder = cache_folder() / "prometheus"
    if not (folder / "usr/bin" / name).exists():
        folder.mkdir(parents=True, exist_ok=True)
        got = None
        if shutil.which("apt-get") and shutil.which("dpkg-deb"):
            got = subprocess.run(["apt-get", "download", "prometheus"], cwd=folder, capture_output=True, check=False)
        if got is None or got.returncode:
            pytest.skip("no Prometheus on PATH, and apt-get has none: install it (Debian: apt-get install prometheus)")
        (package,) = folder.glob("prometheus_*.deb")
        subprocess.run(["dpkg-deb", "-x", package, folder], check=True)
        package.unlink()
    return folder / "usr/bin" / name


@dataclass
class Prometheus:
    """Scrapes the addresses every second and evaluates the rules as often."""

    folder: Path
    rules: Path
    port: int = 0

    def start(self, targets: Path) -> None:
        self.port = choose_port(None, "Prometheus")
        (self.folder / "prometheus.yml").write_text(
            json.dumps(
                {
                    "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                    "rule_files": [str(self.rules)],
                    "scrape_configs": [
                        {
                            "job_name": "twofold",
                            "file_sd_configs": [{"files": [str(targets)], "refresh_interval": "1s"}],
                        }
                    ],
                }
            )
        )
        command: list[str | Path] = [program("prometheus"), f"--config.file={self.folder / 'prometheus.yml'}"]
        command += [f"--storage.tsdb.path={self.folder / 'tsdb'}", f"--web.listen-address=127.0.0.1:{self.port}"]
        self._process = GuardedProcess("Prometheus", command, log=self.folder / "prometheus.log")
        self._process.wait_until(self._ready, seconds=60)

    def stop(self) -> None:
        self._process.stop()

    def ask(self, query: str) -> list[dict[str, Any]]:
        """The vector that a query gives now."""
        return list(self._get("query", query=query)["result"])

    def firing(self) -> set[str]:
        return {alert["labels"]["alertname"] for alert in self._get("alerts")["alerts"] if alert["state"] == "firing"}

    def ever_fired(self) -> set[str]:
        """Of those that it has recorded in the last hour."""
        return {each["metric"]["alertname"] for each in self.ask('last_over_time(ALERTS{alertstate="firing"}[1h])')}

    def _ready(self) -> bool:
        try:
            return bool(urlopen(f"http://127.0.0.1:{self.port}/-/ready", timeout=5).status == 200)
        except OSError:
            return False

    def _get(self, what: str, **parameters: str) -> Any:
        url = f"http://127.0.0.1:{self.port}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
        with urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]


def until(holds: Any, within_s: float) -> Any:
    deadline = time.monotonic() + within_s
    while not (found := holds()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found
