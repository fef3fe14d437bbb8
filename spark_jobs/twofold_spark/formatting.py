"""Times as text for a person. Pure."""

from __future__ import annotations

import datetime as dt


def format_time(us: int) -> str:
    """Format microseconds since 1970, in UTC."""
    moment = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=us)
    return f"{moment:%Y-%m-%d %H:%M:%S.%f} UTC"
