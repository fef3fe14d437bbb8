"""The reader of `make compare`: it must see what is wrong with a copy, and nothing in a right one.

The copies are made up, in SQLite.
"""

from __future__ import annotations

import itertools
import json
import random
import re
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from bench.connect import locked
from compare import faults
from compare.bank import ACCOUNTS, BALANCE, COLUMNS, DATABASES, LINES, TABLES, Journal
from compare.flink import FlinkIceberg, FlinkJdbc, carry_all, declare_sources
from compare.lake import NotThereError, find
from compare.looks import Look, Rows, Sightings, look_at, read_rows
from compare.page import PICTURES, as_table, bars
from compare.verdict import COUNTS, Healed, freshness, judge, percentile, recoveries

NAMES = {database: {table: f"{database}.{table}" for table in TABLES} for database in DATABASES}


class Books:
    """A copy of the bank."""

    def __init__(self) -> None:
        self._sql = sqlite3.connect(":memory:")
        for database in DATABASES:
            self.run(f"ATTACH ':memory:' AS {database}")
            self.run(f"CREATE TABLE {database}.account (id, balance, version)")
            self.run(f"CREATE TABLE {database}.entry (id, transfer, line, lines, branches, account, version, amount)")
            for account in range(1, ACCOUNTS + 1):
                self.run(f"INSERT INTO {database}.account VALUES ({account}, {BALANCE}, 0)")

    def run(self, statement: str) -> Sequence[Sequence[Any]]:
        return self._sql.execute(statement).fetchall()

    def transfer(self, number: int, amounts: dict[tuple[str, int], int]) -> None:
        """By database and account; one line more in each database belongs to no account."""
        databases = {database for database, _ in amounts}
        for database in databases:
            own = {account: amount for (its, account), amount in amounts.items() if its == database}
            for line, (account, amount) in enumerate(own.items(), 1):
                change = f"UPDATE {database}.account SET balance = balance + {amount}, version = version + 1 WHERE id = {account} RETURNING version"
                ((version,),) = self.run(change)
                self._insert(database, number, line, len(own) + 1, len(databases), f"{account}, {version}, {amount}")
            self._insert(database, number, len(own) + 1, len(own) + 1, len(databases), "NULL, NULL, 0")

    def _insert(self, database: str, number: int, line: int, lines: int, branches: int, rest: str) -> None:
        values = f"{number * LINES + line}, {number}, {line}, {lines}, {branches}, {rest}"
        self.run(f"INSERT INTO {database}.entry VALUES ({values})")

    def look(self) -> Look:
        return look_at(self.run, NAMES)

    def rows(self) -> Rows:
        return read_rows(self.run, NAMES)


def made(seed: int = 1, transfers: int = 30) -> Books:
    books, rng = Books(), random.Random(seed)
    for number in range(1, transfers + 1):
        amount = rng.randint(1, 100)
        here, there = rng.choice([("east", "west"), ("east", "east"), ("west", "west")])
        first, second = rng.sample(range(1, ACCOUNTS + 1), 2)
        books.transfer(number, {(here, first): -amount, (there, second): amount})
    return books


def counts(books: Books, source: Books, sightings: Sightings | None = None) -> dict[str, int]:
    """Those that are not 0; each transfer was committed long before it was seen."""
    sightings = sightings or Sightings()
    sightings.add(books.look())
    found = judge(Journal(), sightings, source.rows(), books.rows())
    return {name: found[name] for name in COUNTS if found[name]}


def test_a_right_copy_is_right_at_every_transaction() -> None:
    books, sightings = Books(), Sightings()
    for number in range(1, 20):
        books.transfer(number, {("east", number): -5, ("west", number): 3, ("west", number + 50): 2})
        sightings.add(books.look())
    books.run("UPDATE east.entry SET id = -id WHERE transfer = 3")
    assert counts(books, books, sightings) == {}
    assert sightings.first_whole.keys() == set(range(1, 20))


def test_a_missing_line_tears_a_transfer_and_is_lost_at_the_end() -> None:
    books = made()
    books.run("DELETE FROM east.entry WHERE id = (SELECT max(id) FROM east.entry)")
    assert counts(books, made()) == {"torn": 1, "lost": 1}


def test_a_table_ahead_of_the_other_is_torn_either_way() -> None:
    behind, ahead = made(), made()
    ((account,),) = behind.run("SELECT account FROM west.entry WHERE account IS NOT NULL ORDER BY id DESC LIMIT 1")
    behind.run(f"UPDATE west.account SET version = version - 1 WHERE id = {account}")
    ahead.run("UPDATE west.account SET version = version + 1 WHERE id = 200")
    assert counts(behind, made()) == {"torn": 1, "lost": 1}
    assert counts(ahead, made()) == {"torn": 1, "lost": 1}


def test_a_transfer_in_one_database_of_two_is_split_and_money_is_missing() -> None:
    whole, half = made(), made()
    whole.transfer(99, {("east", 1): -10, ("west", 1): 10})
    half.run("UPDATE east.account SET balance = balance - 10, version = version + 1 WHERE id = 1")
    ((version,),) = half.run("SELECT version FROM east.account WHERE id = 1")
    half.run(f"INSERT INTO east.entry VALUES ({99 * LINES + 1}, 99, 1, 2, 2, 1, {version}, -10)")
    half.run(f"INSERT INTO east.entry VALUES ({99 * LINES + 2}, 99, 2, 2, 2, NULL, NULL, 0)")
    look = half.look()
    assert (look.split, look.torn, 99 in look.whole, 99 in look.seen) == ({99}, set(), False, True)
    assert counts(half, whole) == {"split": 1, "wrong_totals": 1, "lost": 3}


def test_a_row_under_its_old_key_is_doubled() -> None:
    books, source = made(), made()
    source.run("UPDATE east.entry SET id = -id WHERE transfer = (SELECT max(transfer) FROM east.entry)")
    books.run("INSERT INTO east.entry SELECT -id, transfer, line, lines, branches, account, version, amount FROM east.entry WHERE transfer = (SELECT max(transfer) FROM east.entry)")  # fmt: skip
    assert len(books.look().doubled) == 1
    assert judge(Journal(), Sightings(), source.rows(), books.rows())["doubled"] == 1
    assert counts(books, source) == {"doubled": 1}


def test_an_account_that_is_there_twice_is_doubled() -> None:
    books = made()
    books.run("INSERT INTO west.account SELECT * FROM west.account WHERE id = 7")
    assert books.look().doubled == {"west: account 7"}
    assert judge(Journal(), Sightings(), made().rows(), books.rows())["doubled"] == 1
    assert counts(books, made()) == {"doubled": 1, "wrong_totals": 1}


def test_a_transfer_that_was_rolled_back_is_seen_for_a_moment_or_at_the_end() -> None:
    books, passing = made(), Sightings()
    books.transfer(99, {("east", 1): -10, ("east", 2): 10})
    passing.add(books.look())
    assert counts(books, made()) == {"rolled_back": 1, "lost": 2}  # both accounts have other balances
    assert counts(made(), made(), passing) == {"rolled_back": 1}


def test_a_transfer_that_is_visible_before_its_commit_began_was_visible_uncommitted() -> None:
    books, journal, sightings = made(transfers=1), Journal(), Sightings()
    sightings.add(books.look())
    journal.begun[1] = sightings.first_seen[1] - 1
    assert judge(journal, sightings, books.rows(), books.rows())["rolled_back"] == 0
    journal.begun[1] = sightings.first_seen[1] + 1
    assert judge(journal, sightings, books.rows(), books.rows())["rolled_back"] == 1


DAMAGES = (
    "DELETE FROM {0}.entry WHERE id = (SELECT id FROM {0}.entry ORDER BY id LIMIT 1 OFFSET {1})",
    "INSERT INTO {0}.entry SELECT * FROM {0}.entry ORDER BY id LIMIT 1 OFFSET {1}",
    "UPDATE {0}.entry SET transfer = 1000 + transfer WHERE transfer = (SELECT transfer FROM {0}.entry LIMIT 1 OFFSET {1})",
    "UPDATE {0}.account SET version = version + 1 WHERE id = {1} + 1",
    "UPDATE {0}.account SET balance = balance - 1 WHERE id = {1} + 1",
    "DELETE FROM {0}.account WHERE id = {1} + 1",
)


@pytest.mark.parametrize(("damage", "seed"), [*itertools.product(DAMAGES, range(5))])
def test_no_damage_to_a_copy_passes(damage: str, seed: int) -> None:
    books, rng = made(seed), random.Random(seed)
    assert counts(books, made(seed)) == {}
    books.run(damage.format(rng.choice(DATABASES), rng.randrange(15)))
    assert counts(books, made(seed))


def test_freshness_counts_from_the_answer_and_recovery_from_the_end_of_the_fault() -> None:
    journal, sightings = Journal(begun={1: 9.0, 2: 19.0, 3: 29.0}, done={1: 10.0, 2: 20.0, 3: 30.0}), Sightings()
    sightings.first_whole |= {1: 10.5, 2: 22.0, 3: 29.5}
    assert freshness(journal, sightings, 0.0, 25.0) == [0.5, 2.0]
    assert freshness(journal, sightings, 15.0, 35.0) == [0.0, 2.0]
    healed = [Healed("kill broker", 15.0), Healed("freeze source", 25.0), Healed("kill source", 99.0)]
    assert recoveries(journal, sightings, healed) == {"kill broker": [7.0], "freeze source": [4.5]}
    assert (percentile([1.0, 2.0, 3.0], 0.5), percentile([1.0, 2.0], 0.99), percentile([], 0.5)) == (2.0, 2.0, None)


def test_a_plan_kills_every_part_before_anything_else_and_has_every_fault_before_it_has_one_again() -> None:
    parts: dict[str, Any] = dict.fromkeys(("source", "broker", "mirror"))
    drawn = [str(fault) for fault in _first(faults.plan(7, parts), 16)]
    assert set(drawn[:3]) == {"kill source", "kill broker", "kill mirror"}
    assert sorted(drawn[:8]) == sorted(drawn[8:])
    assert len(set(drawn)) == 8
    assert "restart mirror" not in drawn
    assert drawn == [str(fault) for fault in _first(faults.plan(7, parts), 16)]


def _first(plan: Iterator[faults.Fault], count: int) -> list[faults.Fault]:
    return list(itertools.islice(plan, count))


def test_a_table_of_a_lake_is_there_from_its_first_version_on(tmp_path: Path) -> None:
    file, place = tmp_path / "metadata.json", ("lake", "east", "account")
    file.write_text(json.dumps({"current-snapshot-id": 12}))
    assert find({place: str(file)}, *place) == str(file)
    for without in ({}, {"current-snapshot-id": -1}, {"current-snapshot-id": None}):
        file.write_text(json.dumps(without))
        with pytest.raises(NotThereError):
            find({place: str(file)}, *place)
    with pytest.raises(NotThereError):
        find({}, *place)


def test_flinks_one_job_carries_every_table_from_a_slot_of_its_own() -> None:
    dsns = {database: f"host=127.0.0.1 port=1 user=postgres dbname={database}" for database in DATABASES}
    sources = declare_sources(dsns)
    declared = [re.findall(r"TABLE (\w+)|'schema-name' = '(\w+)'|'slot.name' = '(\w+)'", source) for source in sources]
    slots = [f"{database}_{table}" for database in DATABASES for table in TABLES]
    assert [[*map("".join, found)] for found in declared] == [[f"source_{s}", s.partition("_")[0], s] for s in slots]
    for source, table in zip(sources, TABLES * len(DATABASES), strict=True):
        assert re.findall(r"`(\w+)` BIGINT", source) == [*COLUMNS[table]]
    inserts = re.findall(r"INSERT INTO (\S+) SELECT \* FROM (\S+);", carry_all(lambda *place: ".".join(place)))
    assert inserts == [(slot.replace("_", "."), f"source_{slot}") for slot in slots]


@pytest.mark.parametrize("system", [FlinkJdbc, FlinkIceberg])
def test_flinks_classpath_has_each_artifact_in_one_version(system: type[FlinkJdbc]) -> None:
    artifacts = [artifact.name for name in system.locks for artifact in locked(name)]
    assert sorted(artifacts) == sorted(set(artifacts))


def test_a_doubled_transfer_is_known_by_its_changed_keys() -> None:
    source = made()
    source.run("UPDATE east.entry SET id = -id WHERE transfer = (SELECT min(transfer) FROM east.entry)")
    copy = Books()
    for database, table in itertools.product(DATABASES, TABLES):
        copy.run(f"DELETE FROM {database}.{table}")
    for (database, table), rows in source.rows().items():
        for row in rows.elements():
            copy.run(
                f"INSERT INTO {database}.{table} VALUES ({', '.join('NULL' if v is None else str(v) for v in row)})"
            )
    # A load that comes again brings the row of a key that is gone, and rows beside rows.
    copy.run(
        f"INSERT INTO east.entry SELECT -id, {', '.join(COLUMNS['entry'][1:])} FROM east.entry WHERE id < 0 LIMIT 1"
    )
    copy.run("INSERT INTO west.entry SELECT * FROM west.entry WHERE id > 0 LIMIT 1")
    sightings = Sightings()
    sightings.add(copy.look())
    found = judge(Journal(), sightings, source.rows(), copy.rows())
    assert (found["doubled"], found["doubled_rekeyed"]) == (2, 1)


def found(system: str, seed: int, **figures: Any) -> dict[str, Any]:
    """A trial's figures, as a system without a fault would have them."""
    empty = {
        **dict.fromkeys(COUNTS, 0),
        **dict.fromkeys(("doubled_rekeyed", "looks_torn", "looks_split"), 0),
        **dict.fromkeys(("transfers", "faults", "rows_per_s", "cpu_s", "memory_mb"), 1000),
        **dict.fromkeys(("fresh_p50_s", "fresh_p99_s", "recovery_p50_s", "recovery_max_s", "look_p50_s"), 0.25),
        "looks": 200,
    }
    return {**empty, "system": system, "seed": seed, **figures}


RESULTS = (
    found("one", 1),
    found("other", 1, torn=3, looks_torn=50, fresh_p50_s=3.38),
    found("one", 2, fresh_p50_s=None),
    found("other", 2, torn=1200, looks_torn=1, fresh_p50_s=12.6),
    {"system": "one", "seed": 3, "failed": "TimeoutError: not in time"},
    found("other", 3, fresh_p50_s=99.7),
)


def test_the_table_has_every_seed_of_a_count_and_the_median_of_a_figure() -> None:
    lines = as_table(RESULTS).splitlines()
    assert lines[0] == "| | one | other |"
    assert "| transactions torn | 0 | 3, 1,200, 0 |" in lines
    assert "| seconds until visible, p50 | 0.25 | 13 |" in lines
    assert lines[-1] == "one, seed 3: TimeoutError: not in time"


def test_a_picture_has_a_bar_for_each_system_that_has_all_its_figures() -> None:
    _, looks = PICTURES["wrong-looks"]
    assert bars(RESULTS, looks) == [["system", *looks], ["one", "0", "0", "0"], ["other", "0.5", "0", "0"]]
    never_recovered = [found("one", 1, recovery_p50_s=None), *RESULTS[1:2], found("seldom looked at", 1, looks=20)]
    _, times = PICTURES["freshness"]
    assert [row[0] for row in bars(never_recovered, times)] == ["system", "other"]
