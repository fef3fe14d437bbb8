"""Positions and times as a person reads them at night. Pure."""

from __future__ import annotations

import datetime as dt


def lsn_text(position: int) -> str:
    """As PostgreSQL prints it."""
    return f"{position >> 32:X}/{position & 0xFFFFFFFF:X}"


def time_text(us: int) -> str:
    """Microseconds since 1970, in UTC."""
    moment = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=us)
    return f"{moment:%Y-%m-%d %H:%M:%S.%f} UTC"
