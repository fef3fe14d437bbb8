"""A finding of doctor's. A check is a function that examines one thing and yields findings."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

SHOWN_MAX = 20
"""The most findings of one kind."""

Where = Literal["connector", "postgresql", "kafka", "registry", "machine"]


class Severity(IntEnum):
    """How severe a finding is; the most severe come first."""

    MUST = 0
    """The connector does not run, or breaks a promise, until this is remedied."""
    SHOULD = 1
    """The connector runs, and will stop, stall or mislead one day."""
    NOTE = 2
    """Good to know."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding.

    `check` is a fixed word for scripts; `remedy` has complete statements, one an entry.
    """

    where: Where
    check: str
    severity: Severity
    what: str
    why: str
    remedy: tuple[str, ...]


def start_over(prefix: str) -> tuple[str, ...]:
    """Return the commands that start over where progress is lost.

    The topics of the old prefix stay for consumers that still read them.
    """
    return "twofold reset", f'kafka.prefix = "{prefix}_2"', "twofold init"


@dataclass(frozen=True, slots=True)
class Finder:
    """Makes the findings of one place."""

    where: Where

    def __call__(self, check: str, severity: Severity, what: str, why: str, *remedy: str) -> Finding:
        return Finding(self.where, check, severity, what, why, remedy)

    def must(self, check: str, what: str, why: str, *remedy: str) -> Finding:
        return self(check, Severity.MUST, what, why, *remedy)

    def should(self, check: str, what: str, why: str, *remedy: str) -> Finding:
        return self(check, Severity.SHOULD, what, why, *remedy)

    def note(self, check: str, what: str, why: str, *remedy: str) -> Finding:
        return self(check, Severity.NOTE, what, why, *remedy)
