"""The page that shows a person what `init` would run is what it runs."""

from __future__ import annotations

from pathlib import Path

from twofold.source.ddl_messages import install_script

PAGE = Path(__file__).parents[3] / "docs/reference/event-triggers.sql"


def test_the_page_has_the_statements() -> None:
    assert PAGE.read_text() == install_script("bank"), "run: make interface"
