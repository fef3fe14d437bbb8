"""Positions and times as text for a person. Pure."""

from __future__ import annotations

import datetime as dt


def format_lsn(position: int) -> str:
    """Format a position as PostgreSQL prints it."""
    return f"{position >> 32:X}/{position & 0xFFFFFFFF:X}"


def format_time(us: int) -> str:
    """Format microseconds since 1970, in UTC."""
    moment = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=us)
    return f"{moment:%Y-%m-%d %H:%M:%S.%f} UTC"
