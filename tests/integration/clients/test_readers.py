"""The page of readers says what the readers do: every one of them, once more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
KCAT = "\n## kcat\n"


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_make_clients_writes_the_page_that_is_there(tmp_path: Path) -> None:
    """Except kcat, which a machine may not have."""
    page = tmp_path / "readers.md"
    done = subprocess.run(
        [sys.executable, "-m", "clients", "--page", str(page)],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "tests", ROOT / "benchmarks", ROOT / "deploy"))),
        },
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert set(found) == {"types", "changes", "kcat", "seconds"}
    there = (ROOT / "tests/records/readers-by-type.md").read_text()
    assert page.read_text().partition(KCAT)[0] == there.partition(KCAT)[0]
