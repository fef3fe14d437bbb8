"""What a crash of a process may leave: its stacks, and no core."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

SCRIPT = """
import resource, sys
from twofold_common.crashes import leave_no_core
resource.setrlimit(resource.RLIMIT_CORE, ({soft}, {hard}))
leave_no_core()
print(resource.getrlimit(resource.RLIMIT_CORE))
sys.stdout.flush()
import faulthandler
faulthandler._sigsegv()
"""


@pytest.mark.parametrize("hard", [0, 1 << 20])
def test_a_crash_leaves_stacks_and_no_core(hard: int) -> None:
    if resource.getrlimit(resource.RLIMIT_CORE)[1] not in {resource.RLIM_INFINITY, *range(hard, hard + 1)}:
        pytest.skip("no process here may leave a core")
    script = SCRIPT.format(soft=hard, hard=hard)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == f"({min(1, hard)}, {hard})"
    assert "Fatal Python error" in done.stderr
