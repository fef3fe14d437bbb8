"""`twofold doctor`: what is or will be wrong with PostgreSQL, Kafka, the registry and this machine;
why it matters; and its remedy. Changes nothing.

`examine` runs all checks side by side: each part within a bounded time, even if the others are
away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from twofold.config import Config
from twofold.doctor import connector, kafka, machine, postgres, registry
from twofold.doctor.finding import Finding, Severity, Where
from twofold.errors import TwofoldError

__all__ = ["Finding", "Severity", "examine"]

_PARTS: tuple[tuple[Where, Callable[[Config], Iterable[Finding]], str], ...] = (
    ("connector", connector.examine, "see the message"),
    ("postgresql", postgres.examine, "correct source.dsn, or start PostgreSQL"),
    ("kafka", kafka.examine, "correct kafka.bootstrap and kafka.options, or start Kafka"),
    ("registry", registry.examine, "correct registry.url, or start the registry"),
    ("machine", machine.examine, "see the message"),
)


def examine(config: Config) -> tuple[Finding, ...]:
    """Return all findings, the most severe first."""
    with ThreadPoolExecutor(len(_PARTS)) as pool:
        looked = list(pool.map(lambda part: _examine_part(config, *part), _PARTS))
    return tuple(sorted((finding for findings in looked for finding in findings), key=lambda each: each.severity))


def _examine_part(
    config: Config, where: Where, look: Callable[[Config], Iterable[Finding]], otherwise: str
) -> tuple[Finding, ...]:
    found: list[Finding] = []
    try:
        found.extend(look(config))
    except TwofoldError as error:
        # What a part says when it cannot be looked at is a finding like any other.
        what, _, remedy = str(error).partition("; remedy: ")
        found.append(
            Finding(where, "unusable", Severity.MUST, what, "nothing works without it", (remedy or otherwise,))
        )
    return tuple(found)
