"""Outboxes: events become visible with the rows of their transaction, once and in order, whatever
dies.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from clients.flink_gateway import lock
from fixtures.connector import Installation, Maker, wait_until
from fixtures.crashes import Died
from helpers.connector.outbox import ORDERS, SCHEMA, TABLES, Orders, compare, config, visible
from helpers.connector.topics import UNCOMMITTED, gid_of, rows_in_the_end
from helpers.source.streaming import force, streamed
from twofold.stack import KafkaCluster, server_files
from twofold_common import java
from twofold_common.positions import Lsn, format_lsn


def configure(here: Installation, more: str = "", **source: object) -> None:
    """Make the table and the messages an outbox."""
    here.configure({"source": source})
    here.file.write_text(here.file.read_text() + config(more))


def made(connector: Maker, tables: Sequence[str] = TABLES, **options: Any) -> Installation:
    """An installation with an outbox, and rows in it from before."""
    here = connector(init=False, **options)
    here.sql(SCHEMA)
    configure(here, tables=list(tables))
    assert (done := here.init()).returncode == 0, done.stderr
    here.sql(ORDERS)
    return here


@pytest.mark.core
def test_outbox_events_become_visible_with_the_rows_of_their_transaction(connector: Maker) -> None:
    here = made(connector)
    work = Orders(here, seed=1)
    with here.carrying():
        for _ in range(2):
            work.run()
        events = compare(here)
    assert {event.topic for event in events} == {f"{here.prefix}.outbox.event.{name}" for name in ("order", "invoice")}
    assert all({*event.headers} in ({"id", "type"}, set()) for event in events)
    topics = here.reader.topics(here.prefix)
    assert here.table("outbox") not in topics, "the outbox has no topic of rows, and is not loaded"
    assert here.twofold("audit").returncode == 0


def test_outbox_events_of_a_prepared_transaction_are_invisible_until_its_outcome(connector: Maker) -> None:
    here = made(connector)
    work = Orders(here, seed=2)
    everybody = here.tail("orders", isolation=UNCOMMITTED)
    with here.carrying():
        work.plain()
        committed, rolled_back = work.prepare(), work.prepare()
        for gid in (committed, rolled_back):
            assert everybody.wait_for(lambda s, gid=gid: gid_of(s) == gid)  # type: ignore[misc]
        ledger = here.reader.tail([f"{here.prefix}.prepared"])
        here.at_end(ledger.close)
        entry = ledger.wait_for(lambda s: s.value["gid"] == committed)
        assert entry is not None
        assert [t for t in entry.value["topics"] if ".outbox.event." in t]
        before, _, _ = visible(here)
        work.end(rolled_back, "ROLLBACK")
        work.end(committed, "COMMIT")
        after = compare(here)
    assert len(after) > len(before)


@pytest.mark.parametrize("streaming", ["on", "off"])
def test_outbox_events_of_a_large_transaction(connector: Maker, streaming: str) -> None:
    here = made(connector)
    force(here, streaming)
    configure(here)
    with here.carrying():
        here.sql(
            "BEGIN; UPDATE orders SET version = version + 1, tx = 'large'; SAVEPOINT s;"
            " INSERT INTO outbox (aggregatetype, payload) SELECT 'order', '{}' FROM generate_series(1, 1000);"
            " ROLLBACK TO SAVEPOINT s;"
            " INSERT INTO outbox (aggregatetype, aggregateid, payload) SELECT 'order', n % 10, '{\"tx\": \"large\"}'"
            " FROM generate_series(1, 5000) n; COMMIT"
        )
        assert len(compare(here)) == 5000
        wait_until(lambda: (streamed(here) > 0) == (streaming == "on"), 90, "what was streamed")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_outbox_events_through_kill9_and_a_broker_that_comes_back(
    connector: Maker, own_kafka: Callable[..., KafkaCluster], died: Died
) -> None:
    kafka = own_kafka()
    here = made(connector, kafka_server=kafka, kafka={"call_timeout": 10.0})
    stop = threading.Event()
    sessions = [Orders(here, seed=3, keys=range(1, 13)), Orders(here, seed=4, keys=range(13, 25))]

    def load(work: Orders) -> None:
        while not stop.wait(0.02):
            work.run(pause=lambda: stop.wait(0.05))  # long enough for an open transaction

    threads = [threading.Thread(target=load, args=(work,)) for work in sessions]
    for thread in threads:
        thread.start()
    places = ("before_commit:3", "after_open:2", "after_commit:4")
    try:
        for place in places:
            run = here.start(place)
            wait_until(lambda run=run: run.dead, 60, place)  # type: ignore[misc]
        run = here.start()
        here.caught_up()
        kafka.kill()
        kafka.start()
        here.caught_up()
        run.kill9()
        here.start()
        here.caught_up()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert len(compare(here)) > 50
    for place in places:
        died(place, "connector", "events and rows of a transaction are both there, or neither")


def test_outbox_events_are_read_by_javas_console_consumer_with_their_headers(connector: Maker, tmp_path: Path) -> None:
    here = made(connector)
    with here.carrying():
        here.sql(
            "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) VALUES"
            " ('00000000-0000-0000-0000-000000000001', 'order', 'A', 'placed', '{\"n\": 1}')",
            "SELECT pg_logical_emit_message(true, 'outbox:order/A', 'by itself')",
        )
        here.caught_up()
    jars = (*server_files.fetched(lock("console")), *server_files.fetched(server_files.locked("kafka")))
    command = [
        str(java.for_kafka().program),
        *("-XX:TieredStopAtLevel=1", "-cp"),
        ":".join(map(str, jars)),
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", here.reader.bootstrap, "--topic", f"{here.prefix}.outbox.event.order"),
        *("--from-beginning", "--isolation-level", "read_committed", "--max-messages", "2", "--timeout-ms", "60000"),
        *("--formatter-property", "print.headers=true", "--formatter-property", "print.key=true"),
    ]
    done = subprocess.run(command, capture_output=True, cwd=tmp_path, check=False, timeout=120, text=True)
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    assert lines == [
        ["id:00000000-0000-0000-0000-000000000001,type:placed", "A", '{"n": 1}'],
        ["NO_HEADERS", "A", "by itself"],
    ], done.stderr


def test_outbox_rows_that_cannot_be_events_are_refused_with_a_repair_that_works(connector: Maker) -> None:
    here = made(connector)
    here.sql(
        "ALTER TABLE outbox ALTER COLUMN aggregatetype DROP NOT NULL",
        "ALTER TABLE outbox DISABLE TRIGGER note",
        'INSERT INTO outbox (payload) VALUES (\'{"no": "topic"}\')',
    )
    refusal = here.refusal()
    assert "a row of the outbox public.outbox has no aggregatetype" in str(refusal)
    with_outbox = here.file.read_text()
    here.file.write_text(with_outbox.removesuffix(config()))
    with here.carrying():
        here.caught_up()
    here.file.write_text(with_outbox)
    work = Orders(here, seed=5)
    here.sql("ALTER TABLE outbox ENABLE TRIGGER note")
    with here.carrying():
        work.run()
        compare(here)


def test_a_table_that_was_an_outbox_for_a_time_has_all_its_rows_in_its_topic(connector: Maker) -> None:
    here = made(connector)
    with_outbox = here.file.read_text()
    for as_table in (True, False, True, False, True):
        here.file.write_text(with_outbox.removesuffix(config()) if as_table else with_outbox)
        with here.carrying():
            here.sql("INSERT INTO outbox (aggregatetype, payload) VALUES ('one', '{}')")
            here.caught_up()
            if as_table:
                here.until_loaded(60)
                here.caught_up()
    with here.carrying():
        here.caught_up()
    rows = rows_in_the_end(here.read("outbox"), lambda row: row["id"])
    assert sorted(rows.elements()) == sorted(here.ask("SELECT array_agg(id) FROM outbox"))


def doctor(here: Installation) -> set[str]:
    return {each["check"] for each in json.loads(here.twofold("doctor", "--json").stdout)}


def test_outbox_tables_that_are_not_ready_are_named_by_init_and_doctor(connector: Maker) -> None:
    here = connector(init=False)
    here.sql(SCHEMA, "ALTER TABLE outbox ALTER COLUMN aggregatetype DROP NOT NULL")
    configure(here, 'key_column = "customer"', tables=["public.account"])
    done = here.init()
    assert done.returncode == 3
    assert f'ALTER PUBLICATION "{here.prefix}" ADD TABLE "public"."outbox"' in done.stderr
    assert "outbox_unpublished" in doctor(here)
    here.sql(f'ALTER PUBLICATION "{here.prefix}" ADD TABLE "public"."outbox"')
    configure(here, 'key_column = "customer"', tables=["public.account", "public.outbox"])
    done = here.init()
    assert done.returncode == 5
    assert "has no column customer, which key_column names" in done.stderr
    assert "outbox_columns" in doctor(here)
    configure(here)
    assert (done := here.init()).returncode == 0, done.stderr
    assert "outbox_topic_null" in doctor(here)


def test_an_outbox_whose_columns_the_policy_hides_is_refused_with_a_repair_that_works(connector: Maker) -> None:
    here = made(connector)
    here.sql("INSERT INTO outbox (aggregatetype, payload) VALUES ('order', '{}')")
    hides = {"column": "public.outbox.payload", "action": "null"}
    here.configure({"policy": {"columns": [hides]}})
    configure(here)
    assert "policy" in doctor(here)
    assert "the outbox public.outbox uses columns that the data policy hides: payload" in str(here.refusal())
    here.configure({"policy": {"columns": [{**hides, "action": "keep"}, hides]}})
    configure(here)
    assert "policy" not in doctor(here)
    with here.carrying():
        here.caught_up()
    assert [event.value for event in visible(here)[0]] == ["{}"]


EVENT = "INSERT INTO {} (aggregatetype, payload) VALUES ('order', '{}')"


def test_an_outbox_that_is_renamed_loses_no_event(connector: Maker) -> None:
    here = made(connector, backfill={"notice": 0})
    with here.carrying():
        here.sql(EVENT.format("outbox", 1))
        here.caught_up()
        here.sql("ALTER TABLE outbox RENAME TO events", EVENT.format("events", 2))
        here.caught_up()
    here.sql(EVENT.format("events", 3), "ALTER TABLE events RENAME TO sent_events", EVENT.format("sent_events", 4))
    here.file.write_text(here.file.read_text().replace('table = "public.outbox"', 'table = "public.sent_events"'))
    with here.carrying():
        here.sql(EVENT.format("sent_events", 5))
        here.caught_up()
    assert sorted(each.value or "" for each in visible(here)[0]) == ["1", "2", "3", "4", "5"]
    assert not [topic for topic in here.reader.topics(here.prefix) if "events" in topic.rpartition(".")[2]]


def test_an_outbox_whose_column_is_renamed_ahead_of_unread_events_loses_none(connector: Maker) -> None:
    """Each configuration fits some of the rows, and the catalog fits one of them. A transaction in
    doubt holds the slot, so rows that Kafka has come again too."""
    here = made(connector, backfill={"notice": 0})
    renamed = "INSERT INTO outbox (aggregatetype, body) VALUES ('order', '{}')"
    here.sql("ALTER TABLE outbox DISABLE TRIGGER USER")  # it knows the columns, and notes events for other tests
    here.sql("BEGIN; INSERT INTO orders VALUES (100, 0, 'in doubt'); PREPARE TRANSACTION 'holds'")
    here.sql(EVENT.format("outbox", 1), "ALTER TABLE outbox RENAME payload TO body", renamed.format(2))
    assert "no column payload, which payload_column names" in str(here.refusal())
    assert [each.value for each in visible(here)[0]] == ["1"]
    configure(here, 'payload_column = "body"')
    for _ in range(2):
        with here.carrying():
            here.caught_up()
    here.sql("COMMIT PREPARED 'holds'", renamed.format(3))
    with here.carrying():
        here.caught_up()
    assert [each.value for each in visible(here)[0]] == ["1", "2", "3"]


@pytest.mark.parametrize("outcome", ["COMMIT", "ROLLBACK"])
def test_an_outbox_that_is_renamed_by_a_transaction_in_doubt_loses_no_event(connector: Maker, outcome: str) -> None:
    here = made(connector, backfill={"notice": 0})
    rename = f"ALTER TABLE outbox RENAME TO events; {EVENT.format('events', 1)}"
    here.sql(f"BEGIN; {rename}; PREPARE TRANSACTION 'rename'")
    run = here.start()
    wait_until(lambda: [each["gid"] for each in here.records("prepared")], 90, "the ledger has it")
    run.kill9()
    here.start()
    here.sql(f"{outcome} PREPARED 'rename'", EVENT.format("events" if outcome == "COMMIT" else "outbox", 2))
    here.caught_up()
    assert [each.value for each in visible(here)[0]] == (["1", "2"] if outcome == "COMMIT" else ["2"])
    assert not [topic for topic in here.reader.topics(here.prefix) if "events" in topic.rpartition(".")[2]]


@pytest.mark.parametrize("outcome", ["COMMIT", "ROLLBACK"])
def test_an_outbox_that_a_transaction_in_doubt_replaces_is_one_until_its_outcome(
    connector: Maker, outcome: str
) -> None:
    """The run goes on meanwhile: what that transaction has made may be rolled back."""
    here = made(connector, ["*"], backfill={"notice": 0}, kafka={"partitions": 1})
    rename, create = "ALTER TABLE outbox RENAME TO outbox_old", "CREATE TABLE outbox (LIKE outbox_old INCLUDING ALL)"
    first, second = EVENT.format("outbox_old", 1), EVENT.format("outbox", 2)
    here.sql(f"BEGIN; {rename}; {first}; {create}; {second}; PREPARE TRANSACTION 'swap'")
    with here.carrying():
        here.sql("INSERT INTO orders VALUES (100, 0, 'meanwhile')")
        wait_until(lambda: [row for row in here.read("orders") if row.key["id"] == 100], 90, "a row behind it")
        here.sql(f"{outcome} PREPARED 'swap'")
        here.caught_up()  # what the new table brings next ends the run, and the next one knows it from the catalog
        if outcome == "ROLLBACK":
            here.sql("ALTER TABLE outbox RENAME TO events", EVENT.format("events", 3))
        else:
            here.sql(EVENT.format("outbox", 3))
        here.caught_up()
    assert [each.value for each in visible(here)[0]] == (["1", "2", "3"] if outcome == "COMMIT" else ["3"])


@pytest.mark.parametrize("early", [False, True])
def test_an_outbox_whose_name_another_table_gets_is_none_any_more(connector: Maker, early: bool) -> None:
    here = made(connector, ["*"], backfill={"notice": 0})
    rename, create = "ALTER TABLE outbox RENAME TO outbox_old", "CREATE TABLE outbox (LIKE outbox_old INCLUDING ALL)"
    with here.carrying():
        here.sql(EVENT.format("outbox", 1))
        here.caught_up()
        if early:  # while no table has the name
            here.sql(rename, EVENT.format("outbox_old", 2))
            here.caught_up()
            here.sql(create)
        else:
            here.sql(f"BEGIN; {rename}; {create}; COMMIT", EVENT.format("outbox_old", 2))
        here.sql(EVENT.format("outbox", 3), EVENT.format("outbox_old", 4))
        here.caught_up()
    assert sorted(each.value or "" for each in visible(here)[0]) == (["1", "2", "3"] if early else ["1", "3"])
    with here.carrying():
        here.until_loaded(60)
    rows = [row.value["after"]["payload"] for row in here.read("outbox_old") if row.value["op"] != "t"]
    assert {"1", "2", "4"} <= {*rows}


def test_rows_of_a_table_that_becomes_the_outbox_are_no_events(connector: Maker) -> None:
    here = made(connector)
    here.sql("CREATE TABLE outbox_new (LIKE outbox INCLUDING ALL)")
    with here.carrying():
        here.sql(f"ALTER PUBLICATION {here.prefix} ADD TABLE outbox_new", EVENT.format("outbox_new", 1))
        here.caught_up()
    here.sql(
        EVENT.format("outbox_new", 2),
        "BEGIN; ALTER TABLE outbox RENAME TO outbox_old; ALTER TABLE outbox_new RENAME TO outbox; COMMIT",
        EVENT.format("outbox", 3),
    )
    with here.carrying():
        here.caught_up()
    assert [each.value for each in visible(here)[0]] == ["3"]


def test_a_partitioned_outbox_is_refused_until_it_is_published_via_its_root(connector: Maker) -> None:
    here = connector(init=False)
    here.sql(
        SCHEMA,
        "DROP TABLE outbox",
        "CREATE TABLE outbox (id int, aggregatetype text NOT NULL, aggregateid text, type text, payload jsonb)"
        " PARTITION BY LIST (type)",
        "CREATE TABLE outbox_rest PARTITION OF outbox DEFAULT",
    )
    configure(here, tables=["public.account", "public.outbox"])
    done = here.init()
    assert done.returncode == 3
    repair = f'ALTER PUBLICATION "{here.prefix}" SET (publish_via_partition_root = true)'
    assert repair in done.stderr
    assert repair in here.twofold("doctor", "--json").stdout.replace('\\"', '"')
    here.sql(repair)
    assert (done := here.init()).returncode == 0, done.stderr
    with here.carrying():
        here.sql(EVENT.format("outbox", 1))
        here.caught_up()
    assert [each.value for each in visible(here)[0]] == ["1"]


def test_an_outbox_that_leaves_the_publication_ends_the_run(connector: Maker) -> None:
    here = made(connector, backfill={"notice": 0.2})
    run = here.start()
    here.sql(f"ALTER PUBLICATION {here.prefix} DROP TABLE outbox")
    assert run.ended() == 3
    assert f'ALTER PUBLICATION "{here.prefix}" ADD TABLE "public"."outbox"' in run.said()
    here.sql(f"ALTER PUBLICATION {here.prefix} ADD TABLE outbox", EVENT.format("outbox", 1))
    here.start()
    here.caught_up()
    assert [each.value for each in visible(here)[0]] == ["1"]


@pytest.mark.parametrize("also", ["", "INSERT INTO orders VALUES (100, 0, 'lost'); "], ids=["alone", "with rows"])
def test_outbox_events_of_a_prepared_transaction_that_will_not_come_again(connector: Maker, also: str) -> None:
    """As a promoted 17 may do it: the server sends the outcome alone. No load brings the events."""
    here = made(connector)
    here.sql(f"BEGIN; {also}{EVENT.format('outbox', 1)}; PREPARE TRANSACTION 'lost'")
    with here.carrying():
        wait_until(lambda: [entry["state"] for entry in here.records("prepared")] == ["open"], 90, "its entry")
        here.caught_up()
    wait_until(lambda: not here.slot("active"), 90, "the slot is free")
    applied = format_lsn(Lsn(max(r["applied_lsn"] for r in here.records("progress") if "applied_lsn" in r)))
    here.ask(f"SELECT pg_replication_slot_advance('{here.prefix}', '{applied}')")
    here.sql("COMMIT PREPARED 'lost'")
    refusal = str(here.refusal())
    assert "without its PREPARE" in refusal
    assert f"no load brings what it wrote to {here.prefix}.outbox.event.order" in refusal
    assert "write that again" in refusal
    assert ("twofold backfill start public.orders" in refusal) == bool(also)
    assert ("twofold reset" in refusal) != bool(also)
    if also:
        here.twofold("backfill", "start", "public.orders", ok=True)
        here.sql(EVENT.format("outbox", 1))
        with here.carrying():
            here.until_loaded(90)
            here.caught_up()
        assert 100 in {row.key["id"] for row in here.read("orders") if row.value and row.value["op"] == "r"}
        assert [each.value for each in visible(here)[0]] == ["1"]
