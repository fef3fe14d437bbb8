"""What all tests share. A room's fixtures are in a module fix_<room>.py beside this file and are named here."""

from __future__ import annotations

import signal

pytest_plugins = [
    "fix_stack",
    "fix_connector",
    "fix_crashes",
    "fix_spark",
    "fix_secured",
    "fix_chromium",
    "fix_backfill",
]

# A run in the background of a script has SIGINT ignored, and so has everything that it starts: then no test of Ctrl-C could pass.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
