"""The site builds, no link or anchor leads nowhere, and its search shows the right page first.

The search is asked as a browser does it: by the worker that the site delivers, in Node.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SEARCH = Path(__file__).with_name("search.js")
FIRST = {
    "add a table": "use/evolution.html#add-rename-or-drop-a-table",
    "alerts": "use/how-do-i.html#monitor-it-and-get-alerts",
    "ALTER TABLE": "use/evolution.html",
    "backfill": "use/backfill.html",
    "commit record": "reference/topics.html#commit-records",
    "configuration": "reference/configuration.html",
    "consistent cut": "use/spark.html#consistent-cuts-all-tables-as-of-one-moment",
    "debezium": "learn/comparison.html",
    "disk full": "use/how-do-i.html#stop-postgresqls-disk-from-filling-up-wal",
    "docker compose": "use/deploy.html#docker-compose",
    "duckdb": "use/how-do-i.html#read-the-mirror-with-duckdb-trino-or-pyiceberg",
    "exit status": "reference/command-line.html#exit-statuses",
    "failover": "use/how-do-i.html#survive-a-failover-of-postgresql",
    "helm": "use/deploy.html#kubernetes-and-helm",
    "hide a column": "use/how-do-i.html#hide-a-column-or-leave-it-out",
    "How do I install it?": "use/install.html",
    "kubernetes": "use/deploy.html",
    "lag": "use/how-do-i.html#find-out-why-the-lag-grows",
    "lost slot": "use/how-do-i.html#recover-from-a-lost-slot",
    "monitoring": "use/deploy.html#monitoring",
    "outbox": "use/outbox.html",
    "password": "use/security.html",
    "PostgreSQL has invalidated slot": "reference/refusals.html#postgresql-has-invalidated-slot-slot",
    "prometheus": "reference/metrics.html",
    "rds": "services/rds.html",
    "reload a table": "use/backfill.html",
    "remove a table": "use/how-do-i.html#remove-a-table",
    "rename a column": "use/how-do-i.html#change-or-rename-a-column",
    "rewind": "use/how-do-i.html#rewind-a-consumer-and-read-everything-again",
    "skip a transaction": "use/how-do-i.html#skip-a-transaction-or-a-row",
    "start over": "reference/refusals.html#start-over",
    "synchronous prepare": "learn/two-phase.html#synchronous-prepare",
    "too large": "reference/refusals.html#a-record-of-topic-partition-is-too-large-for-kafka-it-has-n-bytes",
    "TwofoldBehind": "use/runbook.html#twofoldbehind",
    "uninstall": "use/upgrade.html",
    "upgrade": "use/upgrade.html",
    "verify": "use/spark.html#compare-the-mirror-with-the-source-verify",
    "who should not": "learn/comparison.html#who-should-not-take-twofold",
}
"""What people type, and what comes first."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs") / "site"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr  # told to be quiet it counts no warnings either
    return folder


def test_the_site_is_built_without_a_warning(site: Path) -> None:
    assert "fonts.googleapis" not in (site / "index.html").read_text()


def test_the_search_has_no_measurements(site: Path) -> None:
    pages = {entry["location"] for entry in json.loads((site / "search/search_index.json").read_text())["docs"]}
    assert "inside/protocol.html" in pages
    assert not [page for page in pages if "measurements" in page]


def test_the_search_shows_the_right_page_first(site: Path) -> None:
    node = shutil.which("node")
    if node is None:
        assert "CI" not in os.environ, "CI must not pass over the search"
        pytest.skip("Node runs the search's worker, and is not on this machine")
    done = subprocess.run([node, SEARCH, site, *FIRST], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    found = dict(zip(FIRST, map(json.loads, done.stdout.splitlines()), strict=True))
    assert {query: pages[:1] for query, pages in found.items()} == {query: [page] for query, page in FIRST.items()}
