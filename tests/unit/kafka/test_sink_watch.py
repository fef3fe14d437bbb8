"""The watch ends a process whose call does not come back, and only that one.

Each case is a process of its own.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from twofold.kafka.watch import EXIT_STALLED

HEAD = """
import ctypes, sys, threading, time
from twofold.kafka.watch import Watch
watch = Watch(tick_s=0.05)
print("ready", flush=True)
"""


def run(body: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HEAD + body], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_a_call_that_hangs_ends_the_process_with_a_status_of_its_own() -> None:
    process = run("with watch.call('the commit', 0.2): threading.Event().wait(60)")
    _, errors = process.communicate(timeout=20)
    assert process.returncode == EXIT_STALLED
    assert "the commit did not return in time" in errors
    assert "in wait" in errors  # the stacks


def test_a_call_that_hangs_with_pythons_lock_ends_the_process_too() -> None:
    process = run("with watch.call('begin', 0.2, keeps_lock=True): ctypes.PyDLL(None).sleep(60)")
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 1
    assert "Timeout" in errors


def test_calls_within_their_bound_and_time_between_calls_are_left_alone() -> None:
    process = run(
        """
for _ in range(3):
    with watch.call('short', 5): time.sleep(0.1)
with watch.call('begin', 0.1, keeps_lock=True): pass
time.sleep(0.5)
watch.close()
print('done')
"""
    )
    out, errors = process.communicate(timeout=20)
    assert (process.returncode, out, errors) == (0, "ready\ndone\n", "")


def test_a_process_that_was_stopped_and_continued_has_not_stalled() -> None:
    process = run("with watch.call('commit', 1): sys.stdin and time.sleep(0.4)\nprint('returned')")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    os.kill(process.pid, signal.SIGSTOP)
    time.sleep(2.0)  # twice the call's bound: the passing of time is what is tested
    os.kill(process.pid, signal.SIGCONT)
    out, _ = process.communicate(timeout=20)
    assert (process.returncode, out) == (0, "returned\n")
