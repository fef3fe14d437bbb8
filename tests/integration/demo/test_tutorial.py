"""docs/learn/tutorial.md, word by word: each grey box is typed into one shell, and what it says
must be the box below.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from twofold_common import java

PAGE = Path(__file__).parents[3] / "docs/learn/tutorial.md"
BOX = re.compile(r"^```(sh|text)\n(.*?)^```", re.DOTALL | re.MULTILINE)
MARK = "--- that was the box, with status"


def matches(said: str, shown: str) -> bool:
    """`...` is anything within a line; alone in a line, any lines or none."""
    lines = (
        r"(?:[^\n]*\n)*?" if line == "..." else re.escape(line).replace(re.escape("..."), r"[^\n]*?") + r"\n"
        for line in shown.strip().splitlines()
    )
    return re.fullmatch("".join(lines), f"{said.strip()}\n") is not None


def test_matching() -> None:
    assert matches("a 1 b\nc\nd\ne", "a ... b\n...\ne")
    assert matches("a", "...\na")
    assert not matches("a b\nx", "a b")
    assert not matches("a\nb", "a...b")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_tutorial(open_folder: Path) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "JAVA_HOME": str(java.spark_java_home())}
    shell = subprocess.Popen(
        ["bash", "-m"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=open_folder, env=environment, text=True
    )
    assert shell.stdin is not None
    assert shell.stdout is not None

    def typed(box: str) -> str:
        assert shell.stdin is not None
        assert shell.stdout is not None
        shell.stdin.write(f'{box}\necho "{MARK} $?"\n')
        shell.stdin.flush()
        said: list[str] = []
        for line in shell.stdout:
            if line.startswith(MARK):
                assert line == f"{MARK} 0\n", f"{box}\nended with {line}{''.join(said)}"
                return "".join(said)
            said.append(line)
        raise AssertionError(f"the shell has ended in {box}: {said}")

    try:
        boxes = [*BOX.findall(PAGE.read_text()), ("end", "")]
        for (kind, box), (following, shown) in pairwise(boxes):
            if kind == "sh":
                said = typed(box)
                if following == "text":
                    assert matches(said, shown), f"typed:\n{box}\nsaid:\n{said}\nshown:\n{shown}"
    finally:
        shell.stdin.write("kill -9 %% 2> /dev/null; twofold stack down --folder $PWD/stack\n")
        shell.stdin.close()
        shell.wait(60)
        shell.stdout.close()
