"""The message where the row path is not compiled. Everybody says the same, so that nobody drains a
backlog slowly without knowing why.
"""

from __future__ import annotations

from twofold_avro.transcode import is_compiled

NOT_COMPILED = "the row path is not compiled"
COST = "a row costs some fifty times as much"
COMPILE = "pip install --force-reinstall --no-binary twofold-avro twofold-avro"
SLOW = (
    f"{NOT_COMPILED}, so {COST};"
    " remedy: install the wheel, or install a C compiler (Debian: apt install gcc libc6-dev python3-dev) and then run"
    f" {COMPILE} (in a checkout: make ready)"
)


def slowness() -> str | None:
    """Return why rows are slow here, and the remedy; None where the row path is compiled."""
    return None if is_compiled() else SLOW
