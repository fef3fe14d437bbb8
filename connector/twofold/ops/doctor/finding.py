"""What a check says. A check is a function that looks at one thing and yields what it finds wrong there."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, Protocol

Where = Literal["postgresql", "kafka", "registry", "machine"]


class Severity(IntEnum):
    """The heaviest come first."""

    MUST = 0
    """It does not run, or loses its promise, before this is mended."""
    SHOULD = 1
    """It runs, and will stop, stall or mislead one day."""
    NOTE = 2
    """Good to know."""


@dataclass(frozen=True, slots=True)
class Finding:
    """`check` is a fixed word, for scripts; `mend` is what to run or set, complete, one statement an entry."""

    where: Where
    check: str
    weight: Severity
    what: str
    why: str
    mend: tuple[str, ...]


def start_anew(prefix: str) -> tuple[str, ...]:
    """Where what was known is lost. The topics of the old prefix stay, for consumers that still read them."""
    return "twofold reset", f'kafka.prefix = "{prefix}_2"', "twofold init"


class Finder(Protocol):
    """Makes the findings of one place."""

    def __call__(self, check: str, weight: Severity, what: str, why: str, *mend: str) -> Finding: ...


def finder(where: Where) -> Finder:
    return lambda check, weight, what, why, *mend: Finding(where, check, weight, what, why, mend)
