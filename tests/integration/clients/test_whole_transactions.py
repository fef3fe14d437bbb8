"""`twofold_reader` on real topics: whole transactions in commit order, from any place, exactly once
where the bookmark is stored with the result; and a refusal where something is missing. Who waits
behind his COMMIT reads his own write.
"""

from __future__ import annotations

import json
import random
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import psycopg.rows
import pytest

from clients.samples import PREPARATION, SAMPLES
from fixtures.connector import Installation, Maker, wait_until
from helpers.connector.ledger import SCHEMA
from helpers.connector.mirror_place import write_place
from helpers.topic_changes import delete_records, delete_topic
from twofold_reader import Change, PositionWaiter, Reader, Refused, Transaction, Unreachable, UsageError, wait

EXAMPLES = Path(__file__).parents[3] / "examples/python"
MANY = 30_000


def reader_of(here: Installation, *tables: str) -> Reader:
    kafka = {"bootstrap.servers": here.reader.bootstrap}
    return Reader(here.prefix, kafka, here.config.registry.url, tables=[f"public.{each}" for each in tables] or None)


def read(here: Installation, start: str = "beginning", *tables: str) -> list[tuple[Transaction, list[Change]]]:
    """All that is visible now from a place on."""
    with reader_of(here, *tables) as reader:
        return [(each, list(each.changes)) for each in reader.transactions(start, follow=False)]


def fold(changes: Iterator[Change], state: dict[int, Any]) -> None:
    """Apply the changes of `account`."""
    for change in changes:
        if change.table != "public.account":
            continue
        if change.op == "t":
            state.clear()
        elif change.op == "d":
            assert change.key is not None
            del state[change.key["id"]]
        else:
            assert change.after is not None
            state[change.after["id"]] = change.after


@pytest.fixture(scope="module")
def bank(module_connector: Maker) -> Installation:
    """A prefix with loads, plain, large and prepared transactions."""
    here = module_connector(init=False, source={"tables": ["public.account", "public.transfer", "public.journal"]})
    here.sql(SCHEMA, "INSERT INTO account SELECT i, 0, 'loaded' FROM generate_series(1, 500) i")
    here.initialise()
    here.carry()
    wait_until(lambda: len(here.reader.read([here.table("account")])) == 500)
    here.prepare("never", "INSERT INTO account VALUES (900, 9, 'never')")
    here.prepare("late", "UPDATE account SET note = 'late' WHERE id <= 20", "INSERT INTO journal VALUES ('late')")
    wait_until(lambda: len(here.records("prepared")) >= 2, 90, "both are open")
    here.sql(
        "BEGIN; UPDATE account SET version = 1 WHERE id > 20; INSERT INTO transfer SELECT i::text, i, 1 FROM generate_series(21, 60) i; COMMIT",
        "ROLLBACK PREPARED 'never'",
        "COMMIT PREPARED 'late'",
        "UPDATE account SET id = 1000 WHERE id = 500",
        "DELETE FROM account WHERE id BETWEEN 30 AND 40",
        f"BEGIN; INSERT INTO account SELECT i, 0, 'many' FROM generate_series(10001, {10_000 + MANY}) i; INSERT INTO journal VALUES ('many'); COMMIT",
        "BEGIN; TRUNCATE transfer; INSERT INTO transfer VALUES ('new', 1, 1); COMMIT",
    )
    here.caught_up()
    return here


def test_a_chosen_table_that_has_no_topic_is_named(bank: Installation, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever misspells it would wait for ever."""
    assert read(bank, "beginning", "acount", "journal")
    assert f"there is no topic {bank.table('acount')} (yet)" in caplog.text
    assert bank.table("journal") not in caplog.text


@pytest.mark.core
def test_transactions_are_whole_and_in_commit_order(bank: Installation) -> None:
    found = read(bank)
    loads = [(each, changes) for each, changes in found if each.kind == "load"]
    assert sum(len(changes) for _, changes in loads) == 500
    assert all(change.op == "r" for _, changes in loads for change in changes)
    transactions = [(each, changes) for each, changes in found if each.kind == "transaction"]
    positions = [each.commit_lsn for each, _ in transactions]
    assert positions == sorted(set(positions))
    for each, changes in transactions:
        numbers = [change.number for change in changes]
        assert numbers == sorted(set(numbers)), each
    assert len({each.id for each, _ in transactions}) == len(transactions)
    first, late, moved, deleted, many, truncated = [
        [(change.op, change.table) for change in changes] for _, changes in transactions[:6]
    ]
    assert first == [("u", "public.account")] * 480 + [("c", "public.transfer")] * 40
    assert late == [("u", "public.account")] * 20 + [("c", "public.journal")]
    assert transactions[1][0].gid == "late"
    assert moved == [("d", "public.account"), ("c", "public.account")]
    assert deleted == [("d", "public.account")] * 11
    assert many == [("c", "public.account")] * MANY + [("c", "public.journal")]
    assert truncated == [("t", "public.transfer"), ("c", "public.transfer")]
    assert not any("never" in str(change) for _, changes in found for change in changes)
    state: dict[int, Any] = {}
    for _, changes in found:
        fold(iter(changes), state)
    with psycopg.connect(bank.conninfo) as connection:
        rows = connection.execute("SELECT id, version, note FROM account").fetchall()
    assert sorted(tuple(row.values()) for row in state.values()) == sorted(rows)


def test_a_table_alone_has_its_own_transactions(bank: Installation) -> None:
    found = [(each.gid, changes) for each, changes in read(bank, "beginning", "journal") if each.kind == "transaction"]
    assert [(gid, [change.after for change in changes]) for gid, changes in found[:2]] == [
        ("late", [{"line": "late"}]),
        (None, [{"line": "many"}]),
    ]


def test_a_bookmark_and_a_position_continue_where_they_say(bank: Installation) -> None:
    found = read(bank)
    ids = [(each.sequence, each.id) for each, _ in found]
    for at in (0, len(found) // 2, len(found) - 3, len(found) - 1):
        again = read(bank, found[at][0].bookmark)
        assert [(each.sequence, each.id) for each, _ in again] == ids[at + 1 :]
    at, transaction = next((at, each) for at, (each, _) in enumerate(found) if each.gid == "late")
    assert [(each.sequence, each.id) for each, _ in read(bank, transaction.position)] == ids[at:]
    assert read(bank, "newest") == []


NOT_OF_PYTHON = {"int4range", "tstzrange"}
"""psycopg has classes of its own for these."""


def test_values_are_those_that_psycopg_gives(connector: Maker) -> None:
    samples = [each for each in SAMPLES if not each.special and each.name not in NOT_OF_PYTHON]
    here = connector(init=False, source={"tables": ["public.sample"]})
    columns = ", ".join(f"{each.column} {each.type}" for each in samples)
    here.sql(*PREPARATION, f"CREATE TABLE sample (id int PRIMARY KEY, {columns})")
    here.initialise()
    with here.carrying():
        for number in range(3):
            here.sql(f"INSERT INTO sample VALUES ({number}, {', '.join(each.value(number) for each in samples)})")
        position = behind_commit(here, "INSERT INTO sample VALUES (9)")
        wait(position, here.prefix, {"bootstrap.servers": here.reader.bootstrap}, here.config.registry.url)
    with psycopg.connect(here.conninfo, row_factory=psycopg.rows.dict_row) as connection:
        connection.execute("SET TIME ZONE 'UTC'")
        rows = connection.execute("SELECT * FROM sample ORDER BY id").fetchall()
    found = [change.after for _, changes in read(here) for change in changes]
    for name in (each.column for each in samples):
        for expected, row in zip(rows, found, strict=True):
            assert row is not None
            assert (type(row[name]), str(row[name])) == (type(expected[name]), str(expected[name])), name
    with reader_of(here) as reader:
        (batch,) = reader.as_arrow("beginning", follow=False)
    after = batch.tables["public.sample"].column("after").to_pylist()
    assert [each["id"] for each in after] == [0, 1, 2, 9]
    assert after[0]["v_numeric"] == "12345678901234567890.123456789"


def test_rows_have_a_new_column_from_the_next_change_on(connector: Maker) -> None:
    here = connector(source={"tables": ["public.account"]})
    with here.carrying():
        here.sql(
            "INSERT INTO account VALUES (1, 1, 'before')",
            "ALTER TABLE account ADD COLUMN branch int",
            "INSERT INTO account VALUES (2, 1, 'behind', 7)",
        )
        here.caught_up()
    before = {"id": 1, "version": 1, "note": "before"}
    behind = {"id": 2, "version": 1, "note": "behind", "branch": 7}
    assert [change.after for _, changes in read(here) for change in changes][:2] == [before, behind]
    with reader_of(here) as reader:
        first, second = reader.as_arrow("beginning", follow=False)
    assert [each["after"] for each in first.tables["public.account"].to_pylist()] == [before]
    assert second.tables["public.account"].to_pylist()[0]["after"] == behind
    assert None not in (first.bookmark, second.bookmark)


def test_what_is_committed_comes_to_a_reader_that_follows(bank: Installation) -> None:
    with reader_of(bank, "journal") as reader:
        transactions = reader.transactions("newest")
        bank.sql("INSERT INTO journal VALUES ('now')")
        first = next(transactions)
        assert [change.after for change in first.changes] == [{"line": "now"}]


@pytest.mark.parametrize("start", ["oldest", "0/", "1:x:1:0"])
def test_a_place_that_is_none_is_refused(bank: Installation, start: str) -> None:
    with reader_of(bank) as reader, pytest.raises(UsageError, match=r"is no (place|position)"):
        next(reader.transactions(start))


def test_what_retention_removed_is_refused(connector: Maker) -> None:
    here = connector(kafka={"partitions": 1})  # which of three a key lies in depends on its schema's id
    with here.carrying():
        for each in range(3):
            here.sql(f"INSERT INTO account SELECT i, {each}, 'x' FROM generate_series({each}0, {each}9) i")
            here.caught_up()
    first, *_ = [each for each, _ in read(here)]
    delete_records(here.reader.bootstrap, here.table("account"), 5)
    with pytest.raises(Refused, match=r"Kafka no longer has .*account"):
        read(here, first.bookmark)
    with pytest.raises(Refused, match=r"Kafka no longer has .*account"):
        read(here, first.position)
    whole = read(here)
    assert sum(change.op == "c" for _, changes in whole for change in changes) == 20, "what Kafka has whole"
    delete_records(here.reader.bootstrap, f"{here.prefix}.commits", int(first.bookmark.split(":")[3]) + 1)
    with pytest.raises(Refused, match="which the bookmark names"):
        read(here, first.bookmark)


def test_a_bookmark_of_the_last_commit_record_outlives_it(connector: Maker) -> None:
    """As of a source that is idle for longer than Kafka keeps its topics."""
    here = connector()
    with here.carrying():
        here.caught_up()
    mark = read(here)[-1][0].bookmark
    delete_records(here.reader.bootstrap, f"{here.prefix}.commits")
    assert read(here, mark) == []
    with here.carrying():
        here.sql("INSERT INTO account VALUES (1, 1, 'behind')")
        here.caught_up()
    first, *_ = [changes for _, changes in read(here, mark)]
    assert [change.after for change in first] == [{"id": 1, "version": 1, "note": "behind"}]


def test_a_position_is_refused_where_all_commit_records_since_are_deleted(connector: Maker) -> None:
    here = connector(kafka={"partitions": 1})
    with here.carrying():
        here.sql("INSERT INTO account VALUES (1, 1, 'deleted')")
        here.caught_up()
        first, *_ = [each.position for each, _ in read(here) if each.kind == "transaction"]
        behind = str(here.ask("SELECT pg_current_wal_lsn()"))
        delete_records(here.reader.bootstrap, f"{here.prefix}.commits")
        with pytest.raises(Refused, match=f"no longer has all commit records since {first}"):
            read(here, first)
        assert read(here, behind) == [], "nothing was committed since"


def test_topics_that_were_recreated_are_refused(connector: Maker) -> None:
    here = connector()
    with here.carrying():
        here.sql("INSERT INTO account VALUES (1, 1, 'old')")
        here.caught_up()
    last, _ = read(here)[-1]
    here.twofold("reset", "--yes", ok=True)
    here.delete_topics()
    here.initialise()
    with here.carrying():
        here.sql(*(f"INSERT INTO account VALUES ({each}, 1, 'new')" for each in range(2, 5)))
        here.caught_up()
    with pytest.raises(Refused, match="were recreated"):
        read(here, last.bookmark)


def test_a_tables_topic_that_was_made_again_is_refused(connector: Maker) -> None:
    here = connector()
    with here.carrying():
        here.sql("INSERT INTO account VALUES (1, 1, 'old')")
        here.caught_up()
    delete_topic(here.reader.bootstrap, here.table("account"))
    here.twofold("backfill", "start", "public.account", ok=True)
    with here.carrying():
        here.until_loaded(60)
        here.caught_up()
    with pytest.raises(Refused, match=r"names rows of public\.account, and other rows lie there") as refusal:
        read(here)
    assert "start at 'newest'" in str(refusal.value)
    with reader_of(here, "account") as reader:
        transactions = reader.transactions("newest")
        here.twofold("backfill", "start", "public.account", ok=True)
        with here.carrying():
            state: dict[int, Any] = {}
            for each in transactions:
                fold(each.changes, state)
                if each.kind == "load" and not each.loading:
                    break
    assert {0, 1} <= state.keys(), "the repair brings all rows"


class Copies:
    """An example, which is killed again and again."""

    def __init__(self, here: Installation, program: str, target: str) -> None:
        registry = here.config.registry.url
        self._line = [
            sys.executable,
            str(EXAMPLES / program),
            here.reader.bootstrap,
            registry,
            here.prefix,
            "public.accounts",
            target,
        ]

    def kill_after(self, lines: int) -> None:
        """Start it, and kill it -9 when it has said so many lines."""
        with subprocess.Popen(self._line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for _ in range(lines):
                if not process.stdout.readline():
                    assert process.stderr is not None
                    raise AssertionError(process.stderr.read())
            process.kill()

    def run_until(self, holds: Callable[[], bool]) -> None:
        """Start it, and end it as Ctrl-C does when it has come so far."""
        with subprocess.Popen(self._line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
            wait_until(lambda: holds() or process.poll() is not None)
            assert process.poll() is None, process.stderr and process.stderr.read()
            process.terminate()


@pytest.fixture
def accounts(connector: Maker) -> Installation:
    here = connector(init=False, source={"tables": ["public.accounts"]})
    make_accounts(here)
    here.carry()
    wait_for_load(here)
    return here


def wait_for_load(here: Installation) -> None:
    """Before the load has ended, a table's rows are not whole."""
    wait_until(lambda: len(here.reader.read([here.table("accounts")])) == 20)


def make_accounts(here: Installation) -> None:
    here.sql(
        "CREATE TABLE accounts (id bigint PRIMARY KEY, owner text NOT NULL, balance numeric(12, 2) NOT NULL)",
        "INSERT INTO accounts SELECT i, 'owner ' || i, 100 FROM generate_series(1, 20) i",
    )
    here.initialise()


def transfers(here: Installation, count: int, seed: int) -> None:
    """Move money between two accounts, each time in one transaction: the sum stays."""
    choice = random.Random(seed)
    with psycopg.connect(here.conninfo) as connection:
        for _ in range(count):
            one, other = choice.sample(range(1, 21), 2)
            connection.execute("UPDATE accounts SET balance = balance - 1 WHERE id = %s", [one])
            connection.execute("UPDATE accounts SET balance = balance + 1 WHERE id = %s", [other])
            connection.commit()


def source_rows(here: Installation) -> list[Any]:
    with psycopg.connect(here.conninfo) as connection:
        return connection.execute("SELECT id, owner, balance FROM accounts ORDER BY id").fetchall()


def sqlite_rows(file: Path) -> list[Any]:
    with closing(sqlite3.connect(file)) as database:
        found = database.execute("SELECT id, name, balance FROM owner ORDER BY id").fetchall()
    return [(number, name, Decimal(balance)) for number, name, balance in found]


def kill_again_and_again(accounts: Installation, copies: Copies, rows: Callable[[], list[Any]]) -> None:
    for kill in range(3):
        transfers(accounts, 50, kill)
        copies.kill_after(random.Random(kill).randint(1, 20))
        assert len(rows()) == 20
        assert sum(balance for _, _, balance in rows()) == 2000, "a transfer is torn"
    copies.run_until(lambda: rows() == source_rows(accounts))


@pytest.mark.core
def test_the_sqlite_example_counts_each_transaction_once(accounts: Installation, tmp_path: Path) -> None:
    file = tmp_path / "totals.db"
    kill_again_and_again(accounts, Copies(accounts, "totals_sqlite.py", str(file)), lambda: sqlite_rows(file))


def test_the_postgres_example_copies_each_transaction_once(accounts: Installation, database: str) -> None:
    def rows() -> list[Any]:
        with psycopg.connect(database) as connection:
            return connection.execute("SELECT id, owner, balance FROM accounts ORDER BY id").fetchall()

    kill_again_and_again(accounts, Copies(accounts, "copy_postgres.py", database), rows)


def behind_commit(here: Installation, statement: str) -> str:
    """Execute it, and return where the source is behind its COMMIT."""
    with psycopg.connect(here.conninfo, autocommit=True) as connection:
        connection.execute(statement)
        row = connection.execute("SELECT pg_current_wal_lsn()::text").fetchone()
    assert row is not None
    return str(row[0])


@pytest.mark.parametrize(
    ("clients", "commits"), [pytest.param(3, 5, marks=pytest.mark.core), pytest.param(8, 1250, marks=pytest.mark.slow)]
)
def test_who_waits_behind_his_commit_reads_his_own_write(bank: Installation, clients: int, commits: int) -> None:
    kafka, registry = {"bootstrap.servers": bank.reader.bootstrap}, bank.config.registry.url

    def write_and_read(client: int) -> None:
        with PositionWaiter.at(bank.prefix, kafka, registry) as waiter, reader_of(bank, "journal") as reader:
            waiter.wait(behind_commit(bank, "INSERT INTO journal VALUES ('before')"))
            mark = [each.bookmark for each in reader.transactions("beginning", follow=False)][-1]
            for number in range(commits):
                line, seen = f"own {client} {number}", []
                waiter.wait(behind_commit(bank, f"INSERT INTO journal VALUES ('{line}')"))
                for transaction in reader.transactions(mark, follow=False):
                    seen += [change.after for change in transaction.changes]
                    mark = transaction.bookmark
                assert {"line": line} in seen

    with ThreadPoolExecutor(clients) as executor:
        for each in executor.map(write_and_read, range(clients)):
            assert each is None


def test_a_position_behind_what_is_not_published_is_reached(bank: Installation) -> None:
    position = behind_commit(bank, "INSERT INTO unpublished (filler) VALUES ('x')")
    done = bank.twofold("wait", position, ok=True)
    assert f"{position} is visible in Kafka" in done.stdout
    wait(position, bank.prefix, {"bootstrap.servers": bank.reader.bootstrap}, bank.config.registry.url)


def test_a_position_that_is_not_reached_ends_with_status_4_and_how_far_it_is(bank: Installation) -> None:
    done = bank.twofold("wait", "FFFF/0", "--timeout", "0.5")
    assert done.returncode == 4
    assert re.search(
        r"FFFF/0 of \S+ is not visible in Kafka within 0.5 s: it is at 0/\w+, commit record \d+", done.stderr
    )
    assert bank.twofold("wait", "somewhere").returncode == 2


def test_a_position_in_the_mirror_is_waited_for(bank: Installation) -> None:
    position = behind_commit(bank, "INSERT INTO unpublished (filler) VALUES ('x')")
    bank.twofold("wait", position, ok=True)
    records = [each for each in bank.records("progress") if isinstance(each, dict) and "sequence" in each]
    sequence, stream_id = max((each["sequence"], each["stream_id"]) for each in records)
    missing = bank.twofold("wait", position, "--until", "mirror", "--timeout", "0.5")
    assert missing.returncode == 4
    assert f"no mirror has said in the group {bank.prefix}.mirror where it is" in missing.stderr
    write_mirror_place(bank, sequence + 900, stream_id="of the former topics")
    former = bank.twofold("wait", position, "--until", "mirror", "--timeout", "0.5")
    assert former.returncode == 4
    assert f"the mirror reads topics of {bank.prefix} that were made again since" in former.stderr
    write_mirror_place(bank, sequence - 1, stream_id=stream_id)
    late = bank.twofold("wait", position, "--until", "mirror", "--timeout", "0.5")
    assert late.returncode == 4
    assert f"in the mirror within 0.5 s: it is at 0/1, commit record {sequence - 1};" in late.stderr
    # Behind the last commit record the source moves on, and the mirror has nothing to publish.
    write_mirror_place(bank, sequence, stream_id=stream_id)
    bank.twofold("wait", position, "--until", "mirror", ok=True)
    alone = bank.twofold("wait", position, "--until", "global")
    assert alone.returncode == 3
    assert "is not that of a source group" in alone.stderr
    write_mirror_place(bank, sequence, stream_id=stream_id, of_group=True)
    bank.twofold("wait", position, "--until", "global", ok=True)


def test_a_waiter_forgets_topics_that_were_made_again(connector: Maker) -> None:
    """What it knows would make the former mirror's last cut count for the new topics."""
    here = connector(source={"tables": ["public.account"]})
    kafka, registry = {"bootstrap.servers": here.reader.bootstrap}, here.config.registry.url
    with PositionWaiter.at(here.prefix, kafka, registry) as waiter:
        with here.carrying():
            waiter.wait(behind_commit(here, "INSERT INTO account VALUES (1, 1, 'former')"))
        stream_id = next(each["stream_id"] for each in here.records("progress") if isinstance(each, dict))
        write_mirror_place(here, 900, stream_id=stream_id)
        waiter.wait("0/1", until="mirror")
        here.twofold("reset", "--yes", ok=True)
        here.delete_topics()
        here.initialise()
        write_mirror_place(here, 900, stream_id=stream_id)
        with pytest.raises(Unreachable, match=r"the mirror reads topics of \S+ that were made again since"):
            waiter.wait("0/1", until="mirror", timeout_s=0.5)
        with here.carrying():
            waiter.wait(behind_commit(here, "INSERT INTO account VALUES (2, 1, 'new')"))


def write_mirror_place(here: Installation, sequence: int, **more: str | bool) -> None:
    """As a mirror does."""
    write_place(here, json.dumps({"sequence": sequence, "applied_lsn": 1, "committed_us": 0, **more}))
