"""The page of others' parts names the versions that are locked, each with a licence."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

from twofold_spark import jars

ROW = re.compile(r"^\| `([^`]+)` \| (\S+) \| (.+?) \|$", re.MULTILINE)
PAGE = (Path(__file__).parents[3] / "deploy/third-party.md").read_text()
WHEN_NOT = "deploy/third-party.md is out of date: make sbom"


def test_the_page_has_the_locked_versions() -> None:
    listed = {name: version for name, version, *_ in ROW.findall(PAGE)}
    assert len(ROW.findall(PAGE)) == PAGE.count("\n| `")
    locked = {jar.name: jar.version for jar in jars.locked()}
    packages = {name: metadata.version(name) for name in listed if name not in locked}
    assert listed == {**locked, **packages}, WHEN_NOT


def test_what_the_distributions_want_is_listed() -> None:
    """Directly; what these want in turn is for `make sbom`, which asks uv.lock."""
    listed = {name for name, *_ in ROW.findall(PAGE)}
    for distribution in ("twofold", "twofold-avro", "twofold-common", "twofold-reader", "twofold-spark"):
        for wanted in metadata.requires(distribution) or ():
            name = re.split(r"[^A-Za-z0-9_-]", wanted)[0]
            if "extra ==" not in wanted and not name.startswith("twofold"):
                assert name in listed, WHEN_NOT
    assert "pyspark" in listed
