"""Transactions that change rows and say so in an outbox, and what a reader must have of them.

A trigger writes into the source, in the same transaction, what the events must be. Entries of one
key are written under its row's lock, so their order is the order of commits.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from confluent_kafka import Consumer, KafkaError, TopicPartition

from fixtures.connector import Installation
from helpers.connector import ledger

SCHEMA = f"""
{ledger.SCHEMA}
CREATE TABLE orders (id int PRIMARY KEY, version int NOT NULL, tx text NOT NULL);
CREATE TABLE outbox (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregatetype text NOT NULL, aggregateid text, type text, payload jsonb);
INSERT INTO outbox (aggregatetype, payload) VALUES ('early', '{{}}');
CREATE TABLE sent (n bigserial, topic text NOT NULL, key text, value text, id text, type text);
CREATE FUNCTION note_event() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO sent (topic, key, value, id, type)
    VALUES (NEW.aggregatetype, NEW.aggregateid, NEW.payload::text, NEW.id::text, NEW.type);
    RETURN NULL;
END $$;
CREATE TRIGGER note AFTER INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION note_event();
"""
ORDERS = "INSERT INTO orders SELECT n, 0, 'none' FROM generate_series(1, 24) n"
"""Not before `init`: prepared transactions on a table in backfill are parked."""
TABLES = ("public.account", "public.orders", "public.outbox")
MESSAGES = "outbox:(?P<topic>[a-z]+)/(?P<key>.*)"


def config(text: str = "") -> str:
    """The sections of the configuration that make the table and the messages an outbox."""
    return f"\n[[outbox]]\ntable = \"public.outbox\"\n{text}\n[[outbox]]\nmessages = '{MESSAGES}'\n"


class Orders:
    """One session that writes. A prepared transaction's keys are locked until its outcome."""

    def __init__(self, here: Installation, seed: int, keys: Sequence[int] = range(1, 25)) -> None:
        self._connection: psycopg.Connection[Any] = psycopg.connect(here.conninfo, autocommit=True)
        here.at_end(self._connection.close)
        self._random = random.Random(seed)
        self._name = f"{keys[0]}"
        self._free = set(keys)
        self._locked: dict[str, set[int]] = {}
        self._count = 0

    def run(self, pause: Callable[[], object] = lambda: None) -> None:
        """One round: plain and prepared transactions of each outcome, which follows a pause."""
        self.plain()
        first, second = self.prepare(), self.prepare()
        self.plain()
        pause()
        self.end(second, "ROLLBACK")
        self.plain()
        self.end(first, "COMMIT")
        self.plain()

    def plain(self, changes: int = 2) -> None:
        with self._connection.transaction():
            self._change(changes)

    def prepare(self) -> str:
        """Return the gid."""
        self._connection.execute("BEGIN")
        keys = self._change(2)
        gid = f"orders {self._name} {self._count}"
        self._connection.execute(f"PREPARE TRANSACTION '{gid}'")
        self._locked[gid] = keys
        self._free -= keys
        return gid

    def end(self, gid: str, how: str) -> None:
        self._connection.execute(f"{how} PREPARED '{gid}'")
        self._free |= self._locked.pop(gid)

    def _change(self, changes: int) -> set[int]:
        """Change rows of free keys, and say so; a rolled back savepoint says what never was."""
        self._count += 1
        tx = f"{self._name}.{self._count}"
        keys = {self._random.choice(sorted(self._free)) for _ in range(changes)}
        for key in sorted(keys):
            [version] = self._row("UPDATE orders SET version = version + 1, tx = %s WHERE id = %s RETURNING version", tx, key)  # fmt: skip
            self._say(key, tx, version)
            if self._random.random() < 0.2:
                self._connection.execute("SAVEPOINT s")
                self._say(key, "never", version, by_table=True)
                self._connection.execute("ROLLBACK TO SAVEPOINT s")
        return keys

    def _say(self, key: int, tx: str, version: int, *, by_table: bool = False) -> None:
        topic, payload = self._random.choice(("order", "invoice")), json.dumps({"tx": tx, "version": version})
        if not by_table and self._random.random() < 0.2:
            self._row("SELECT pg_logical_emit_message(true, %s, %s::jsonb::text)", f"outbox:{topic}/{key}", payload)
            self._connection.execute(
                "INSERT INTO sent (topic, key, value) VALUES (%s, %s, %s::jsonb::text)", (topic, str(key), payload)
            )
            return
        [event] = self._row(
            "INSERT INTO outbox (aggregatetype, aggregateid, type, payload) VALUES (%s, %s, %s, %s) RETURNING id",
            topic, str(key), f"version {version}", payload,
        )  # fmt: skip
        match self._random.randrange(6):
            case 0:
                self._connection.execute("DELETE FROM outbox WHERE id = %s", (event,))
            case 1:
                self._connection.execute("UPDATE outbox SET type = 'another' WHERE id = %s", (event,))
            case _:
                pass

    def _row(self, query: str, *values: object) -> tuple[Any, ...]:
        row: tuple[Any, ...] | None = self._connection.execute(query.encode(), values).fetchone()
        assert row is not None
        return row


@dataclass(frozen=True, slots=True)
class Event:
    """A record of an outbox's topic."""

    topic: str
    partition: int
    offset: int
    key: str | None
    value: str | None
    headers: dict[str, bytes | None]


def visible(here: Installation) -> tuple[list[Event], list[Any], list[Any]]:
    """What a read_committed reader has: events, rows of orders, commit records; each to where the
    commit records say that it goes.
    """
    commits = here.records("commits")
    lasts = {(r["topic"], r["partition"]): r["last"] for commit in commits for r in commit["ranges"]}
    deadline = time.monotonic() + 30
    while True:
        events, ends = read_events(here)
        tail = here.tail("orders")
        tail.to_end()
        ends |= tail.ends
        mine = {place: last for place, last in lasts.items() if place in ends or ".event." in place[0]}
        if all(ends.get(place, -1) > last for place, last in mine.items()):
            return events, tail.seen, commits
        assert time.monotonic() < deadline, "committed and not visible"


def read_events(here: Installation) -> tuple[list[Event], dict[tuple[str, int], int]]:
    """Return the visible events, and where each partition ends."""
    consumer = Consumer(
        {
            "bootstrap.servers": here.reader.bootstrap,
            "group.id": "a-test",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,
            "log_level": 0,
        }
    )
    try:
        known = consumer.list_topics(timeout=20).topics
        head = f"{here.prefix}.outbox.event."
        places = [TopicPartition(t, p, 0) for t in known if t.startswith(head) for p in known[t].partitions]
        consumer.assign(places)
        events: list[Event] = []
        ends: dict[tuple[str, int], int] = {}
        deadline = time.monotonic() + 30
        while len(ends) < len(places):
            assert time.monotonic() < deadline, "not read to the end"
            for message in consumer.consume(5000, 0.02):
                place, offset, error = (message.topic() or "", message.partition() or 0), message.offset() or 0, message.error()  # fmt: skip
                if error is None:
                    key, value = message.key(), message.value()
                    texts = key and key.decode(), value and value.decode()
                    headers = dict(message.headers() or [])
                    events.append(Event(*place, offset, *texts, headers))  # type: ignore[arg-type]
                elif error.code() == KafkaError._PARTITION_EOF:
                    ends[place] = offset
        return events, ends
    finally:
        consumer.close()


def compare(here: Installation) -> list[Event]:
    """Each committed event once, in order by key, in its transaction's commit record with its
    rows.
    """
    here.caught_up()
    events, rows, commits = visible(here)
    head = f"{here.prefix}.outbox.event."
    wanted: dict[Any, list[Any]] = defaultdict(list)
    with psycopg.connect(here.conninfo) as connection:
        for topic, key, value, id_, type_ in connection.execute(
            "SELECT topic, key, value, id, type FROM sent WHERE topic <> 'early' ORDER BY n"
        ):
            headers = {} if id_ is None else {"id": id_.encode(), "type": type_ and type_.encode()}
            wanted[head + topic, key].append((value, headers))
    found: dict[Any, list[Any]] = defaultdict(list)
    partitions: dict[Any, set[int]] = defaultdict(set)
    for event in sorted(events, key=lambda e: (e.topic, e.partition, e.offset)):
        found[event.topic, event.key].append((event.value, event.headers))
        partitions[event.topic, event.key].add(event.partition)
    different = {name: (found[name], wanted[name]) for name in {*found, *wanted} if found[name] != wanted[name]}
    assert not different, f"events and what was said differ: {different}"
    assert not [key for key, where in partitions.items() if len(where) > 1]
    _compare_transactions(here, events, rows, commits)
    return events


def _compare_transactions(here: Installation, events: Sequence[Event], rows: Sequence[Any], commits: Sequence[Any]) -> None:  # fmt: skip
    """What a commit record's ranges hold: events and rows of the same transactions, no others."""
    of_event = {(e.topic, e.partition, e.offset): json.loads(e.value or "")["tx"] for e in events}
    changed = [s for s in rows if s.value is not None and s.value["after"]["tx"] != "none"]
    of_row = {s.place: s.value["after"]["tx"] for s in changed}
    homes: Counter[str] = Counter()
    covered: Counter[tuple[str, int, int]] = Counter()
    for commit in commits:
        said, done = set(), set()
        for r in commit["ranges"]:
            places = [(r["topic"], r["partition"], offset) for offset in range(r["first"], r["last"] + 1)]
            within = [place for place in places if place in of_event]
            assert ".event." not in r["topic"] or len(within) == r["count"], f"{r} holds {len(within)} events"
            covered.update(within)
            said |= {of_event[place] for place in within}
            done |= {of_row[place] for place in places if place in of_row}
        assert said == done, f"commit record {commit['sequence']} has events of {said} and rows of {done}"
        homes.update(said)
    assert set(covered) == set(of_event), "events in no commit record"
    assert max([*covered.values(), *homes.values()], default=1) == 1, "in two commit records"
