"""Nothing outlives the process that asked for it: not a server that ignores signals, not the orphan
that it left in a session of its own.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fixtures.connector import wait_until
from twofold.errors import SetupError, Unreachable
from twofold.stack import process
from twofold.stack.process import GuardedProcess

# Leaves an orphan in a session of its own, as a daemon does, and deafens both to all that can be
# ignored.
STUBBORN = """
import os, signal, sys, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
pids = [os.getpid()]
reading, writing = os.pipe()
if os.fork() == 0:
    os.setsid()
    if (orphan := os.fork()) != 0:
        os.write(writing, str(orphan).encode())
        os._exit(0)
else:
    os.wait()
    pids.append(int(os.read(reading, 20)))
    with open(sys.argv[1] + '.part', 'w') as file:
        file.write(' '.join(map(str, pids)))
    os.rename(sys.argv[1] + '.part', sys.argv[1])
time.sleep(60)
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # The second: it ended between the file's opening and its reading.
        return False


@pytest.fixture
def pids_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(process, "_PATIENCE_S", 0.3)
    return tmp_path / "pids"


def start(pids_file: Path) -> tuple[GuardedProcess, list[int]]:
    server = GuardedProcess("stubborn", [sys.executable, "-c", STUBBORN, str(pids_file)], log=pids_file.parent / "log")
    server.wait_until(pids_file.exists, seconds=20)
    pids = [int(pid) for pid in pids_file.read_text().split()]
    assert len(pids) == 2
    assert all(map(alive, pids))
    return server, pids


def test_stop_ends_all_of_a_server_that_ignores_it(pids_file: Path) -> None:
    server, pids = start(pids_file)
    server.stop()
    assert not any(map(alive, pids))
    server.stop()


def test_kill_ends_all(pids_file: Path) -> None:
    server, pids = start(pids_file)
    server.kill()
    assert not any(map(alive, pids))
    assert not server.running()


def test_a_server_that_dies_takes_its_orphans_along(pids_file: Path) -> None:
    server, pids = start(pids_file)
    os.kill(server.pid, signal.SIGKILL)
    wait_until(lambda: not any(map(alive, pids)))
    wait_until(lambda: not server.running())
    server.stop()


def test_a_guard_that_is_killed_takes_the_server_along(pids_file: Path) -> None:
    server, pids = start(pids_file)
    guard = int(Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(guard, signal.SIGKILL)
    wait_until(lambda: not alive(pids[0]))
    server.stop()
    os.kill(pids[1], signal.SIGKILL)  # The one thing that is not promised: an orphan, when its guard itself was killed.


def test_kill_9_of_the_parent_leaves_nothing(pids_file: Path) -> None:
    parent_program = (
        "import sys, time; from pathlib import Path; from twofold.stack import process\n"
        "process._PATIENCE_S = 0.3\n"
        "server = process.GuardedProcess('stubborn', sys.argv[2:], log=Path(sys.argv[1] + '.log'))\n"
        "time.sleep(60)\n"
    )
    command = [sys.executable, "-c", STUBBORN, str(pids_file)]
    with subprocess.Popen([sys.executable, "-c", parent_program, str(pids_file), *command]) as parent:
        wait_until(pids_file.exists)
        pids = [int(pid) for pid in pids_file.read_text().split()]
        assert all(map(alive, pids))
        parent.kill()
    wait_until(lambda: not any(map(alive, pids)))


def test_a_server_that_ends_early_is_quoted(tmp_path: Path) -> None:
    program = "import sys; print('all well'); sys.exit('FATAL: the disk is on fire')"
    server = GuardedProcess("the server", [sys.executable, "-c", program], log=tmp_path / "log")
    with pytest.raises(SetupError, match="the server ended before it was ready: FATAL: the disk is on fire"):
        server.wait_until(lambda: False, seconds=20)
    server.stop()


def test_a_server_that_takes_too_long_is_named(tmp_path: Path) -> None:
    server = GuardedProcess("the server", ["/bin/sleep", "60"], log=tmp_path / "log")
    with pytest.raises(Unreachable, match="the server was not ready within 0 s: it said nothing"):
        server.wait_until(lambda: False, seconds=0.1)
    server.stop()


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    server = GuardedProcess("the server", ["/nonexistent/program"], log=tmp_path / "log")
    with pytest.raises(SetupError, match="cannot start /nonexistent/program"):
        server.wait_until(lambda: False, seconds=20)
    server.stop()
