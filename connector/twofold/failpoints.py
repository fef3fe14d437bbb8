"""Named places where a run can be made to die, for the tests and the chaos suite.

`hit("after_flush")` does nothing unless the environment arms it. It is never called for a row, so
it costs nothing in production. Armed like this:

    TWOFOLD_FAILPOINT=after_flush            kill -9 of this process at the first hit
    TWOFOLD_FAILPOINT=after_flush:3=stop     SIGSTOP at the third hit
    TWOFOLD_FAILPOINT=before_commit=error    the run ends there and recovers, as after any failure

Several are separated by commas. An unknown name is an error at start, so that no test waits for a
place that was renamed.
"""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass

from twofold.errors import RunEnded, UsageError

NAMES = frozenset(
    {
        # the turn, in the order of one row's way
        "after_read",
        "after_decode",
        "after_staging",
        "after_begin",
        "after_produce",
        "after_flush",
        "before_commit_record",
        "after_commit_record",
        "before_commit",
        "after_commit",
        "before_feedback",
        "after_feedback",
        # a prepared transaction's own Kafka transaction
        "before_open",
        "after_open",
        "before_abort",
        "after_abort",
        # recovery, in its order
        "after_start_replication",
        "fence_main",
        "fence_prepared",
        "after_takeover",
        "after_progress_read",
        "after_checks",
    }
)


@dataclass(slots=True)
class _Armed:
    action: str
    hits_left: int


def _parse(text: str) -> dict[str, _Armed]:
    armed = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        place, _, action = part.partition("=")
        name, _, count = place.partition(":")
        if name not in NAMES or action not in {"", "kill", "stop", "error"} or not (count or "1").isdigit():
            raise UsageError(
                f"TWOFOLD_FAILPOINT: {part!r} is not name[:count][=kill|stop|error] with a name of {', '.join(sorted(NAMES))}"
            )
        armed[name] = _Armed(action or "kill", int(count or "1"))
    return armed


_armed = _parse(os.environ.get("TWOFOLD_FAILPOINT", ""))


def hit(name: str) -> None:
    """Die here if the environment says so."""
    if _armed:
        _reach(name)


def _reach(name: str) -> None:
    assert name in NAMES, name
    place = _armed.get(name)
    if place is None:
        return
    place.hits_left -= 1
    if place.hits_left:
        return
    match place.action:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            # To this thread: it must not go on while another one takes the signal for the process.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        case _:
            raise RunEnded(f"failpoint {name}")
