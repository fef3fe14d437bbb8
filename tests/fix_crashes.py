"""The crash matrix, docs/crash-matrix.md: a test that has seen something die, go on and compare equal says so with `died(...)`.

The table is written only if TWOFOLD_CRASH_MATRIX names the file (`make crash-matrix`). Lines that are there stay, and their counts grow: it tells how often each was seen, in all runs that wrote it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

HEAD = """# The crash matrix

Written by the tests themselves (`make crash-matrix`): a line is a death that a test has seen, after which the connector went on and its topics were compared, whole, with a ledger that triggers keep in the source.
Times run: in how many runs of the tests that was so.

| step | who died | what follows | test | times run |
|---|---|---|---|---|
"""


class Death(NamedTuple):
    step: str
    who: str
    follows: str
    test: str


Died = Callable[[str, str, str], None]
_seen = pytest.StashKey[Counter[Death]]()


@pytest.fixture
def died(request: pytest.FixtureRequest) -> Died:
    """`died("after_flush", "twofold run", "what follows")`, once the comparison held."""

    def note(step: str, who: str, follows: str) -> None:
        module = request.node.nodeid.partition("::")[0].rpartition("/")[2].removesuffix(".py")
        name = getattr(request.node, "originalname", request.node.name)
        request.config.stash.setdefault(_seen, Counter())[Death(step, who, follows, f"{module}::{name}")] += 1

    return note


def pytest_sessionfinish(session: pytest.Session) -> None:
    named = os.environ.get("TWOFOLD_CRASH_MATRIX")
    seen = session.config.stash.get(_seen, None)
    if named and seen:
        file = Path(named)
        file.write_text(table(read(file.read_text() if file.exists() else "") + seen))


def read(text: str) -> Counter[Death]:
    """The lines of a table that was written before."""
    rows = (line.strip("| ").split(" | ") for line in text.removeprefix(HEAD).splitlines() if line.startswith("| "))
    return Counter(
        {Death(*(cell.strip("`") for cell in cells[:4])): int(cells[4]) for cells in rows if cells[4].isdigit()}
    )


def table(deaths: Counter[Death]) -> str:
    lines = (f"| `{d.step}` | {d.who} | {d.follows} | `{d.test}` | {n} |\n" for d, n in sorted(deaths.items()))
    return HEAD + "".join(lines)
