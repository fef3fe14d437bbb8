"""Alert rules and dashboard on a real Prometheus that scrapes a real connector: quiet under healthy
load, and each rule fires on its fault.

With the real thresholds and waiting times the rules run in promtool's time
(deploy/prometheus/twofold-alerts.test.yml). Against servers they wait for a second, and thresholds
that take hours or gigabytes are small: what is shown there is that the real metrics of a real fault
are what the rule looks at. The slow ones: make alerts.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml  # type: ignore[import-untyped]

from fixtures.connector import Installation, Maker, Running, frozen, wait_until
from fixtures.prometheus import Prometheus, program
from helpers.connector.mirror_place import write_place
from twofold.stack import PostgresServer
from twofold.stack.process import choose_port

DEPLOY = Path(__file__).parents[3] / "deploy"
RULES = DEPLOY / "prometheus/twofold-alerts.yml"
DASHBOARD = json.loads((DEPLOY / "grafana/twofold.json").read_text())
SMALL = {
    "TwofoldBehind": ("> 60", "> 6"),
    "TwofoldMirrorBehind": ("> 300", "> 6"),
    "TwofoldInDoubtTooLong": ("> 600", "> 6"),
    "TwofoldWalHeld": ("> 10 * 1024 * 1024 * 1024", "> 48 * 1024 * 1024"),
}
QUERIES = sorted({target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]})
NOT_ALWAYS = ("twofold_slot_safe_bytes", "twofold_mirror_")
"""Metrics of what a source, or an installation, need not have."""


def test_the_rules_fire_on_their_faults_and_not_in_a_healthy_hour() -> None:
    rules = RULES.with_suffix(".test.yml")
    done = subprocess.run(
        [program("promtool"), "test", "rules", rules.name],
        cwd=rules.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    tested = set(re.findall(r"alertname: (\w+), exp_alerts", rules.read_text()))
    assert tested == {rule["alert"] for rule in yaml.safe_load(RULES.read_text())["groups"][0]["rules"]}


def test_the_dashboards_metrics_are_documented() -> None:
    documented = set(re.findall(r"`(twofold_\w+)`", (DEPLOY.parent / "docs/reference/metrics.md").read_text()))
    for query in QUERIES:
        assert {re.sub("_bucket$", "", name) for name in re.findall(r"twofold_\w+", query)} <= documented, query


def quick(folder: Path) -> Path:
    """The rules as a test can await them."""
    text = yaml.safe_load(RULES.read_text())
    for rule in text["groups"][0]["rules"]:
        rule["for"] = "1s"
        if rule["alert"] in SMALL:
            large, small = SMALL[rule["alert"]]
            assert large in rule["expr"]
            rule["expr"] = rule["expr"].replace(large, small)
    (folder / "rules.yml").write_text(yaml.safe_dump(text))
    return folder / "rules.yml"


class Watched:
    """A connector under a Prometheus."""

    def __init__(self, folder: Path, bank: Installation, port: int, rules: Path) -> None:
        self.bank = bank
        self.targets = folder / "targets.json"
        self.targets.write_text(json.dumps([{"targets": [f"127.0.0.1:{port}"]}]))
        self.prometheus = Prometheus(folder, rules)
        self.run: Running = bank.start()
        self.prometheus.start(self.targets)

    def fires(self, alert: str, within_s: float = 60) -> None:
        wait_until(lambda: alert in self.prometheus.firing(), within_s, f"{alert} fires")

    def quiet(self, within_s: float = 60) -> None:
        wait_until(lambda: not self.prometheus.firing(), within_s, f"{self.prometheus.firing()} are quiet again")


@pytest.fixture
def watched(
    tmp_path: Path, connector: Maker, own_postgres: Callable[..., PostgresServer]
) -> Iterator[Callable[[Path], tuple[Watched, PostgresServer]]]:
    made: list[Watched] = []

    def make(rules: Path) -> tuple[Watched, PostgresServer]:
        server, port = own_postgres(settings={"fsync": "off"}), choose_port(None, "the page")
        bank = connector(conninfo=server.dsn(), status={"listen": f"127.0.0.1:{port}"})
        made.append(Watched(tmp_path, bank, port, rules))
        return made[0], server

    yield make
    for each in made:
        each.prometheus.stop()


def load(bank: Installation, seconds: float) -> None:
    """Plain and prepared transactions, some hundred a second."""
    end = time.monotonic() + seconds
    with psycopg.connect(bank.conninfo, autocommit=True) as connection:
        while time.monotonic() < end:
            connection.execute("INSERT INTO account SELECT max(id) + 1, 0, 'x' FROM account")
            connection.execute("UPDATE account SET version = version + 1 WHERE id = (SELECT max(id) FROM account)")
            for statement in ("BEGIN", "INSERT INTO account SELECT max(id) + 1, 0, 'y' FROM account", "PREPARE TRANSACTION 'load'", "COMMIT PREPARED 'load'"):  # fmt: skip
                connection.execute(statement)
            time.sleep(0.01)


def mirror_at(bank: Installation, sequence: int) -> None:
    write_place(bank, json.dumps({"sequence": sequence, "applied_lsn": 1, "committed_us": 0}), offset=1)


@pytest.mark.slow
def test_each_rule_fires_on_its_fault(watched: Any, tmp_path: Path) -> None:
    it, server = watched(quick(tmp_path))
    bank, prometheus = it.bank, it.prometheus
    bank.sql("INSERT INTO account VALUES (1, 0, 'x')")
    load(bank, 15)
    assert prometheus.ever_fired() == set()
    for query in QUERIES:
        if not any(name in query for name in NOT_ALWAYS):
            assert prometheus.ask(query.replace("$instance", ".*").replace("$__rate_interval", "1m")), query

    mirror_at(bank, 1)
    it.fires("TwofoldMirrorBehind")
    assert prometheus.ask("twofold_mirror_behind_bytes")
    mirror_at(bank, 1 << 40)
    it.quiet()

    bank.prepare("forgotten", "INSERT INTO account VALUES (-1, 0, 'x')")
    it.fires("TwofoldInDoubtTooLong")
    for _ in range(4):
        bank.sql("SELECT pg_logical_emit_message(false, 'x', 'x')", "SELECT pg_switch_wal()")
    it.fires("TwofoldWalHeld")
    bank.sql("ROLLBACK PREPARED 'forgotten'")
    bank.sql("CHECKPOINT")
    it.quiet()

    bank.sql("ALTER SYSTEM SET max_slot_wal_keep_size = '1GB'", "SELECT pg_reload_conf()")
    it.fires("TwofoldSlotNearlyLost")
    bank.sql("ALTER SYSTEM RESET max_slot_wal_keep_size", "SELECT pg_reload_conf()")
    it.quiet()

    with frozen(bank.slot("active_pid")):  # PostgreSQL sends nothing, and the connector is well
        bank.sql("INSERT INTO account VALUES (-2, 0, 'x')")
        it.fires("TwofoldBehind")
    it.quiet()

    for _ in range(6):
        wait_until(lambda: bank.slot("active_pid"))
        bank.ask(f"SELECT pg_terminate_backend({bank.slot('active_pid')}, 5000)")
    it.fires("TwofoldRestarts")

    server.stop()
    it.fires("TwofoldSourceAway")
    it.fires("TwofoldNoneActive")
    server.start()
    wait_until(lambda: prometheus.firing() <= {"TwofoldRestarts"})

    it.run.kill9()
    it.fires("TwofoldDown")


@pytest.mark.slow
@pytest.mark.timeout(5000)
def test_no_rule_fires_in_an_hour_of_healthy_load(watched: Any) -> None:
    """TWOFOLD_ALERT_MINUTES makes it shorter. The rules are as they are."""
    it, _ = watched(RULES)
    it.bank.sql("INSERT INTO account VALUES (1, 0, 'x')")
    load(it.bank, 60 * float(os.environ.get("TWOFOLD_ALERT_MINUTES", "60")))
    assert it.prometheus.ask('count_over_time(twofold_ready{job="twofold"}[1h])'), "it has scraped"
    assert it.prometheus.ever_fired() == set()
