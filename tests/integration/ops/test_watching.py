"""A running connector watched over HTTP: what it says is what happened, and it says it to those
alone who may ask.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fixtures.connector import Installation, Maker, wait_until
from twofold.stack.process import choose_port


def get(run_or_port: int, path: str, **headers: str) -> tuple[int, str]:
    try:
        with urlopen(Request(f"http://127.0.0.1:{run_or_port}{path}", headers=headers), timeout=10) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


def port_of(said: Callable[[], str]) -> int:
    return int(wait_until(lambda: re.search(r"status page: http://127\.0\.0\.1:(\d+)/", said()))[1])


def status(port: int, **headers: str) -> dict[str, Any]:
    return dict(json.loads(get(port, "/api/status", **headers)[1]))


@pytest.fixture(scope="module")
def bank(module_connector: Maker) -> Installation:
    return module_connector(status={"listen": "127.0.0.1:0"}, prepared={"pool": 1, "hold": 1}, log={"format": "json"})


@pytest.fixture(scope="module")
def port(bank: Installation) -> int:
    return port_of(bank.start().said)


def value(port: int, name: str, **labels: str) -> float:
    families = text_string_to_metric_families(get(port, "/metrics")[1])
    found = (s.value for f in families for s in f.samples if s.name == name and s.labels.items() >= labels.items())
    return next(found, math.nan)  # what is not known yet is not said


@pytest.mark.core
def test_it_is_healthy_and_ready(port: int) -> None:
    wait_until(lambda: get(port, "/healthz") == (200, "running, the slot is held\n"))
    assert get(port, "/readyz")[0] == 200


@pytest.mark.core
def test_metrics_count_what_was_committed(bank: Installation, port: int) -> None:
    before = {n: value(port, n) for n in ("twofold_rows_total", "twofold_transactions_total")}
    bank.sql(*(f"INSERT INTO account VALUES ({n}, 0, 'x'), ({n + 1}, 0, 'y')" for n in range(1000, 1010, 2)))
    wait_until(lambda: value(port, "twofold_transactions_total") == before["twofold_transactions_total"] + 5)
    assert value(port, "twofold_rows_total") == before["twofold_rows_total"] + 10
    assert value(port, "twofold_commit_latency_seconds_count") >= 1
    assert value(port, "twofold_state", state="running") == 1
    wait_until(lambda: value(port, "twofold_behind_bytes") == 0)
    assert value(port, "twofold_source_up") == 1


@pytest.mark.core
def test_a_prepared_transaction_is_seen_open_then_parked_then_ended(bank: Installation, port: int) -> None:
    parked_before = value(port, "twofold_prepared_total", state="parked")
    bank.prepare("a<b>", "INSERT INTO account VALUES (2000, 0, 'x')")
    wait_until(lambda: [(m["gid"], m["state"], m["rows"]) for m in status(port)["in_doubt"]] == [("a<b>", "open", 1)])
    parked = wait_until(lambda: [m for m in status(port)["in_doubt"] if m["state"] == "parked"])[0]
    assert "prepared.hold" in parked["park_reason"]
    assert parked["parked_at"] - parked["opened_at"] == pytest.approx(1, abs=0.9)
    wait_until(lambda: status(port)["in_doubt"][0]["owner"] == bank.ask("SELECT current_user"))
    bank.sql("COMMIT PREPARED 'a<b>'")
    ended = wait_until(lambda: [m for m in status(port)["ended"] if m["gid"] == "a<b>"])[0]
    assert (ended["gid"], ended["outcome"]) == ("a<b>", "committed")
    wait_until(lambda: not status(port)["in_doubt"])
    assert value(port, "twofold_prepared_total", state="parked") == parked_before + 1


def table(port: int, name: str) -> dict[str, Any]:
    return next((t for t in status(port)["tables"] if t["table"] == name), {"rows": 0, "state": "", "changed_at": 0})


def journal(port: int) -> list[str]:
    """What happened, newest first."""
    return [f"{line['what']}: {line['text']}" for line in status(port)["journal"]]


@pytest.mark.core
def test_each_table_counts_the_rows_that_were_published_of_it(bank: Installation, port: int) -> None:
    before = {name: table(port, f"public.{name}")["rows"] for name in ("account", "transfer")}
    bank.sql("INSERT INTO account SELECT g, 0, 'x' FROM generate_series(4000, 4049) g")
    wait_until(lambda: table(port, "public.account")["rows"] == before["account"] + 50)
    bank.prepare("counted", "INSERT INTO account VALUES (4100, 0, 'x')")
    bank.sql("COMMIT PREPARED 'counted'")
    seen = wait_until(lambda: (t := table(port, "public.account"))["rows"] == before["account"] + 51 and t)
    assert seen["topic"] == f"{bank.prefix}.public.account"
    assert (seen["state"], seen["errors"]) == ("ready", 0)
    assert abs(seen["changed_at"] - status(port)["now"]) < 60
    assert table(port, "public.transfer")["rows"] == before["transfer"]


@pytest.mark.core
def test_the_journal_tells_of_new_versions_parks_and_loads(bank: Installation, port: int) -> None:
    bank.sql("ALTER TABLE account ADD COLUMN told text", "INSERT INTO account VALUES (4200, 0, 'x', 'y')")
    wait_until(lambda: any(what.startswith("new version: public.account (schema ") for what in journal(port)))
    bank.twofold("backfill", "start", "public.account", ok=True)
    wait_until(lambda: "load ended: public.account" in journal(port))
    told = journal(port)
    assert told.index("load ended: public.account") < told.index("load begun: public.account")
    bank.prepare("journal", "INSERT INTO account VALUES (4300, 0, 'x', 'y')")
    wait_until(lambda: any("journal" in line["text"] for line in status(port)["journal"] if line["kind"] == "parked"))
    bank.sql("ROLLBACK PREPARED 'journal'")
    wait_until(lambda: table(port, "public.account")["state"] == "ready")


@pytest.mark.core
def test_every_metric_is_documented(port: int) -> None:
    documented = (Path(__file__).parents[3] / "docs/reference/metrics.md").read_text()
    families = list(text_string_to_metric_families(get(port, "/metrics")[1]))
    assert len(families) > 20
    for family in families:
        if family.name.startswith("twofold_"):
            assert f"`{family.name}{'_total' if family.type == 'counter' else ''}" in documented, family.name
        assert len(family.samples) <= 20, f"{family.name} has too many series"


@pytest.mark.core
def test_a_foreign_name_is_not_answered(port: int) -> None:
    """A web site that points its own name here, so that a browser lets it read the answer."""
    assert get(port, "/api/status", Host="evil.example")[0] == 403
    assert get(port, "/api/status", Host=f"localhost:{port}")[0] == 200


@pytest.mark.core
def test_the_page_is_one_file_without_foreign_hosts(port: int) -> None:
    code, page = get(port, "/")
    assert code == 200
    assert re.findall(r"""(?:src|href)=["'](?!#|data:|metrics)""", page) == []
    assert set(re.findall(r"https?://[^\"' )]+", page)) <= {"http://www.w3.org/2000/svg"}


@pytest.mark.core
def test_log_lines_are_json(bank: Installation, port: int) -> None:
    lines = [json.loads(line) for line in bank.runs[0].said().splitlines()]
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)


@pytest.mark.core
def test_a_second_instance_says_that_it_stands_by(bank: Installation, port: int) -> None:
    second = bank.start(ready=False)
    other = port_of(second.said)
    wait_until(lambda: get(other, "/readyz")[0] == 503 and "standing by" in get(other, "/readyz")[1])
    assert get(other, "/healthz")[0] == 200
    second.stop()


def test_it_says_why_it_recovers_and_why_it_has_ended(connector: Maker) -> None:
    bank = connector(status={"listen": "127.0.0.1:0"})
    run = bank.start()
    port = port_of(run.said)
    wait_until(lambda: status(port)["phase"] == "running")
    bank.ask(f"SELECT pg_terminate_backend({bank.slot('active_pid')})")
    wait_until(lambda: status(port)["totals"]["recoveries"] == 2)
    assert "RunEnded" in [e["cause"] for e in status(port)["journal"]] or "Unreachable" in [
        e["cause"] for e in status(port)["journal"]
    ]
    bank.sql(f'DROP PUBLICATION "{bank.prefix}"', "INSERT INTO account VALUES (3000, 0, 'x')")
    seen = wait_until(lambda: (found := status(port))["phase"] in {"refused", "failed"} and found)
    assert seen["journal"][0]["what"] == "the process ends"
    assert run.ended() != 0


@pytest.mark.core
def test_the_token_is_asked_for_and_its_file_read_again(connector: Maker, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("a short one")
    bank = connector(status={"listen": "127.0.0.1:0", "token_file": str(token)})
    port = port_of(bank.start().said)
    assert get(port, "/metrics", Authorization="Bearer a short one")[0] == 200
    token.write_text("a long one")
    for path in ("/metrics", "/api/status"):
        assert get(port, path)[0] == 401
        assert get(port, path, Authorization="Bearer another")[0] == 401
        assert get(port, path, Authorization="Bearer a long one")[0] == 200
    assert get(port, "/healthz")[0] == 200


def test_a_port_that_is_taken_costs_the_page_and_not_the_run(bank: Installation, port: int, connector: Maker) -> None:
    other = connector(status={"listen": f"127.0.0.1:{port}"})
    assert "no status page, no metrics" in other.start().said()


def test_the_terminal_has_the_lag_of_the_page(connector: Maker) -> None:
    """From outside only the last progress is known, and WAL that nothing of was published counts
    until the next.
    """
    bank = connector(status={"listen": f"127.0.0.1:{choose_port(None, 'page')}"}, turn={"idle_progress": 3600.0})
    bank.start()
    port = int(bank.file.read_text().partition('listen = "127.0.0.1:')[2].partition('"')[0])
    bank.sql("CREATE TABLE unseen AS SELECT generate_series(1, 2000)")
    wait_until(lambda: status(port)["path"]["behind_bytes"] == 0)
    words = bank.twofold("status", ok=True).stdout
    assert re.search(r"^in Kafka .*, 0 bytes of WAL behind$", words, re.MULTILINE), words
    bank.configure({"status": {"listen": "none"}})
    words = bank.twofold("status", ok=True).stdout
    assert re.search(r"^in Kafka .*, at most [1-9][0-9,]+ bytes of WAL behind$", words, re.MULTILINE), words
