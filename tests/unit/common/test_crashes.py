"""What a crash of a process may leave: its stacks, and no core."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

SCRIPT = """
import ctypes, faulthandler, resource, subprocess
from twofold_common.crashes import leave_no_core
resource.setrlimit(resource.RLIMIT_CORE, ({hard}, {hard}))
leave_no_core()
print(resource.getrlimit(resource.RLIMIT_CORE)[0], ctypes.CDLL(None).prctl(3, 0, 0, 0, 0), flush=True)
subprocess.run(["cat", "/proc/self/coredump_filter"], check=True)
faulthandler._sigsegv()
"""


@pytest.mark.parametrize(("hard", "limit", "dumpable", "child"), [(0, 0, 0, "00000000"), (1 << 20, 1, 1, None)])
def test_a_crash_leaves_stacks_and_no_core(hard: int, limit: int, dumpable: int, child: str | None) -> None:
    """The limit 1 keeps the kernel from the program of its core_pattern. Where the limit can only
    be 0, the process cannot be dumped, and a process that it starts has no memory in its core.
    """
    allowed = resource.getrlimit(resource.RLIMIT_CORE)[1]
    if allowed != resource.RLIM_INFINITY and allowed < hard:
        pytest.skip("no process here may leave a core")
    done = subprocess.run([sys.executable, "-c", SCRIPT.format(hard=hard)], capture_output=True, text=True, check=False)
    its, of_child = done.stdout.splitlines()
    assert its == f"{limit} {dumpable}"
    assert child in {None, of_child}
    assert "Fatal Python error" in done.stderr
