"""Describes what is in doubt: one value for each prepared transaction without an outcome, and its
reader.

Page, metrics, log, `status`, `doctor` and `prepared list` render this value. The statement that a
person may run is decided here alone: never one that could tear a global transaction.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from twofold.config import Config
from twofold.group.ledgers import Branch, Ledgers
from twofold.kafka.kafka_settings import kafka_settings, open_registry
from twofold.kafka.progress import RecoveredState
from twofold.source import identity
from twofold_common.gids import describe, parser
from twofold_common.printable import counted, sql_literal

CLOCKS_APART_S = 600.0
"""The most seconds by which servers' clocks may differ. Siblings commit after all have prepared,
each by its own clock.
"""
EARLIER_USE_S = 5.0
"""A branch that ended longer than this before the PREPARE of another one was no sibling of it: the
gid, or the global id, was used before. No branch commits before all have prepared. Far less than
`CLOCKS_APART_S`, because people try again at once. Between clocks that are further apart a branch
has no sibling with an outcome, and so no statement; the members that wait are named all the same.
"""
NOT_KNOWN = (
    "no outcome of its other branches is known here, and one may have an outcome all the same: "
    "ask its coordinator, or look in the databases of the other branches"
)
"""The reason why no statement is offered. Kafka does not have every outcome: a branch may have
ended before its database's connector was set up, or while that connector was down, or have been
rolled back soon after its PREPARE.
"""
_OUTCOMES = {"committed": "committed", "rolled_back": "rolled back"}


@dataclass(frozen=True, slots=True)
class HeldBack:
    """A member that has committed a branch of the same global transaction."""

    prefix: str
    sequence: int
    """The commit record with that branch."""
    commits: int
    """The number of the member's commit records that wait: this one and those behind it."""
    since: float | None
    """The time when the branch was committed, by that server's clock; None if it is not known."""

    def __str__(self) -> str:
        return f"{counted(self.commits, 'commit record')} of {self.prefix} from {self.sequence} on"


@dataclass(frozen=True, slots=True, kw_only=True)
class InDoubt:
    """A prepared transaction without an outcome, with the statements that may end it."""

    xid: int
    gid: str
    owner: str = ""
    database: str = ""
    age_s: float
    too_long: bool = False
    """Whether the transaction is older than prepared.doubt_warning."""
    wal_bytes: int | None = None
    """The WAL since the prepare: the server keeps at least this much for the transaction."""
    in_kafka: Literal["open", "parked", "not yet read", "not known"] = "not known"
    rows: int | None = None
    topics: tuple[str, ...] = ()
    global_id: str | None
    branch: str | None
    others: tuple[Branch, ...] = ()
    """The known other branches of the same global transaction."""
    held_back: tuple[HeldBack, ...] = ()
    """The members of the source group whose commits wait for the transaction."""

    @property
    def statements(self) -> tuple[str, ...]:
        """The statements that end the transaction, for a person to run in its database; Twofold
        never runs them.

        If all decided siblings have one outcome, only that outcome is offered. While no sibling's
        outcome is known, a branch has no statement (`NOT_KNOWN`). A transaction of no global
        transaction has both statements, and so has a torn one: its coordinator must judge.
        """
        literal = sql_literal(self.gid)
        commit, rollback = f"COMMIT PREPARED {literal};", f"ROLLBACK PREPARED {literal};"
        outcomes = {each.state for each in self.others} & _OUTCOMES.keys()
        if outcomes == {"committed"}:
            return (commit,)
        if outcomes == {"rolled_back"}:
            return (rollback,)
        return (commit, rollback) if outcomes or self.global_id is None else ()

    @property
    def ending(self) -> str:
        """The statements; if none is offered, the command that looks for siblings and says why."""
        return " or ".join(self.statements) or "see twofold prepared list"

    @property
    def torn(self) -> bool:
        """Whether some siblings are committed, and others rolled back."""
        return {each.state for each in self.others} >= _OUTCOMES.keys()

    @property
    def siblings(self) -> tuple[str, ...]:
        """The known states of the other branches of the global transaction."""
        return tuple(
            f"{describe(each.gid)} of {each.prefix} is {_OUTCOMES.get(each.state, 'in doubt as well')}"
            for each in self.others
        )

    @property
    def cost(self) -> str:
        """Describe what the transaction costs while it is in doubt."""
        wal = "?" if self.wal_bytes is None else self.wal_bytes
        rows = "? rows" if self.rows is None else counted(self.rows, "row")
        return f"database {self.database}, {wal} bytes of WAL since, {rows} in {', '.join(self.topics) or 'no topic'}"

    def to_json(self) -> dict[str, Any]:
        """Return the value as `--json` prints it."""
        known = asdict(self)
        del known["others"]
        held_back = known.pop("held_back")
        return known | {
            "statements": self.statements,
            "siblings": self.siblings,
            "torn": self.torn,
            "held_back": held_back,
        }


def from_postgres(config: Config, prepared: identity.PreparedTransaction) -> InDoubt:
    """Return a prepared transaction as PostgreSQL lists it."""
    parsed = parser(config.prepared.gid_patterns)(prepared.gid)
    return InDoubt(
        xid=prepared.xid,
        gid=prepared.gid,
        owner=prepared.owner,
        database=prepared.database,
        age_s=prepared.age_s,
        too_long=prepared.age_s > config.prepared.doubt_warning,
        global_id=parsed.global_id,
        branch=parsed.branch,
    )


def read_in_doubt(config: Config, recovered: RecoveredState | None) -> tuple[InDoubt, ...]:
    """Return the transactions that PostgreSQL lists, oldest first, completed by the ledger.

    `recovered` None: Kafka could not be asked.
    """
    source_lsn = identity.identify(config.conninfo).xlogpos
    entries = {(e.xid, e.gid): e for e in recovered.unresolved.values()} if recovered else {}
    found = []
    for prepared in identity.prepared_transactions(config.conninfo, all_databases=False):
        each = from_postgres(config, prepared)
        if entry := entries.get((each.xid, each.gid)):
            each = replace(
                each,
                wal_bytes=max(0, source_lsn - entry.prepare_lsn),
                in_kafka="open" if entry.state == "open" else "parked",
                rows=entry.rows,
                topics=entry.topics,
            )
        elif recovered is not None:
            each = replace(each, in_kafka="not yet read")
        found.append(each)
    return tuple(found)


def add_branches(config: Config, found: tuple[InDoubt, ...]) -> tuple[tuple[InDoubt, ...], tuple[str, ...]]:
    """Add other branches from the source group's topics.

    Also return the topics that could not be read, with the reasons.
    """
    branches_here = [each for each in found if each.global_id]
    if not branches_here:
        return found, ()
    since_ms = int((time.time() - max(each.age_s for each in branches_here) - CLOCKS_APART_S) * 1000)
    believed = config.group.members or (config.prefix,)
    ledgers = Ledgers(kafka_settings(config), open_registry(config), believed, config.prepared.gid_patterns)
    branches = ledgers.branches({each.global_id for each in branches_here if each.global_id}, since_ms)
    completed = []
    for each in found:
        prepared_at = time.time() - each.age_s
        siblings = tuple(
            branch
            for branch in branches.found
            if branch.global_id == each.global_id
            and (branch.prefix, branch.gid) != (config.prefix, each.gid)
            and not branch.ended_before(prepared_at - CLOCKS_APART_S)
        )
        others = tuple(branch for branch in siblings if not branch.ended_before(prepared_at - EARLIER_USE_S))
        held_back = held_back_by(siblings, config.group.members, branches.last)
        completed.append(replace(each, others=others, held_back=held_back))
    return tuple(completed), branches.unread


def held_back_by(siblings: Iterable[Branch], members: Collection[str], last: Mapping[str, int]) -> tuple[HeldBack, ...]:
    """Return the members that wait for these siblings' global transaction, by prefix.

    `last`: the last commit record of each connector.
    """
    first: dict[str, Branch] = {}
    for each in siblings:
        if each.state == "committed" and each.sequence is not None and each.prefix in members:
            known = first.get(each.prefix)
            if known is None or each.sequence < (known.sequence or 0):
                first[each.prefix] = each
    return tuple(
        HeldBack(prefix, each.sequence, max(1, last.get(prefix, 0) - each.sequence + 1), each.committed_at)
        for prefix, each in sorted(first.items())
        if each.sequence is not None
    )


def count_held_back(held_back: Iterable[HeldBack]) -> int:
    """Return how many commit records wait for these members' branches, each counted once."""
    most: dict[str, int] = {}
    for each in held_back:
        most[each.prefix] = max(each.commits, most.get(each.prefix, 0))
    return sum(most.values())
