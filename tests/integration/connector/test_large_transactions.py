"""One transaction of very many rows, plain and prepared, streamed and not: little memory, whole or
not at all, and what streaming saves.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from fixtures.connector import Installation, Maker, wait_until
from helpers.connector.ledger import SCHEMA
from helpers.source.streaming import force
from twofold.stack import KafkaCluster
from twofold.stack.kafka import PRODUCTION_JVM
from twofold_avro import wire

LARGE = 5_000_000
MEMORY_MAX = 300e6
PATIENCE_S = 400
LONG: dict[str, Any] = {"kafka": {"transaction_timeout": 600.0}, "turn": {"idle_progress": 3600.0}}
"""A Kafka transaction may take as long as it takes, and there is none but those that are looked at.
"""

ways = pytest.mark.parametrize(
    ("streaming", "prepared"),
    [("on", False), ("off", False), ("on", True), ("off", True)],
    ids=["streamed-plain", "plain", "streamed-prepared", "prepared"],
)


class Visible:
    """Which of the rows 1, 2, ...

    a read_committed consumer has seen, and how often; too many to be decoded.
    """

    def __init__(self, here: Installation, table: str, rows: int) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": here.reader.bootstrap,
                "group.id": "large",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
            }
        )
        topic = here.table(table)
        self._places = [TopicPartition(topic, p, 0) for p in self._consumer.list_topics(topic).topics[topic].partitions]
        assert self._places, f"{topic} is there"
        self._times_seen = bytearray(rows + 1)
        self.count = 0

    def look(self, within_s: float = 120) -> int:
        """Read on to the end. How many have been seen by now."""
        deadline = time.monotonic() + within_s
        self._consumer.assign(self._places)  # again, or an end that was told before is not told again
        ended: dict[int, TopicPartition] = {}
        while len(ended) < len(self._places):
            assert time.monotonic() < deadline, f"not read to the end within {within_s:g} s"
            for message in self._consumer.consume(10_000, 0.2):
                if (error := message.error()) is None:
                    self._saw(message.key())
                elif error.code() == KafkaError._PARTITION_EOF:
                    place = TopicPartition(message.topic() or "", message.partition() or 0, message.offset() or 0)
                    ended[place.partition] = place
        self._places = list(ended.values())
        return self.count

    def _saw(self, key: bytes | str | None) -> None:
        assert isinstance(key, bytes)
        self._times_seen[_zigzag(key[wire.HEADER_BYTES :])] += 1
        self.count += 1

    @property
    def each_once(self) -> bool:
        return self._times_seen[1:] == b"\1" * (len(self._times_seen) - 1)

    def close(self) -> None:
        self._consumer.close()


def _zigzag(data: bytes) -> int:
    value = functools.reduce(lambda sum_, at: sum_ | (data[at] & 0x7F) << 7 * at, range(len(data)), 0)
    return value >> 1 ^ -(value & 1)


def memory_peak(pid: int) -> int:
    """Bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


ORDERS = """
CREATE TABLE orders (
    id int PRIMARY KEY, quantity int, customer text, price numeric, placed_at timestamptz,
    details jsonb, paid boolean, token uuid, note text, version bigint)
"""
ROWS_OF = {
    "account": "SELECT i, 1, 'a note of some length ' || i",
    "orders": """
SELECT i, i % 100, 'customer ' || i % 5000, (i % 100000) / 100.0, timestamptz '2024-01-01 00:00:00+00' + i * interval '1.234567 s',
       jsonb_build_object('sku', 'A-' || i % 977, 'gift', i % 2 = 0), i % 3 = 0, gen_random_uuid(), repeat('n', 10 + i % 40), i * 1000003::bigint""",
}
"""Few columns and ten of many types.

What PostgreSQL has to do for a row grows with its columns, and more than what is left to do when a
streamed transaction ends.
"""


def with_tables(connector: Maker, kafka_server: Any = None, **options: Any) -> Installation:
    """An installation that carries both; no trigger follows their rows."""
    source = {"tables": ["public.account", "public.orders"], **options.pop("source", {})}
    here = connector(init=False, kafka_server=kafka_server, source=source, **options)
    here.sql(SCHEMA, "ALTER TABLE account DISABLE TRIGGER note", ORDERS)
    here.initialise()
    return here


def insert(table: str, rows: int) -> bytes:
    return f"INSERT INTO {table} {ROWS_OF[table]} FROM generate_series(1, {rows}) i".encode()


def decoded(here: Installation, lsn: str) -> bool:
    """Whether the walsender has come that far."""
    return bool(
        here.ask(f"SELECT sent_lsn >= '{lsn}' FROM pg_stat_replication WHERE application_name = '{here.prefix}'")
    )


def carries_a_large_one(here: Installation, table: str, rows: int, *, prepared: bool) -> float:
    """Whole, within the memory that is promised.

    Returns the seconds from its end, once PostgreSQL has read its rows, until it is visible.
    """
    run = here.start()
    with closing(here.reader.tail([f"{here.prefix}.commits"])) as commits:
        with psycopg.connect(here.conninfo, autocommit=True) as writer:
            writer.execute("BEGIN")
            writer.execute(insert(table, rows))
            lsn = here.ask("SELECT pg_current_wal_insert_lsn()")
            wait_until(functools.partial(decoded, here, lsn), PATIENCE_S)
            begun = time.monotonic()
            writer.execute("PREPARE TRANSACTION 'large'" if prepared else "COMMIT")
            if prepared:
                writer.execute("COMMIT PREPARED 'large'")
        found = commits.wait_for(lambda s: s.value["rows"] >= rows, PATIENCE_S, unless=lambda: run.dead)
        took = time.monotonic() - begun
    assert found is not None
    assert found.value["rows"] == rows
    peak = memory_peak(run.process.pid)
    print(f"\n{rows} rows of {table}, {prepared=}: visible after {took:.1f} s, peak {peak / 1e6:.0f} MB")
    assert peak < MEMORY_MAX
    with closing(Visible(here, table, rows)) as visible:
        wait_until(lambda: visible.look() == rows, what="all of it is visible")
        assert visible.each_once
    run.stop()
    return took


@pytest.mark.parametrize(
    ("streaming", "prepared"),
    [pytest.param("on", False, id="streamed-plain"), pytest.param("off", True, id="prepared", marks=pytest.mark.slow)],
)
def test_a_large_transaction_takes_little_memory(connector: Maker, streaming: str, prepared: bool) -> None:
    here = with_tables(connector, spool={"memory": 1 << 20})
    force(here, streaming)
    carries_a_large_one(here, "account", 60_000, prepared=prepared)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("prepared", [False, True], ids=["plain", "prepared"])
@pytest.mark.parametrize("table", ["orders", "account"])
def test_five_million_rows(
    connector: Maker, own_kafka: Callable[..., KafkaCluster], table: str, prepared: bool
) -> None:
    """And what streaming saves.

    The broker is set as in production, where it has seen such rows before.
    """
    took = {}
    kafka = own_kafka(jvm=PRODUCTION_JVM)
    for streaming, rows in [("on", LARGE // 5), ("off", LARGE), ("on", LARGE)]:
        here = with_tables(connector, kafka, source={"streaming": streaming}, **LONG)
        took[streaming] = carries_a_large_one(here, table, rows, prepared=prepared)
    print(f"from the end to visible: streamed {took['on']:.1f} s, not streamed {took['off']:.1f} s")
    assert took["on"] <= took["off"] / 3


OUTCOME = "COMMIT PREPARED"


def places(rows: int, *, prepared: bool) -> list[str]:
    """Where a connector dies: while the transaction comes, while a prepared one is opened, while it
    is published. A read takes 5,000 rows at most, a batch some 15,000 of these.
    """
    reads, batches = rows // 5000, rows // 20_000
    coming = [f"after_read:{reads // 4}", f"after_decode:{reads // 2}", f"after_read:{reads}"]
    opened = ["after_staging", "before_open", "after_open", OUTCOME]
    producing = ["after_begin", f"after_produce:{batches // 3}", f"after_produce:{batches * 2 // 3}"]
    ending = ["after_flush", "after_commit_record", "before_commit", "after_commit"]
    return [*coming, *(opened if prepared else []), *producing, *ending]


@pytest.mark.slow
@pytest.mark.timeout(2400)
@ways
@pytest.mark.parametrize("rows", [100_000, LARGE])
def test_killed_on_the_way(connector: Maker, rows: int, streaming: str, prepared: bool) -> None:
    """Again and again: until it is committed in Kafka a reader sees nothing of it, then all of it,
    once.
    """
    here = with_tables(connector, source={"streaming": streaming}, **LONG)
    with psycopg.connect(here.conninfo, autocommit=True) as writer:
        writer.execute("BEGIN")
        writer.execute(insert("account", rows))
        writer.execute("PREPARE TRANSACTION 'large'" if prepared else "COMMIT")

    killed = []
    with closing(Visible(here, "account", rows)) as visible:
        for place in places(rows, prepared=prepared):
            if place == OUTCOME:
                here.configure({"prepared": {"rules": [{"gid": "large", "action": "park"}]}})
                here.sql("COMMIT PREPARED 'large'")
                continue
            assert here.start(place, ready=False).ended(PATIENCE_S) == -9
            killed.append(place)
            assert visible.look() in ({0, rows} if place == "after_commit" else {0}), place
        run = here.start()
        here.caught_up(PATIENCE_S)
        wait_until(
            lambda: visible.look() == rows + 1, what="all of it is visible, what caught_up writes, and nothing else"
        )
        assert visible.each_once
        run.stop()
    print(f"\n{rows} rows, {streaming=}, {prepared=}: killed at {len(killed)} places: {', '.join(killed)}")
    assert len(killed) >= 10
