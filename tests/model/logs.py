"""PostgreSQL's log as the model has it: short lines such as `T1a P2b K2` and how hard the world is
to them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from twofold.bridge import Policy
from twofold_common.positions import Lsn, PreparedIdentity

LENGTH = 10
RECOVERY = ("fence main", "fence pool", "take over", "read progress")


class Violation(AssertionError):
    """A promise is broken."""


def check(holds: bool, what: str) -> None:
    if not holds:
        raise Violation(what)


@dataclass(frozen=True)
class Record:
    """One record of the log.

    Kinds: T plain, L plain in two chunks, M message, W nothing of ours; P prepare, Q prepare parked
    by rule, E empty prepare, H prepare before two_phase_at (nothing comes at its place; it comes
    right before its K); K commit prepared, R rollback prepared, X commit prepared of an empty one
    that was never announced.
    """

    kind: str
    name: str
    keys: str
    start: Lsn
    end: Lsn

    @property
    def rows(self) -> tuple[str, ...]:
        return tuple(self.name + key for key in self.keys)

    @property
    def identity(self) -> PreparedIdentity:
        return PreparedIdentity(int(self.name[1:]), "gid")


@dataclass(frozen=True)
class Scenario:
    """A log and how hard the world is to it."""

    name: str
    log: tuple[Record, ...]
    pool: int = 2
    crashes: int = 2
    cuts: int = 0  # how many times a connection is cut under a transaction's end
    timeouts: int = 0  # how many times Kafka raises a producer's epoch by itself
    policy: Policy = field(default_factory=Policy)
    parks: int = 1  # how many are parked because their time is over, or for a backfill
    chunks: int = 0  # how many chunks of a backfill are published, at any time
    holds: bool = False  # a prepare may be read and not announced before its outcome
    forecasts: int = 0  # how many commit records travel with their rows and foretell wrong ranges
    turns: bool = False  # TurnFull and OpenDue may come
    recovery: tuple[str, ...] = RECOVERY
    second_line: bool = True  # a prepared transaction's rows are looked for before they are declared


def scenario(name: str, log: str, **settings: object) -> Scenario:
    """From a line such as `T1a P2b K2`: kind, number, keys."""
    records = []
    for place, word in enumerate(log.split()):
        start = Lsn(place * LENGTH)
        number = "".join(filter(str.isdigit, word))
        keys = word[1 + len(number) :]
        records.append(
            Record(word[0], ("p" if word[0] in "PQEHKRX" else "t") + number, keys, start, Lsn(start + LENGTH))
        )
    check_locks(records)
    return Scenario(name, tuple(records), **settings)  # type: ignore[arg-type]


def check_locks(log: list[Record]) -> None:
    """What a prepared transaction has written is locked until its outcome: PostgreSQL never makes a
    log in which it is not.
    """
    locked: dict[str, str] = {}
    for record in log:
        if record.kind in "KR":
            locked = {key: holder for key, holder in locked.items() if holder != record.name}
        assert not locked.keys() & set(record.keys), f"{record} writes what {locked} hold"
        if record.kind in "PQEH":
            locked |= dict.fromkeys(record.keys, record.name)
