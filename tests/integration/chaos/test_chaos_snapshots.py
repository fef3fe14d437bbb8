"""What the group's checker reads of a mirror in PostgreSQL, on tables that are made by hand: it
finds a lost amount, a transfer in part, and a member that is not where the global cut says.
"""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from chaos.group.bank import ACCOUNTS, BALANCE
from chaos.group.checker import Checker
from chaos.group.snapshots import Snapshots

MEMBERS = ["east", "west"]


class Mirrored:
    """As the sink makes it, with all accounts, and no transfer."""

    def __init__(self, conninfo: str) -> None:
        self.connection = psycopg.connect(conninfo, autocommit=True)

    def make(self) -> None:
        self.run("CREATE SCHEMA twofold")
        self.run(
            "CREATE TABLE twofold.cuts (number bigint, prefix text, joined boolean, sequence bigint, "
            "published_at timestamptz DEFAULT clock_timestamp(), backfilling text[] DEFAULT '{}')"
        )
        for member in MEMBERS:
            self.run(f"CREATE SCHEMA {member}_public")
            self.run(f"CREATE TABLE {member}_public.account (id int, balance bigint)")
            self.run(f"INSERT INTO {member}_public.account SELECT n, {BALANCE} FROM generate_series(1, {ACCOUNTS}) n")
            self.run(f"CREATE TABLE {member}_public.part (transfer text, branch int, branches int, amount bigint)")

    def run(self, statement: str) -> None:
        self.connection.execute(statement.encode())

    def publish(self, number: int, *sequences: int) -> None:
        for each, its in zip(MEMBERS, sequences, strict=True):
            self.run(f"INSERT INTO twofold.cuts VALUES ({number}, '{each}', true, {its})")


@pytest.fixture
def mirrored(database: str) -> Iterator[Mirrored]:
    made = Mirrored(database)
    yield made
    made.connection.close()


def test_snapshots_are_looked_at_once_and_what_is_wrong_in_one_is_found(database: str, mirrored: Mirrored) -> None:
    view = Snapshots(database, MEMBERS)
    checker = Checker(view, MEMBERS)

    def look() -> list[str]:
        checker.violations.clear()
        checker.look()
        return [each.kind for each in checker.violations]

    assert view.look() is None
    assert (view.cuts(), view.rows_of_last()) == ([], {})
    mirrored.make()
    mirrored.publish(1, 1, 0)
    assert view.look() is None, "the west has no tables yet"
    mirrored.publish(2, 1, 1)
    assert (look(), checker.looks) == ([], 1)
    assert (look(), checker.looks) == ([], 1)

    mirrored.run("UPDATE east_public.account SET balance = balance - 5 WHERE id = 1")
    mirrored.publish(3, 1, 1)
    assert look() == ["total"]
    mirrored.run("UPDATE west_public.account SET balance = balance + 5 WHERE id = 1")
    mirrored.run("INSERT INTO east_public.part VALUES ('7', 0, 2, -5)")
    mirrored.publish(4, 1, 1)
    assert look() == ["torn"]
    mirrored.run("INSERT INTO west_public.part VALUES ('7', 1, 2, 5)")
    mirrored.publish(5, 1, 1)
    assert look() == []
    assert view.rows_of_last()["part"] == {"east": [("7", 0, 2, -5)], "west": [("7", 1, 2, 5)]}
    mirrored.publish(7, 1, 1)
    assert look() == []

    checker.check_all()
    assert checker.violations[-1].kind == "order", "there is no sixth"
    assert checker.checked == {2, 3, 4, 5, 7}
    view.close()
