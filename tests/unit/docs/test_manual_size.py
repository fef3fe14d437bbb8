"""The manual stays one that a person can read: a page that grows makes another one shorter."""

from __future__ import annotations

from helpers.pages import ROOT

WORDS_MAX = 48_000


def test_the_manual_has_at_most_48_000_words() -> None:
    sizes = {page: len(page.read_text().split()) for page in (ROOT / "docs").rglob("*.md")}
    longest = sorted(sizes, key=lambda page: -sizes[page])[:5]
    assert sum(sizes.values()) <= WORDS_MAX, [(str(page.relative_to(ROOT)), sizes[page]) for page in longest]
