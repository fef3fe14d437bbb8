"""Each box of README.md, docs/learn and docs/use is run by a test, or this says why not; boxes of
settings are settings.
"""

from __future__ import annotations

import tomllib

import pytest

from helpers.pages import ROOT, find_boxes
from twofold.config import Config

PAGES = ["README.md", *sorted(str(p.relative_to(ROOT)) for part in ("learn", "use") for p in (ROOT / "docs" / part).glob("*.md"))]  # fmt: skip
BOXES = "tests/integration/docs/test_boxes.py"
SPARK = "tests/integration/docs/test_boxes_of_spark.py"
SECURED = "tests/integration/ops/test_security.py"
INSTALL = "tests/integration/ops/test_install.py"
RUN_BY = {
    "README.md": {"make demo": "tests/integration/demo/test_demo.py", "": BOXES},
    "docs/learn/tutorial.md": {"": "tests/integration/demo/test_tutorial.py"},
    "docs/use/backfill.md": {"": BOXES},
    "docs/use/clients.md": {
        "curl": "tests/integration/clients/test_jdbc_sink.py",
        "connector.class": "tests/integration/clients/test_jdbc_sink.py",
        "CREATE TABLE": "tests/integration/clients/test_flink.py",
        "CAST": "tests/integration/clients/test_flink.py",
        "": "tests/integration/clients/test_examples.py",
    },
    "docs/use/install.md": {
        "ALTER SYSTEM": BOXES,
        "python3 -m venv": "tests/integration/test_distributions.py",
        "": INSTALL,
    },
    "docs/use/outbox.md": {"": BOXES},
    "docs/use/reader.md": {"kafka-acls": SECURED, "": "tests/integration/clients/test_whole_transactions.py"},
    "docs/use/runbook.md": {"": BOXES},
    "docs/use/security.md": {"[policy]": BOXES, "[source]": __file__, "CREATE ROLE": INSTALL, "kafka-acls": SECURED},
    "docs/use/spark.md": {
        "python3 -m zipfile": "tests/integration/spark/test_cluster.py",
        "s3.endpoint": "tests/integration/spark/test_object_store.py",
        "public.accounts: 5 rows": "tests/integration/spark/test_last_commit.py",
        "from twofold_spark import DeltaReader": "tests/integration/spark/test_cuts.py",
        "": SPARK,
    },
}
"""By page and the beginning of the first line: the test that types the box, or does the same in
other words.
"""
NOT_HERE = {
    "docs/use/deploy.md": {
        "make wheels": "Docker; tests/integration/deploy/test_compose.py runs it where Docker is",
        "kubectl": "a cluster; make lint-chart renders the chart",
        "install -D": "root and systemd",
    },
    "docs/use/security.md": {"hostssl": "a line of a file: tests/fixtures/secured.py has its own"},
}
"""In the same form: what it needs that a test's machine does not have."""


@pytest.mark.parametrize("page", PAGES)
def test_each_box_is_run_by_a_test(page: str) -> None:
    listed = RUN_BY.get(page, {}) | NOT_HERE.get(page, {})
    used = set()
    for box in find_boxes(page):
        beginnings = [each for each in listed if box.first_line.startswith(each)]
        assert beginnings, f"no test types this box of {page}:\n{box.text}"
        used.add(max(beginnings, key=len))
    assert used == set(listed), "a box that is listed is not on the page"


def test_the_tests_are_there() -> None:
    for listed in RUN_BY.values():
        for test in listed.values():
            assert (ROOT / test).is_file(), test


def test_each_box_of_settings_has_settings() -> None:
    """A misspelt one would be refused by its users' Twofold."""
    needed = {
        "name": "bank",
        "source": {"dsn": "dbname=bank"},
        "kafka": {"bootstrap": "k:9092"},
        "registry": {"url": "http://r"},
    }
    found = 0
    for page in PAGES:
        for box in find_boxes(page):
            if box.kind == "toml" or box.first_line.startswith("[["):
                # `tomllib` does not know the statement behind a section of the outbox page.
                Config.model_validate(needed | tomllib.loads(box.text.partition("\n\nSELECT")[0]))
                found += 1
    assert found == 6
