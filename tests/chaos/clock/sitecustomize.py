"""Python reads this at its start if the folder is on its path: the wall clock of the process is off
by as many seconds as the file CHAOS_CLOCK says, from moment to moment. The monotonic clock is not.

Not libfaketime: with Debian's 0.9.10 a clock that was set back makes `time.sleep` fail with EINVAL,
which no real clock does. librdkafka's own look at the clock stays right.
"""

import os
import time
from pathlib import Path

_FILE = Path(os.environ["CHAOS_CLOCK"])
_true_ns = time.time_ns


def _time_ns() -> int:
    return _true_ns() + int(_FILE.read_text()) * 1_000_000_000


def _time() -> float:
    return _time_ns() / 1e9


time.time_ns, time.time = _time_ns, _time
