"""The alert rules speak of metrics that are there, and each has its entry in the runbook; so has
each exit status.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from twofold import errors
from twofold.kafka.watch import EXIT_STALLED

ROOT = Path(__file__).parents[3]
RULES: list[dict[str, Any]] = yaml.safe_load((ROOT / "deploy/prometheus/twofold-alerts.yml").read_text())["groups"][0][
    "rules"
]
HEADINGS = {
    re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-")
    for heading in re.findall(r"^#+ (.*)$", (ROOT / "docs/use/runbook.md").read_text(), re.MULTILINE)
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["alert"]))
def test_an_alert(rule: dict[str, Any]) -> None:
    documented = set(re.findall(r"`(twofold_\w+)`", (ROOT / "docs/reference/metrics.md").read_text()))
    used = set(re.findall(r"twofold_\w+", rule["expr"]))
    assert used <= documented
    assert used
    assert "job=" not in rule["expr"], "a job may have any name"
    file, _, anchor = rule["annotations"]["runbook"].partition("#")
    assert file == "docs/use/runbook.md"
    assert anchor in HEADINGS


def test_every_exit_status_has_its_entry() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.TwofoldError)]
    for status in {kind.exit_status for kind in kinds} | {EXIT_STALLED}:
        assert any(heading.startswith(f"status-{status}-") for heading in HEADINGS), status
