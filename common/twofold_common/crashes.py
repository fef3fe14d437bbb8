"""Decides what a crash of this process leaves behind: the stacks of its threads, and no core.

A core is a copy of the memory: secrets, and rows that a data policy hides.
"""

from __future__ import annotations

import ctypes
import faulthandler
import resource
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

CORE_BYTES_MAX: Final = 1
"""Too small for any core. Of all limits, 1 alone also keeps the kernel from starting the program of
its core_pattern (fs/coredump.c); at 0 the program gets the whole memory (core(5)).
"""
_PR_SET_DUMPABLE: Final = 4


def leave_no_core() -> None:
    """Let a crash of this process, and of those that it starts, write its stacks and no core.

    Where a core is possible, only the soft limit changes: `prlimit --core=unlimited --pid PID`
    allows one again.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    if hard == 0:
        _hand_no_memory_to_a_program()
    else:
        resource.setrlimit(resource.RLIMIT_CORE, (CORE_BYTES_MAX, hard))
    if sys.__stderr__ is not None:
        faulthandler.enable(sys.__stderr__)


def _hand_no_memory_to_a_program() -> None:
    """Keep memory from the program of the kernel's core_pattern where the limit can only be 0.

    Processes that this one starts can be dumped again, and keep the filter: their cores have
    registers and no memory. The filter comes first, because the files in /proc of a process that
    cannot be dumped are root's.
    """
    with suppress(OSError):  # a kernel that writes no cores
        Path("/proc/self/coredump_filter").write_text("0")
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
