"""Checks that a version may be released, and writes its notes into dist/notes.md.

    python deploy/release.py 0.1.0

The notes are the version's section of CHANGELOG.md. Reads the checkout, writes that one file.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Final

import twofold

ROOT: Final = Path(__file__).parents[1]


class NotReady(Exception):
    """What keeps the version from being released, and the remedy."""


def main(version: str) -> None:
    if version != twofold.__version__:
        raise NotReady(f"the code says version {twofold.__version__}: run `make version V={version}` and commit it")
    (ROOT / "dist/notes.md").write_text(notes(version, (ROOT / "CHANGELOG.md").read_text()))


def notes(version: str, changelog: str) -> str:
    """Return the version's section, without its heading."""
    section = re.search(
        rf"^## {re.escape(version)} \(([^)\n]*)\)\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL
    )
    if section is None:
        raise NotReady(f"CHANGELOG.md has no section `## {version} (date)`: write what the version brings")
    date, text = section.groups()
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", date):
        raise NotReady(f"CHANGELOG.md says `## {version} ({date})`: put the day of the release in place of `{date}`")
    return text.strip() + "\n"


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except NotReady as error:
        sys.exit(f"not ready for a release: {error}")
