"""Decides what a crash of this process leaves behind: the stacks of its threads, and no core.

A core is a copy of the memory: secrets, and rows that a data policy hides.
"""

from __future__ import annotations

import faulthandler
import resource
import sys
from typing import Final

CORE_BYTES_MAX: Final = 1
"""Too small for any core. The kernel starts no program of its core_pattern at this limit either,
as it does at 0."""


def leave_no_core() -> None:
    """Let a crash of this process, and of those that it starts, write its stacks and no core.

    Only the soft limit changes: `prlimit --core=unlimited --pid PID` allows a core again.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (CORE_BYTES_MAX if hard != 0 else 0, hard))
    if sys.__stderr__ is not None:
        faulthandler.enable(sys.__stderr__)
