"""The demo, as a newcomer runs it: to its end, and interrupted."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.connector import wait_until

DEMO = [sys.executable, "-m", "twofold", "demo"]
MARK = "TWOFOLD_TEST_MARK"

pytestmark = pytest.mark.long


@pytest.fixture
def mark() -> Iterator[str]:
    """In the environment of everything that the demo starts, so that what is left behind can be
    found, and ended.
    """
    value = uuid.uuid4().hex
    yield value
    for pid in marked(value):
        os.kill(pid, signal.SIGKILL)


def marked(mark: str) -> list[int]:
    """The living processes whose environment carries the mark."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue  # it has ended, or is not ours to look at
    return found


def tell(mark: str, *options: str) -> str:
    """Return what the demo says once all of it has ended."""
    environment = {**os.environ, MARK: mark}
    done = subprocess.run([*DEMO, *options], capture_output=True, text=True, env=environment, timeout=580, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    wait_until(lambda: not marked(mark), 90, "every process of the demo has ended")
    return done.stdout


@pytest.mark.timeout(600)
def test_the_story_ends_well_and_says_so_in_plain_lines(mark: str) -> None:
    said = tell(mark)
    assert "\x1b" not in said, "no terminal, no escape sequences"
    assert re.search(r"read_uncommitted: 3 rows .*\n.*read_committed: 0 rows", said)
    assert "public.accounts: 6 rows, equal" in said
    assert said.rstrip().endswith("The mirror equals the source.")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_story_of_two_banks_never_shows_half_a_transfer(mark: str) -> None:
    said = tell(mark, "--databases", "2")
    assert "finds 5950: 50 are nowhere" in said
    assert re.findall(r"the mirror: (east .*?= \d+)", said) == [
        "east 3000 + west 3000 = 6000",
        "east 2900 + west 3100 = 6000",
        "east 2900 + west 3100 = 6000",
        "east 2850 + west 3150 = 6000",
    ]
    assert "COMMIT PREPARED 'transfer-2-west';" in said, "twofold prepared list says what ends it"
    assert said.rstrip().endswith("Every global cut had the whole total.")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_story_of_two_shards_has_each_account_once(mark: str) -> None:
    said = tell(mark, "--shards", "2")
    assert "account 1 is in east and in west" in said
    assert re.findall(r"the one table: (east .*?= \d+)", said) == [
        "east 3000 + west 3000 = 6000",
        "east 2000 + west 4000 = 6000",
        "east 2000 + west 4000 = 6000",
        "east 3000 + west 3000 = 6000",
    ]
    assert said.rstrip().endswith("Every global cut had every account once.")


@pytest.mark.timeout(200)
@pytest.mark.parametrize("ending", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGKILL])
def test_interrupted_it_leaves_no_process_behind(mark: str, ending: signal.Signals, tmp_path: Path) -> None:
    output = tmp_path / "output"
    with output.open("w") as out:
        demo = subprocess.Popen(DEMO, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, MARK: mark})
        started = "twofold run: started"
        wait_until(lambda: started in output.read_text(), 150, "the connector and the mirror job are started")
        assert len(marked(mark)) > 6
        demo.send_signal(ending)
        assert demo.wait(60) != 0
    wait_until(lambda: not marked(mark), 90, "every process of the demo has ended")
