"""Limits that a large installation meets: a record's size, in both directions."""

from __future__ import annotations

import base64
import os
import threading

import psycopg
import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    ResourceType,
)

from fixtures.connector import Installation, Maker
from fixtures.stack import Kafka
from helpers.topic_changes import alter_topic
from twofold.errors import Refused, TwofoldError
from twofold.kafka.record_sizes import RECORD_BYTES
from twofold.run import run
from twofold.run.observer import Observer
from twofold.run.supervisor import supervise


def gid(number: int) -> str:
    """As pgjdbc's XA resource writes it, and as long as it may be: a commit record has it twice."""
    return "_".join(("1", *(base64.b64encode(part).decode() for part in (b"g" * 64, f"{number:064}".encode()))))


def commit_prepared(here: Installation, count: int) -> None:
    """So many prepared transactions of one row, one after the other, with long gids."""
    with psycopg.connect(here.conninfo, autocommit=True) as connection:
        connection.execute("SET synchronous_commit = off")
        for first in range(0, count, 500):
            with connection.pipeline() as pipeline:
                for n in range(first, min(first + 500, count)):
                    for statement in (
                        "BEGIN",
                        f"INSERT INTO account VALUES ({n + 1}, 1, 'x')",
                        f"PREPARE TRANSACTION '{gid(n)}'",
                    ):
                        connection.execute(statement)
                    pipeline.sync()
                    connection.execute(f"COMMIT PREPARED '{gid(n)}'")
                    pipeline.sync()


def test_a_backlog_of_prepared_transactions_with_long_gids_is_split(
    connector: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One turn takes them all, and its commit record names each."""
    monkeypatch.setattr(run, "READ_ROWS_MAX", 500)  # a record closes behind the read that fills it
    here = connector(turn={"rows": 100_000, "time": 30.0, "bytes": 1 << 30})
    commit_prepared(here, count := 2_900)
    with here.carrying():
        here.caught_up()
        commits = here.records("commits")
    assert sum(len(commit["prepared"]) for commit in commits) == count
    assert len(commits) > 1
    assert sorted(s.value["after"]["id"] for s in here.read("account")) == [*range(count + 1)]


def raise_limit(here: Installation, kafka: Kafka, limit: int) -> None:
    """Do what the message says."""
    if limit > RECORD_BYTES:
        here.configure({"kafka": {"options": {"message.max.bytes": limit}}})
    alter_topic(kafka.bootstrap, here.table("account"), "max.message.bytes", str(limit))


def insert_large(here: Installation, size: int) -> None:
    with psycopg.connect(here.conninfo, autocommit=True) as connection:
        connection.execute("INSERT INTO account VALUES (1, 1, %s)", (os.urandom(size // 2).hex(),))


def assert_one_message_is_enough(here: Installation, kafka: Kafka, size: int) -> Refused:
    """A large row and many behind it: `run` refuses once, and what it says is enough."""
    insert_large(here, size)
    here.sql("INSERT INTO account SELECT n, 1, 'behind' FROM generate_series(2, 20000) n")
    here.sql("INSERT INTO account VALUES (30000, 1, 'last')")
    refusal = here.refusal()
    assert isinstance(refusal, Refused)
    limit = (size // (1 << 20) + 2) << 20
    assert (f'"message.max.bytes" = {limit}' in refusal.repair) == (limit > RECORD_BYTES)
    assert f"--topic {here.table('account')} --add-config max.message.bytes={limit}" in refusal.repair
    raise_limit(here, kafka, limit)
    with here.carrying():
        here.caught_up()
    assert [s.value["after"]["id"] for s in here.read("account")] == [*range(1, 20001), 30000, 0]
    return refusal


def test_a_refusal_of_the_sink_ends_the_run_and_names_every_limit(connector: Maker, kafka: Kafka) -> None:
    """It is about an earlier group than the rows that are read meanwhile."""
    here = connector(kafka={"partitions": 1})
    refusal = assert_one_message_is_enough(here, kafka, 3 << 20)
    assert "socket.request.max.bytes" not in refusal.repair


@pytest.mark.slow
def test_one_message_is_enough_above_the_clients_queue(connector: Maker, kafka: Kafka) -> None:
    """A producer holds 64 MiB unsent, if nothing else is set."""
    assert_one_message_is_enough(connector(kafka={"partitions": 1}), kafka, 80_000_000)


def test_a_row_above_the_brokers_request_is_told_as_such(connector: Maker, kafka: Kafka) -> None:
    here = connector(kafka={"partitions": 1, "options": {"message.max.bytes": 200_000_000}})
    error = here.refusal()
    assert "socket.request.max.bytes" in str(error)
    assert error.exit_status == 2


def test_init_makes_the_commit_records_topic_for_large_records(connector: Maker, kafka: Kafka) -> None:
    here = connector()
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    for name in ("commits", "progress", "prepared"):
        resource = ConfigResource(ResourceType.TOPIC, f"{here.prefix}.{name}")
        described = admin.describe_configs([resource])[resource].result(20)
        assert int(described["max.message.bytes"].value) == 8 << 20


class Ends(Observer):
    """What ended the runs."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.stop = threading.Event()

    def ended(self, error: TwofoldError, wait_s: float) -> None:
        self.errors.append(str(error))
        self.stop.set()


def test_the_brokers_clock_counts_and_another_one_is_told(connector: Maker, kafka: Kafka) -> None:
    """A topic that takes no record from before this moment stands for a clock that is wrong."""
    here = connector()
    alter_topic(kafka.bootstrap, here.table("account"), "message.timestamp.before.max.ms", "1")
    with here.carrying():
        here.sql("INSERT INTO account VALUES (1, 1, 'x')")
        here.caught_up()
    alter_topic(kafka.bootstrap, here.table("account"), "message.timestamp.type", "CreateTime")
    here.sql("INSERT INTO account VALUES (2, 1, 'x')")
    ends = Ends()
    supervise(here.config, ends.stop, ends)
    assert "this machine's clock and the brokers' are far apart" in ends.errors[0]
    assert "Erroneous state" not in ends.errors[0]
