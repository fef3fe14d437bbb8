"""Tables that a topic cannot tell as they are, each with the page that says so. Nothing else may differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Limit:
    """What of a table may differ, and why."""

    reason: str
    columns: tuple[str, ...] = ()
    """The columns that may; the rows must be equal in all others."""
    all_rows: bool = False
    """The rows themselves may."""


LOADED: Final[Mapping[str, Limit]] = {}
"""After a load of all tables."""

STREAMED: Final[Mapping[str, Limit]] = {}
"""After the stream."""
