"""`deploy/make-secrets` makes secrets, or says that it cannot."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[3]


def make(folder: Path, tools: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """Run it where there are these programs alone."""
    programs = folder / "bin"
    programs.mkdir(parents=True)
    for tool in tools:
        found = shutil.which(tool)
        assert found
        (programs / tool).symlink_to(found)
    (folder / "secrets").mkdir()
    script = shutil.copy(ROOT / "deploy/make-secrets", folder)
    return subprocess.run(["/bin/sh", script], env={"PATH": str(programs)}, capture_output=True, text=True, check=False)


def test_they_are_made_once(tmp_path: Path) -> None:
    done = make(tmp_path, ("dirname", "chmod", "od", "tr"))
    assert done.returncode == 0, done.stderr
    secrets = [each.read_text() for each in (tmp_path / "secrets").iterdir()]
    assert len({*secrets}) == 4
    assert {len(each) for each in secrets} == {48}


def test_a_missing_program_is_told_and_leaves_no_empty_secret(tmp_path: Path) -> None:
    done = make(tmp_path, ("dirname", "chmod", "tr"))
    assert done.returncode == 1
    assert "od gave no random bytes" in done.stderr
    assert not list((tmp_path / "secrets").iterdir())
