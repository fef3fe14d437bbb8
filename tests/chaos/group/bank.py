"""The bank of a group: in each database accounts, and a row for each branch of a transfer.

The amounts of a transfer's branches add up to nothing. So the total over all databases stays as it
was, wherever a reader sees every transfer whole or not at all.
"""

from __future__ import annotations

import base64
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg

ACCOUNTS: Final = 100
BALANCE: Final = 10_000
SCHEMA: Final = """
CREATE TABLE account (id int PRIMARY KEY, balance bigint NOT NULL);
CREATE TABLE part (
  transfer text, branch int, branches int NOT NULL, amount bigint NOT NULL, PRIMARY KEY (transfer, branch)
);
"""
OWN_GIDS: Final = "pay-(?P<global>[0-9]+)-(?P<branch>[0-9]+)", "(?P<global>pay-[0-9]+)-(?P<branch>[0-9]+)"
"""For `prepared.gid_patterns`, one or the other."""
FORMS: Final = ("xa", "pgdog", "own")
_GIDS: Final = (
    re.compile(r"1_(?P<coded>[A-Za-z0-9+/=]+)_[A-Za-z0-9+/=]+"),
    re.compile(r"__pgdog_2pc_(?P<name>\d+)_\d+"),
    re.compile(OWN_GIDS[0].replace("global", "name")),
)


@dataclass(frozen=True, slots=True)
class Branch:
    """What a transfer does in one database, by the database's number."""

    database: int
    gid: str
    number: int
    amount: int


def create(dsn: str) -> None:
    """Tables, and accounts that were there before the connector."""
    with psycopg.connect(dsn) as connection:
        connection.execute(SCHEMA.encode())
        connection.execute("INSERT INTO account SELECT n, %s FROM generate_series(1, %s) n", (BALANCE, ACCOUNTS))


def draw_branches(rng: random.Random, name: str, databases: Sequence[int]) -> list[Branch]:
    """One to all of these databases have a branch, now and then one of them two."""
    chosen = rng.sample(databases, min(rng.choice((1, 2, 2, 2, 3, 4)), len(databases)))
    if rng.random() < 0.05:
        chosen.append(rng.choice(chosen))
    amounts = [rng.randint(1, 100) for _ in chosen[1:]]
    form = rng.choice(FORMS)
    return [
        Branch(database, _gid(form, name, number), number, amount)
        for number, (database, amount) in enumerate(zip(chosen, [-sum(amounts), *amounts], strict=True))
    ]


def _gid(form: str, name: str, number: int) -> str:
    match form:
        case "xa":  # as pgjdbc and psycopg write it
            coded = (base64.b64encode(part.encode()).decode() for part in (name, str(number)))
            return "_".join(("1", *coded))
        case "pgdog":
            return f"__pgdog_2pc_{name}_{number}"
        case _:
            return f"pay-{name}-{number}"


def name_of(gid: str) -> str:
    """The transfer that a branch belongs to."""
    found = next(filter(None, (pattern.fullmatch(gid) for pattern in _GIDS)))
    parts = found.groupdict()
    return parts["name"] if "name" in parts else base64.b64decode(parts["coded"]).decode()


def account(rng: random.Random) -> int:
    return rng.randint(1, ACCOUNTS)


def source_tables(dsn: str) -> dict[str, list[list[Any]]]:
    """What the source holds now."""
    with psycopg.connect(dsn) as connection:
        return {
            "account": [[*row] for row in connection.execute("SELECT id, balance FROM account ORDER BY id")],
            "part": [[*row] for row in connection.execute("SELECT transfer, branch, branches, amount FROM part")],
        }
