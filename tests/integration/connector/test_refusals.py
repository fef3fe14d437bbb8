"""Refuse rather than lose: each contradiction made real, and what `run` and `init` then say.
docs/reference/refusals.md has an entry for each.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)
from psycopg.conninfo import conninfo_to_dict

from fixtures.backfill import ask_to_load
from fixtures.connector import Installation, Maker, wait_until
from helpers.avro.schema_readers import Subject
from helpers.connector.ledger import SCHEMA
from helpers.reading import ask_registry
from helpers.topic_changes import alter_topic, delete_topic
from twofold.doctor import examine
from twofold.errors import Refused, SetupError, TwofoldError, UsageError
from twofold.inspect.status_report import read_progress
from twofold.kafka.topic_rules import TopicPolicy
from twofold.stack import KafkaCluster, PostgresServer, server_files
from twofold.tables.table_version import KeyChanged
from twofold_avro.records import Commit
from twofold_common.positions import Lsn, format_lsn

INSERT = "INSERT INTO account VALUES ({}, 1, 'x')"


def carried(connector: Maker) -> Installation:
    """A connector that has carried a row and was stopped."""
    here = connector()
    with here.carrying():
        here.sql(INSERT.format(1))
        here.caught_up()
    return here


@pytest.fixture
def stopped(connector: Maker) -> Installation:
    """One that the test may spoil."""
    return carried(connector)


@pytest.fixture(scope="module")
def shared(module_connector: Maker) -> Installation:
    """One that is left as it was found."""
    return carried(module_connector)


def refuses(here: Installation, *words: str, kind: type[TwofoldError] = Refused) -> None:
    """`run` ends with this error, and it has these words."""
    error = here.refusal()
    assert type(error) is kind
    for word in words:
        assert word in str(error)


def init_refuses(here: Installation, *words: str, kind: type[TwofoldError] = Refused) -> None:
    with pytest.raises(kind) as refused:
        here.initialise()
    for word in words:
        assert word in str(refused.value)


@pytest.fixture(scope="module")
def admin(kafka: Any) -> AdminClient:
    """Must live until what it was asked for is done."""
    return AdminClient({"bootstrap.servers": kafka.bootstrap})


def make_slot(conninfo: str, name: str) -> None:
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput', false, true)", (name,))


@pytest.mark.core
@pytest.mark.parametrize(
    "topic", ["progress", "commits", *(pytest.param(t, marks=pytest.mark.slow) for t in ("prepared", "messages"))]
)
def test_a_topic_of_the_bookkeeping_is_gone(stopped: Installation, topic: str) -> None:
    delete_topic(stopped.reader.bootstrap, f"{stopped.prefix}.{topic}")
    refuses(stopped, f"the topic {stopped.prefix}.{topic} was in use and is gone")


@pytest.mark.core
def test_the_progress_is_gone_and_its_topic_is_not(stopped: Installation, admin: AdminClient) -> None:
    topic = f"{stopped.prefix}.progress"
    delete_topic(stopped.reader.bootstrap, topic)
    admin.create_topics([NewTopic(topic, 1, 1, config={"cleanup.policy": "compact", "max.message.bytes": "8388608"})])[
        topic
    ].result(20)
    wait_until(lambda: topic in stopped.reader.topics(stopped.prefix))
    refuses(stopped, "has no progress of this connector", "twofold reset")
    init_refuses(stopped, "does not mention it")


@pytest.mark.core
def test_the_servers_disk_was_set_back(connector: Maker, own_postgres: Callable[..., PostgresServer]) -> None:
    """By a snapshot of its volume: the server goes on with other WAL, on the same timeline."""
    server = own_postgres()
    here = connector(conninfo=server.dsn())
    data, snapshot = server.folder / "data", server.folder / "snapshot"
    with here.carrying():
        here.sql(INSERT.format(1))
        here.caught_up()
    server.stop()
    shutil.copytree(data, snapshot)
    server.start()
    with here.carrying():
        here.sql(INSERT.format(2))
        here.caught_up()
    server.stop()
    shutil.rmtree(data)
    snapshot.rename(data)
    for path in (data, *data.rglob("*")):
        shutil.chown(path, server_files.server_user() or os.getuid())
    server.start()
    refuses(here, "the server's WAL ends at")
    here.sql(INSERT.format(3), *(f"UPDATE account SET note = '{n}' WHERE id = 1" for n in range(20)))
    for _ in range(2):
        refuses(here, "the server's WAL is not that of Kafka's changes", "skipped", "twofold reset")


@pytest.mark.slow
def test_a_minor_upgrade_is_no_other_wal(connector: Maker, own_postgres: Callable[..., PostgresServer]) -> None:
    """Since 15.19, no outcome of a prepared transaction that only locked rows is sent."""
    old = own_postgres(version=None)
    here = connector(conninfo=old.dsn())
    if not 150000 <= here.ask("SELECT current_setting('server_version_num')::int") < 150019:
        pytest.skip("this machine's PostgreSQL is not 15.18 or an older 15")
    with here.carrying():
        here.sql(INSERT.format(1))
        here.prepare("in doubt", INSERT.format(2))
        here.caught_up()
        here.prepare("locks", "SELECT FROM account WHERE id = 1 FOR UPDATE")
        here.sql("COMMIT PREPARED 'locks'")
        end = here.ask("SELECT pg_current_wal_insert_lsn() - '0/0'")
        wait_until(lambda: here.records("progress")[-1]["applied_lsn"] >= end)
    old.stop()
    upgraded = PostgresServer(old.folder, version="15", port=old.port)
    upgraded.start()
    try:
        with here.carrying():
            here.caught_up()
    finally:
        upgraded.stop()


def test_a_renamed_database_is_no_other_source(connector: Maker, own_postgres: Callable[..., PostgresServer]) -> None:
    """Its slot goes with it."""
    server = own_postgres()
    here, other = connector(conninfo=server.dsn()), server.dsn("other")
    with here.carrying():
        here.sql(INSERT.format(1), "CREATE DATABASE other")
        here.caught_up()
    here.sql(INSERT.format(2))
    name = conninfo_to_dict(here.conninfo)["dbname"]
    with psycopg.connect(other, autocommit=True) as session:
        session.execute(f'ALTER DATABASE "{name}" RENAME TO renamed'.encode())
    here.conninfo = server.dsn("renamed")
    here.configure({"source": {"dsn": here.conninfo}})
    with here.carrying():
        here.sql(INSERT.format(3))
        here.check()
    here.configure({"source": {"dsn": other}})
    refuses(here, "belongs to database renamed", kind=UsageError)


@pytest.mark.core
def test_the_slot_is_gone(stopped: Installation) -> None:
    stopped.ask(f"SELECT pg_drop_replication_slot('{stopped.prefix}')")
    refuses(stopped, "no longer exists", "twofold reset")
    again = stopped.init()
    assert again.returncode == 5, again.stderr
    assert "no longer exists" in again.stderr
    assert "repair:   `twofold reset`, then `twofold init` with another kafka.prefix" in again.stderr


@pytest.mark.core
def test_the_slot_was_recreated(stopped: Installation) -> None:
    stopped.ask(f"SELECT pg_drop_replication_slot('{stopped.prefix}')")
    stopped.sql(INSERT.format(2))
    make_slot(stopped.conninfo, stopped.prefix)
    refuses(stopped, "has been confirmed up to", "twofold reset")
    assert {s.value["after"]["id"] for s in stopped.read("account")} == {0, 1}


@pytest.mark.core
def test_another_program_moved_the_slot(stopped: Installation) -> None:
    stopped.sql(INSERT.format(2))
    stopped.ask(f"SELECT pg_replication_slot_advance('{stopped.prefix}', pg_current_wal_lsn())")
    refuses(stopped, "has been confirmed up to", "PostgreSQL will not send them again")


def test_another_cluster_under_the_same_name(
    stopped: Installation, connector: Maker, own_postgres: Callable[..., PostgresServer]
) -> None:
    other = connector(conninfo=own_postgres().dsn(), name=stopped.prefix, init=False)
    other.sql(SCHEMA, f"CREATE PUBLICATION {other.prefix} FOR TABLE account")
    init_refuses(other, "no longer exists")
    make_slot(other.conninfo, other.prefix)
    refuses(other, "belong to another source", "kafka.prefix")


def test_the_prefix_belongs_to_another_connector(shared: Installation, connector: Maker) -> None:
    other = connector(kafka={"prefix": shared.prefix}, init=False)
    other.sql(SCHEMA)
    init_refuses(other, f"belong to the connector {shared.prefix}")
    with shared.carrying():  # it was not disturbed
        shared.sql("UPDATE account SET version = version + 1")
        shared.caught_up()


def test_the_slot_belongs_to_another_database(shared: Installation, connector: Maker) -> None:
    other = connector(source={"slot": shared.prefix}, init=False)
    other.sql(SCHEMA)
    init_refuses(other, "belongs to database", kind=UsageError)


def tells_lost_topic(here: Installation, what: str) -> None:
    """Before any run meets it: who looks at a stopped connector plans for a reload."""
    found = {each.check: each for each in examine(here.config)}
    assert found["topic_lost"].what == what
    assert found["topic_lost"].remedy == ("twofold backfill start public.account",)
    assert f"STALE       public.account: {what}; run: twofold backfill start" in here.twofold("status").stdout


@pytest.mark.core
def test_a_tables_topic_is_gone(stopped: Installation) -> None:
    delete_topic(stopped.reader.bootstrap, stopped.table("account"))
    what = f"the topic {stopped.table('account')} was in use and is gone"
    tells_lost_topic(stopped, what)
    refuses(stopped, what, "twofold backfill start public.account")


@pytest.mark.slow
def test_a_tables_topic_that_is_deleted_under_a_run_is_not_made_again(
    connector: Maker, own_kafka: Callable[..., KafkaCluster]
) -> None:
    """The brokers make, as by default, each topic that a client asks for."""
    kafka = own_kafka(settings={"auto.create.topics.enable": "true"})
    here = connector(kafka_server=kafka)
    run = here.start()
    here.sql(INSERT.format(1))
    here.caught_up()
    delete_topic(kafka.bootstrap, here.table("account"))
    here.sql(INSERT.format(2))
    run.wait_for("public.account was in use and is gone", 180)
    assert run.ended() == 5


@pytest.mark.core
def test_a_tables_topic_was_deleted_and_made_again(stopped: Installation, admin: AdminClient) -> None:
    """With the partitions and settings that it had, as a tool that keeps topics does."""
    topic = stopped.table("account")
    delete_topic(stopped.reader.bootstrap, topic)
    admin.create_topics([NewTopic(topic, 3, 1, config=TopicPolicy(1, 1).config("table"))])[topic].result(20)
    wait_until(lambda: topic in admin.list_topics(timeout=20).topics)
    what = f"the topic {topic} was deleted and made again"
    tells_lost_topic(stopped, what)
    refuses(stopped, what, "twofold backfill start public.account")
    stopped.twofold("backfill", "start", "public.account", ok=True)
    assert not stopped.status().stale
    with stopped.carrying():
        stopped.until_loaded(120)
        stopped.caught_up()
    stopped.start().stop()


@pytest.mark.slow
def test_a_tables_topic_is_made_again_under_a_run(connector: Maker, admin: AdminClient) -> None:
    here = connector()
    topic = here.table("account")
    run = here.start()
    here.sql(*(INSERT.format(number) for number in range(1, 30)))
    here.caught_up()
    delete_topic(here.reader.bootstrap, topic)
    admin.create_topics([NewTopic(topic, 3, 1, config=TopicPolicy(1, 1).config("table"))])[topic].result(20)
    wait_until(lambda: topic in admin.list_topics(timeout=20).topics)
    here.sql(*(INSERT.format(number) for number in range(30, 60)))
    run.wait_for(f"the topic {topic} was deleted and made again", 180)
    assert run.ended() == 5


def test_a_tables_topic_has_other_partitions(stopped: Installation, admin: AdminClient) -> None:
    topic = stopped.table("account")
    admin.create_partitions([NewPartitions(topic, 5)])[topic].result(20)
    refuses(stopped, f"the topic {topic} has 5 partitions, but must have 3", "twofold backfill start public.account")


@pytest.mark.core
@pytest.mark.parametrize(
    ("topic", "policy"),
    [
        ("public.account", "compact"),
        pytest.param("public.account", "compact,delete", marks=pytest.mark.slow),
        ("progress", "delete"),
        ("commits", "compact"),
    ],
)
def test_a_topic_is_cleaned_in_another_way(shared: Installation, admin: AdminClient, topic: str, policy: str) -> None:
    name = f"{shared.prefix}.{topic}"

    def clean(policy: str) -> None:
        alter_topic(shared.reader.bootstrap, name, "cleanup.policy", policy)
        wait_until(lambda: described() == policy, what="the broker that is asked has heard of it")

    def described() -> str:
        resource = ConfigResource(ResourceType.TOPIC, name)
        return str(admin.describe_configs([resource])[resource].result(20)["cleanup.policy"].value)

    clean(policy)
    try:
        refuses(shared, f"the topic {name} has cleanup.policy={policy}", "kafka-configs")
    finally:
        clean("compact" if topic == "progress" else "delete")


@pytest.mark.core
def test_commit_records_and_progress_contradict_each_other(stopped: Installation) -> None:
    topic = f"{stopped.prefix}.commits"
    last = stopped.reader.read([topic])[-1].value
    schema_id = ask_registry(stopped.reader.registry_url, f"subjects/{topic}-value/versions/latest")["id"]
    recovered = read_progress(stopped.config).progress
    assert recovered is not None
    assert len(last["stream_id"]) == 32
    assert last["stream_id"] == recovered.stream_id, "init named the stream"
    forged = Commit(last["sequence"] + 1, "batch", last["applied_lsn"], 0, 1, 0, stream_id=last["stream_id"])
    producer = Producer({"bootstrap.servers": stopped.reader.bootstrap})
    producer.produce(topic, forged.to_bytes(schema_id))
    assert producer.flush(20) == 0
    refuses(stopped, f"ends with number {last['sequence'] + 1} at", "restore both topics")
    again = replace(forged, sequence=last["sequence"], stream_id="another init's")
    producer.produce(topic, again.to_bytes(schema_id))
    assert producer.flush(20) == 0
    refuses(stopped, f"ends with number {last['sequence']} of another stream", "restore both topics")


@pytest.mark.core
def test_a_tables_key_was_changed(connector: Maker) -> None:
    here = connector()
    run = here.start()
    here.sql(INSERT.format(1))
    here.caught_up()
    here.sql("ALTER TABLE account DROP CONSTRAINT account_pkey, ADD PRIMARY KEY (id, version)", INSERT.format(2))
    assert run.ended() == 5
    assert "the message key of table public.account is not what it was" in run.said()
    assert "twofold backfill start public.account" in run.said()
    refuses(here, "the message key of table public.account", kind=KeyChanged)
    assert {s.value["after"]["id"] for s in here.read("account")} == {0, 1}


@pytest.mark.parametrize("prepared", [False, True], ids=["plain", "prepared"])
def test_what_lies_before_a_refusal_is_published_and_its_repair_helps(connector: Maker, prepared: bool) -> None:
    """All of it comes in one read.

    Were it not published, rows with the old key would meet the new one after each repair.
    """
    here = carried(connector)
    here.sql(INSERT.format(2))
    change = "ALTER TABLE account DROP CONSTRAINT account_pkey, ADD PRIMARY KEY (id, version)"
    if prepared:
        here.sql(f"BEGIN; {change}; {INSERT.format(3)}; PREPARE TRANSACTION 'other key'", "COMMIT PREPARED 'other key'")
    else:
        here.sql(change, INSERT.format(3))
    for _ in range(2):
        refuses(here, "the message key of table public.account", "backfill start public.account", kind=KeyChanged)
        assert sorted(s.value["after"]["id"] for s in here.read("account")) == [0, 1, 2]
    ask_to_load(here, "public.account")
    account = Subject(here.reader.registry_url, f"{here.prefix}.public.account")
    for part in ("key", "value"):
        account.allow("NONE", part)  # as the registry's own refusal of another key says
    with here.carrying():
        tail, loaded = here.tail("account"), set[int]()
        for _ in range(4):
            seen = tail.wait_for(lambda s: s.value["op"] == "r" and s.value["after"]["id"] not in loaded)
            assert seen is not None
            loaded.add(seen.value["after"]["id"])
    assert loaded == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"source": {"two_phase": False}}, "source.two_phase is false"),
        ({"kafka": {"transaction_timeout": 100_000.0}}, "transaction.max.timeout.ms"),
        ({"prepared": {"hold": 60.0}}, "must be below kafka.transaction_timeout"),
    ],
)
def test_a_setting_that_cannot_hold_is_named(
    shared: Installation, connector: Maker, settings: dict[str, Any], words: str
) -> None:
    same = connector(conninfo=shared.conninfo, name=shared.prefix, init=False, **settings)
    refuses(same, words, kind=UsageError)


def test_a_slots_two_phase_is_not_turned_on(connector: Maker) -> None:
    """PostgreSQL would, when the stream begins."""
    here = connector(source={"two_phase": False})
    here.configure({"source": {"two_phase": True}})
    refuses(here, "source.two_phase is true", "was created with false", kind=UsageError)
    assert here.slot("two_phase") is False
    init_refuses(
        here, "created with two_phase off, which cannot be changed, but source.two_phase differs", kind=SetupError
    )


def test_rows_of_a_prepared_transaction_that_will_not_come_again(connector: Maker) -> None:
    """As a promoted 17 may do it: the server sends the outcome alone. A reload repairs it, as the
    message says.
    """
    here = connector()
    with here.carrying():
        here.prepare("lost", INSERT.format(2), "INSERT INTO transfer VALUES ('a', 2, 1)")
        wait_until(lambda: [entry["state"] for entry in here.records("prepared")] == ["open"])
        here.caught_up()
    wait_until(lambda: not here.slot("active"))
    applied = format_lsn(Lsn(max(r["applied_lsn"] for r in here.records("progress") if "applied_lsn" in r)))
    here.ask(f"SELECT pg_replication_slot_advance('{here.prefix}', '{applied}')")
    here.sql("COMMIT PREPARED 'lost'")
    refuses(
        here, "without its PREPARE", "twofold backfill start public.account public.transfer, then restart the connector"
    )
    ask_to_load(here, "public.account")
    refuses(here, "without its PREPARE")
    ask_to_load(here, "public.account", "public.transfer")
    with here.carrying():
        assert here.tail("account").wait_for(lambda s: s.value["op"] == "r" and s.value["after"]["id"] == 2)
        assert here.tail("transfer").wait_for(lambda s: s.value["op"] == "r" and s.value["after"]["id"] == "a")
        wait_until(lambda: here.records("prepared")[-1]["state"] == "committed")


@pytest.mark.core
def test_the_publication_is_gone(stopped: Installation) -> None:
    stopped.sql(f"DROP PUBLICATION {stopped.prefix}", INSERT.format(2))
    refuses(stopped, "a publication of this slot no longer exists", "twofold reset")
    init_refuses(stopped, "a publication of this slot no longer exists", "twofold reset")
