"""Some seeds side by side over one connector, which runs, is away, or is killed; at the end of each
round every topic is compared with its table.
"""

from __future__ import annotations

import random
import re
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg

from ddl.changes import PUBLISHED, TABLES, Seed, Transaction
from fixtures.connector import Installation, wait_until
from helpers.connector.topics import Tail, fold
from twofold.errors import Refused
from twofold.run.initialisation import initialise
from twofold.run.supervisor import supervise

GIVEN_UP_AFTER_S = 60.0
"""How long the same tables may be wrong by the same rows."""
CARRIED_WITHIN_S = 300.0
COMMAND = re.compile(r"twofold (backfill start \S+)")
COMMANDS = 0.01
"""How many commands there are for each commit."""
ROUNDS = ("running", "away", "running", "killed", "away", "running")


@dataclass(slots=True)
class Counts:
    """What a batch did."""

    commits: int = 0
    changes: int = 0
    failed: int = 0
    refused: int = 0
    commands: int = 0
    named: int = 0
    worked_s: float = 0.0
    carried_s: float = 0.0
    right_s: float = 0.0
    """How long the commits took, the connector then lagged, and reloads then went on."""
    wrong: list[str] = field(default_factory=list)


class Batch:
    """The seeds' tables, topics and sessions."""

    def __init__(
        self, here: Installation, seeds: list[int], *, told: bool, patience_s: float = GIVEN_UP_AFTER_S
    ) -> None:
        self.here, self.counts, self._patience_s = here, Counts(), patience_s
        self.seeds = [Seed(number, here.prefix, told=told) for number in seeds]
        here.configure(
            {"source": {"tables": [], "ddl_messages": told}, "backfill": {"notice": 0.3}, "prepared": {"pool": 4}}
        )
        here.sql("CREATE TABLE account (id int PRIMARY KEY, version int NOT NULL, note text)")
        tables = []
        for seed in self.seeds:
            here.sql(*seed.made())
            tables += [f"{seed.schema}.{each}" for each in PUBLISHED.values()]
        here.sql(f"CREATE PUBLICATION {here.prefix} FOR TABLE account, {', '.join(tables)}")
        initialise(here.config, lambda _: None)
        self._scripts = {seed: seed.transactions() for seed in self.seeds}
        self._pending: dict[Seed, str] = {}
        self._unfinished: set[Seed] = set()
        """Those whose last change is not undone yet."""
        self._paused: set[str] = set()
        self._told = told
        self._pins: dict[str, Any] = {}
        """The last pin of each table, by which one knows that a look has described it."""
        self._progress: Tail = here.reader.tail([f"{here.prefix}.progress"])
        self._random = random.Random(sum(seeds))
        self._folded = Folded(here, [f"{here.prefix}.{seed.schema}.{table}" for seed in self.seeds for table in TABLES])

    def run(self, commits: int, *, processes: bool, rounds: Sequence[str] = ROUNDS) -> Counts:
        """Each seed commits so many transactions. Without processes nothing is killed."""
        each = -(-commits // len(rounds))
        for kind in rounds:
            if kind == "running":
                with self.carrying():
                    self.work(each, 0.02, looked=not self._told)
                    self.check()
            elif kind == "killed" and processes:
                run = self.here.start()
                self.work(each // 2, 0.02)
                run.kill9()
                self.here.runs.clear()
                self.work(each - each // 2)
            else:
                self.work(each)
            if self.counts.wrong:
                break
        self._folded.close()
        self._progress.close()
        return self.counts

    def work(self, commits: int, pause_s: float = 0.0, *, looked: bool = False) -> None:
        """Let each seed commit so many transactions, by turns. `looked`: only after a look at the
        catalog has described each table. Without messages nothing tells of an earlier change.
        """
        began = time.monotonic()
        with psycopg.connect(self.here.conninfo, autocommit=True) as session:
            session.execute("SET lock_timeout = '1s'")
            for _ in range(commits):
                if looked:
                    self._look(session)
                for seed in self.seeds:
                    while not self._carry_out(session, seed, next(self._scripts[seed])):
                        if looked:
                            self._look(session)
                    self.counts.commits += 1
                    if self._random.random() < COMMANDS:
                        self._command(seed)
                time.sleep(pause_s)
        self.counts.worked_s += time.monotonic() - began

    def _look(self, session: psycopg.Connection[Any]) -> None:
        """Wait until a look has described all tables as they are."""
        for seed in self.seeds:
            self._end(session, seed)
        self.here.caught_up(CARRIED_WITHIN_S)
        wait_until(lambda: self._is_described(session), CARRIED_WITHIN_S, "each table is described")

    def _is_described(self, session: psycopg.Connection[Any]) -> bool:
        self._progress.to_end()
        for seen in self._progress.seen:
            if isinstance(seen.value, dict) and "stored" in seen.value:
                self._pins[f"{seen.value['schema']}.{seen.value['table']}"] = seen.value
        self._progress.seen.clear()
        published = session.execute(
            "SELECT schemaname || '.' || tablename FROM pg_publication_tables WHERE pubname = %s", (self.here.prefix,)
        ).fetchall()
        pins = [self._pins.get(table) for (table,) in published if table not in self._paused]
        return all(pin and pin["stored"] and pin["backfill"] == "ready" and not pin["reload_due"] for pin in pins)

    def _carry_out(self, session: psycopg.Connection[Any], seed: Seed, it: Transaction) -> bool:
        """Whether it was committed. What fails is rolled back, and its table is made again."""
        self._end(session, seed)
        try:
            session.execute("BEGIN")
            for at, statement in enumerate(it.statements):
                if at == it.savepoint:
                    session.execute("SAVEPOINT a")
                    session.execute(statement)
                    session.execute("ROLLBACK TO a")
                session.execute(statement)
            if it.rolled_back:
                session.execute("ROLLBACK")
                return False
            if not it.prepared:
                session.execute("COMMIT")
            else:
                gid = f"{self.here.prefix}_{seed.number}_{self.counts.commits}"
                session.execute(f"PREPARE TRANSACTION '{gid}'")
                self._pending[seed] = gid
                if any("PUBLICATION" in each for each in it.statements):  # no other seed could alter it
                    self._end(session, seed)
        except psycopg.Error:
            session.execute("ROLLBACK")
            self.counts.failed += 1
            if it.what != "rows":
                self._repair(session, seed, it.table)
            while not it.closes:  # the rest of the change
                it = next(self._scripts[seed])
            return False
        self.counts.changes += it.what != "rows"
        (self._unfinished.discard if it.closes else self._unfinished.add)(seed)
        return True

    def _command(self, seed: Seed) -> None:
        """Ask for a reload, or pause a load. `cancel` would leave rows out."""
        table, order = f"{seed.schema}.{self._random.choice([*TABLES])}", self._random.choice(["start", "pause"])
        self.here.twofold("backfill", order, table)
        self.counts.commands += 1
        if order == "pause":
            self._paused.add(table)

    def _repair(self, session: psycopg.Connection[Any], seed: Seed, table: str) -> None:
        for statement in seed.repairs(table):
            for part in statement.split("; "):
                try:
                    session.execute(part)
                except psycopg.Error:
                    session.execute("ROLLBACK")
        self._unfinished.discard(seed)

    def _end(self, session: psycopg.Connection[Any], seed: Seed) -> None:
        if gid := self._pending.pop(seed, None):
            session.execute(f"COMMIT PREPARED '{gid}'")

    @contextmanager
    def carrying(self) -> Iterator[None]:
        """The connector runs, with a person who does what a refusal says."""
        stop, ended = threading.Event(), threading.Event()
        found: list[BaseException] = []

        def carry() -> None:
            while not stop.is_set():
                try:
                    supervise(self.here.config, stop)
                except Refused as refused:
                    self.counts.refused += 1
                    if (command := COMMAND.search(str(refused))) is None:
                        found.append(refused)
                        break
                    # A process of its own: in this one only the main thread runs commands.
                    subprocess.run(self.here.command(*command[1].split()), check=True, capture_output=True)
                except BaseException as error:
                    found.append(error)
                    break
            ended.set()

        thread = threading.Thread(target=carry)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(60)
        if found:
            self.counts.wrong.append(f"the connector ended: {found[0]!r}"[:2000])

    def check(self) -> None:
        """Compare each topic with its table, once the connector has carried all."""
        with psycopg.connect(self.here.conninfo, autocommit=True) as session:
            for seed in self.seeds:
                while seed in self._unfinished:
                    if not self._told:
                        self._look(session)
                    self._carry_out(session, seed, next(self._scripts[seed]))
                self._end(session, seed)
        for table in self._paused:
            self.here.twofold("backfill", "resume", table)
        self._paused.clear()
        began = time.monotonic()
        self.here.caught_up(CARRIED_WITHIN_S)
        carried = time.monotonic()
        wrong = self._wait_until_right()
        self.counts.carried_s += carried - began
        self.counts.right_s += time.monotonic() - carried
        stale = {each.table: each for each in self.here.status().stale}
        self.counts.wrong += [f"{table}: {said}" for table, said in wrong.items() if table not in stale]
        for table in stale:
            self.counts.named += 1
            self.here.twofold("backfill", "start", table)

    def _wait_until_right(self) -> dict[str, str]:
        """Return what stays wrong; nothing once all tables are right at one moment."""
        tables = [(seed.schema, table) for seed in self.seeds for table in TABLES]
        wrong, since = self._wrong(tables), time.monotonic()
        while wrong and time.monotonic() < since + self._patience_s:
            # Quick: only those that were wrong, by what has come. Then all, read to their ends.
            self._folded.take()
            now = self._compare([(s, t) for s, t in tables if f"{s}.{t}" in wrong]) or self._wrong(tables)
            if now != wrong:
                wrong, since = now, time.monotonic()
        return wrong

    def _wrong(self, tables: Iterable[tuple[str, str]]) -> dict[str, str]:
        self._folded.read()
        return self._compare(tables)

    def _compare(self, tables: Iterable[tuple[str, str]]) -> dict[str, str]:
        found = {}
        with psycopg.connect(self.here.conninfo, autocommit=True) as session:
            for schema, table in tables:
                name = f"{schema}.{table}"
                if (has := self._rows(session, schema, table)) is None:
                    continue
                said = self._folded.rows(f"{self.here.prefix}.{name}", has[0])
                if said != has[1]:
                    found[name] = f"the topic has {said}, the table {has[1]}"
        return found

    def _rows(self, session: psycopg.Connection[Any], schema: str, table: str) -> tuple[list[str], list[str]] | None:
        """Return the published columns and rows; None if the table is not published now."""
        row = session.execute(
            "SELECT attnames::text[], rowfilter FROM pg_publication_tables WHERE pubname = %s AND schemaname = %s AND tablename = %s",
            (self.here.prefix, schema, table),
        ).fetchone()
        if row is None:
            return None
        columns, where = row
        rows = session.execute(f"SELECT to_jsonb(r) FROM {schema}.{table} r WHERE {where or 'true'}").fetchall()
        return columns, sorted(str({name: row.get(name) for name in columns}) for (row,) in rows)


class Folded:
    """The topics, read from their beginning and folded by partition and key."""

    def __init__(self, here: Installation, topics: list[str]) -> None:
        self._tail: Tail = here.reader.tail(topics)
        self._state: dict[str, dict[tuple[int, str], Any]] = {topic: {} for topic in topics}

    def read(self) -> None:
        """Read to the topics' ends."""
        self._tail.to_end()
        self._fold()

    def take(self) -> None:
        """Take what comes within a moment."""
        self._tail.poll(0.2)
        self._fold()

    def _fold(self) -> None:
        for seen in self._tail.seen:
            state = self._state[seen.topic]
            if seen.key is None and seen.value["op"] != "t":
                # Its table had no key just then. No two of its rows are equal.
                state.pop((seen.partition, str(seen.value["before"])), None)
                if (row := seen.value["after"]) is not None:
                    state[seen.partition, str(row)] = row
            else:
                fold(state, seen)
        self._tail.seen.clear()

    def rows(self, topic: str, columns: list[str]) -> list[str]:
        """Return the rows as a reader has them."""
        return sorted(str({name: row.get(name) for name in columns}) for row in self._state[topic].values())

    def close(self) -> None:
        self._tail.close()
