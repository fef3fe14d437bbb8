"""The notes of a release are its section of the changelog, and nothing is released without one."""

from __future__ import annotations

import pytest

from release import NotReady, main, notes

CHANGELOG = """# Changelog

## 0.2.0 (unreleased)

New.

## 0.1.0 (2026-12-01)

### Added
- First.

## 0.0.1 (2026-11-01)
- Older.
"""


def test_the_notes_are_the_versions_section() -> None:
    assert notes("0.1.0", CHANGELOG) == "### Added\n- First.\n"
    assert notes("0.0.1", CHANGELOG) == "- Older.\n"


@pytest.mark.parametrize(
    ("version", "why"),
    [
        ("0.2.0", "put the day of the release in place of `unreleased`"),
        ("0.3.0", "has no section `## 0.3.0 "),
        ("0.1", "has no section"),
    ],
)
def test_a_version_without_a_dated_section_is_not_released(version: str, why: str) -> None:
    with pytest.raises(NotReady, match=why):
        notes(version, CHANGELOG)


def test_another_version_than_the_codes_is_not_released() -> None:
    with pytest.raises(NotReady, match=r"run `make version V=99\.0\.0`"):
        main("99.0.0")
