"""The boxes of the pages, and a shell in which a test types them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from twofold_common import java

ROOT = Path(__file__).parents[2]
_BOX = re.compile(
    r"^```(?P<kind>\w*)\n(?P<fenced>(?:.*\n)*?)```$|(?<=\n\n)(?P<indented>(?: {4}.*\n|\n)+)", re.MULTILINE
)
_CONTINUES_A_LIST = re.compile(r"^(?:[-*]|\d+\.) .*(?:\n .*)*\n*\Z", re.MULTILINE)


class Box(NamedTuple):
    """A box of a page."""

    kind: str
    """The language behind the fence; empty for none, and for an indented box."""
    text: str

    @property
    def first_line(self) -> str:
        return self.text.partition("\n")[0]


def find_boxes(page: str) -> list[Box]:
    """Return the boxes of a page, in order; the path is from the repository's root."""
    text = (ROOT / page).read_text()
    found = []
    for match in _BOX.finditer(text):
        if (indented := match["indented"]) is None:
            found.append(Box(match["kind"], match["fenced"]))
        elif not _CONTINUES_A_LIST.search(text[: match.start()]):
            found.append(Box("", re.sub("^ {4}", "", indented.strip("\n"), flags=re.MULTILINE) + "\n"))
    return found


def boxes_of(page: str, kind: str) -> list[str]:
    """Return the text of the boxes in one language."""
    return [box.text for box in find_boxes(page) if box.kind == kind]


def with_ours(text: str, ours: Mapping[str, str]) -> str:
    """Replace a page's names by those of the test, each once and the longest first."""
    longest_first = sorted(ours, key=len, reverse=True)
    return re.sub("|".join(map(re.escape, longest_first)), lambda found: ours[found[0]], text)


def type_box(box: str, folder: Path, **environment: str) -> str:
    """Type the box into a shell, which must end well; return what it says."""
    path = f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    told = {**os.environ, "PATH": path, "JAVA_HOME": str(java.spark_java_home()), **environment}
    done = subprocess.run(["bash", "-ec", box], capture_output=True, text=True, cwd=folder, env=told, check=False)
    assert done.returncode == 0, f"{box}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr
