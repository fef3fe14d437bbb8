"""What all tests share.

Fixtures are in the package fixtures, a module for each theme, and are named here; what is no
fixture is in helpers.
"""

from __future__ import annotations

import gc
import signal

from hypothesis import HealthCheck, settings

pytest_plugins = [
    "fixtures.times",
    "fixtures.shared",
    "fixtures.stack",
    "fixtures.connector",
    "fixtures.crashes",
    "fixtures.spark",
    "fixtures.catalogs",
    "fixtures.object_store",
    "fixtures.secured",
    "fixtures.fronted",
    "fixtures.chromium",
    "fixtures.backfill",
    "fixtures.schedule",
]

# A run in the background of a script has SIGINT ignored, and so has everything that it starts: then
# no test of Ctrl-C could pass.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes to make or to try says how busy the machine is, and nothing about the
# code.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


def pytest_collection_finish() -> None:
    """Collections of garbage need not look at thousands of tests and modules that stay."""
    gc.collect()
    gc.freeze()
