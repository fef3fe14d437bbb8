"""The public interface is what docs/reference/interface.json lists: a change of it is noticed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import twofold_spark

ROOT = Path(__file__).parents[3]
LISTED = ROOT / "docs/reference/interface.json"


def test_the_interface_is_the_listed_one() -> None:
    made = subprocess.run(
        [sys.executable, ROOT / "deploy/interface.py"], capture_output=True, text=True, check=True, timeout=60
    )
    assert json.loads(made.stdout) == json.loads(LISTED.read_text()), (
        "the public interface has changed. If that was meant: `make interface`, and a line in CHANGELOG.md"
    )


def test_the_page_says_what_each_exported_name_is_for() -> None:
    page = (ROOT / "docs/reference/interface.md").read_text()
    told = set(re.findall(r"\w+", page))
    assert set(twofold_spark.__all__) <= told


def test_every_exported_name_is_there() -> None:
    for name in twofold_spark.__all__:
        assert getattr(twofold_spark, name) is not None
