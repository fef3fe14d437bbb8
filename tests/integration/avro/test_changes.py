"""Updates, deletes and truncates from a real server: unchanged TOAST, keys that change, every
replica identity.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from helpers.avro.capture import LSN, PARTITIONS, TS_MS, XID, Bench, Capture, Message, append, modules
from twofold_avro import wire

pytestmark = pytest.mark.core

BIG = "repeat('0123456789abcdef', 1000)"
BIG_NUMBER = "repeat('0123456789', 1000)"


@pytest.fixture
def capture(database: str, prefix: str) -> Iterator[Capture]:
    made = Capture(database, prefix)
    made.run("CREATE TABLE public.t (id int PRIMARY KEY, v int, big text)")
    made.run("ALTER TABLE public.t ALTER big SET STORAGE EXTERNAL")
    made.publish("public.t")
    yield made
    made.close()


def streamed(capture: Capture, *, tombstones: bool = True) -> tuple[Bench, list[Message]]:
    payloads = capture.changes()
    bench = Bench(capture.shape("t"), tombstones)
    return bench, [message for _, message in bench.stream(payloads)]


def row(id_: int, v: int | None = None, big: str | None = None) -> dict[str, Any]:
    return {"id": id_, "v": v, "big": big}


def test_an_update_leaves_toast_out_and_says_so(capture: Capture) -> None:
    capture.run(f"INSERT INTO public.t VALUES (1, 1, {BIG})")
    capture.changes()
    capture.run("UPDATE public.t SET v = 2")
    bench, [message] = streamed(capture)
    value = bench.value(message)
    assert (value["op"], value["before"], value["after"]) == ("u", None, row(1, 2))
    assert value["unchanged"] == ["big"]


def test_with_placeholders_what_was_not_sent_is_debeziums(database: str, prefix: str) -> None:
    types = {
        "t": "text",
        "b": "bytea",
        "j": "jsonb",
        "n": "numeric",
        "texts": "text[]",
        "numbers": "int[]",
        "times": "timestamp[]",
    }
    made = Capture(database, prefix)
    try:
        made.run(
            f"CREATE TABLE public.t (id int PRIMARY KEY, v int, {', '.join(f'{n} {t}' for n, t in types.items())})"
        )
        for name in types:
            made.run(f"ALTER TABLE public.t ALTER {name} SET STORAGE EXTERNAL")
        made.publish("public.t")
        made.run(
            f"INSERT INTO public.t SELECT 1, 1, {BIG}, convert_to({BIG}, 'UTF8'), to_jsonb({BIG}), ('1' || {BIG_NUMBER})::numeric,"
            f" ARRAY[{BIG}], array_agg(n), array_agg('2024-01-01'::timestamp) FROM generate_series(1, 5000) n"
        )
        made.changes()
        made.run("UPDATE public.t SET v = 2")
        bench = replace(made.bench("t"), placeholders=True)
        [(_, message)] = bench.stream(made.changes())
    finally:
        made.close()
    word = "__debezium_unavailable_value"
    placeholders = {"t": word, "b": word.encode(), "j": word, "n": word, "texts": [word], "numbers": [*word.encode()]}
    assert bench.value(message)["after"] == {"id": 1, "v": 2, **placeholders, "times": None}
    assert bench.value(message)["unchanged"] == [*types]


def test_with_identity_full_the_value_comes_from_the_old_row(capture: Capture) -> None:
    capture.run("ALTER TABLE public.t REPLICA IDENTITY FULL")
    capture.run(f"INSERT INTO public.t VALUES (1, 1, {BIG})")
    capture.changes()
    capture.run("UPDATE public.t SET v = 2")
    bench, [message] = streamed(capture)
    value = bench.value(message)
    big = "0123456789abcdef" * 1000
    assert (value["op"], value["before"], value["after"]) == ("u", row(1, 1, big), row(1, 2, big))
    assert value["unchanged"] == []
    assert bench.key(message) == {"id": 1}


def test_a_changed_key_is_a_delete_and_an_insert_with_the_old_key_in_before(capture: Capture) -> None:
    capture.run(f"INSERT INTO public.t VALUES (1, 1, {BIG})")
    capture.changes()
    capture.run("UPDATE public.t SET id = 2")
    payloads = capture.changes()
    bench = Bench(capture.shape("t"))
    messages = bench.stream(payloads)
    gone, tombstone, new = (
        next(m for m in (m for _, m in messages) if m["value"] is not None and bench.value(m)["op"] == "d"),
        next(m for _, m in messages if m["value"] is None),
        next(m for m in (m for _, m in messages) if m["value"] is not None and bench.value(m)["op"] == "c"),
    )
    assert len(messages) == 3
    assert bench.key(gone) == bench.key(tombstone) == {"id": 1}
    assert bench.value(gone)["before"] == row(1)
    assert bench.value(gone)["after"] is None
    assert bench.key(new) == {"id": 2}
    assert (bench.value(new)["before"], bench.value(new)["after"]) == (row(1), row(2, 1))
    assert bench.value(new)["unchanged"] == ["big"]
    assert {bench.value(m)["transaction"]["total_order"] for m in (gone, new)} == {1, 2}


def test_identity_full_and_an_unchanged_key_is_one_update(capture: Capture) -> None:
    capture.run("ALTER TABLE public.t REPLICA IDENTITY FULL")
    capture.run("INSERT INTO public.t VALUES (1, 1, 'a')")
    capture.changes()
    capture.run("UPDATE public.t SET id = 1, v = NULL")
    bench, [message] = streamed(capture)
    assert bench.value(message)["before"] == row(1, 1, "a")
    assert bench.value(message)["after"] == row(1, None, "a")


@pytest.mark.parametrize("tombstones", [True, False])
def test_a_delete_is_an_envelope_and_a_tombstone_if_asked(capture: Capture, tombstones: bool) -> None:
    capture.run("INSERT INTO public.t VALUES (1, 1, 'a')")
    capture.changes()
    capture.run("DELETE FROM public.t")
    bench, messages = streamed(capture, tombstones=tombstones)
    value = bench.value(messages[0])
    assert (value["op"], value["before"], value["after"]) == ("d", row(1), None)
    assert [m["value"] for m in messages[1:]] == ([None] if tombstones else [])
    assert len({m["key"] for m in messages}) == 1


def test_a_table_without_a_key_has_one_partition_and_no_tombstones(capture: Capture) -> None:
    capture.run("ALTER TABLE public.t DROP CONSTRAINT t_pkey")
    capture.run("ALTER TABLE public.t ALTER id DROP NOT NULL")
    capture.run("ALTER TABLE public.t REPLICA IDENTITY FULL")
    capture.run("INSERT INTO public.t VALUES (1, 1, 'a'), (NULL, NULL, NULL)")
    capture.run("UPDATE public.t SET v = 2 WHERE id = 1")
    capture.run("DELETE FROM public.t WHERE id IS NULL")
    payloads = capture.changes()
    bench = Bench(capture.shape("t"))
    messages = bench.stream(payloads)
    assert [(partition, m["key"]) for partition, m in messages] == [(0, None)] * 4
    assert [bench.value(m)["op"] for _, m in messages] == ["c", "c", "u", "d"]
    assert bench.value(messages[3][1])["before"] == {"id": None, "v": None, "big": None}


def test_identity_by_an_index_is_the_key(capture: Capture) -> None:
    capture.run("ALTER TABLE public.t ALTER v SET NOT NULL")
    capture.run("CREATE UNIQUE INDEX t_v ON public.t (v)")
    capture.run("ALTER TABLE public.t REPLICA IDENTITY USING INDEX t_v")
    capture.run("INSERT INTO public.t VALUES (1, 10, 'a')")
    capture.run("UPDATE public.t SET id = 2")
    capture.run("DELETE FROM public.t")
    bench, messages = streamed(capture, tombstones=False)
    assert [bench.key(m) for m in messages] == [{"v": 10}] * 3
    assert bench.value(messages[2])["before"] == {"id": None, "v": 10, "big": None}


def test_a_key_that_its_avro_type_cannot_say_is_text_in_the_key(capture: Capture) -> None:
    capture.run("DROP TABLE public.t")
    capture.run("CREATE TABLE public.t (d date, at timestamptz, n numeric(5,2), PRIMARY KEY (d, at, n))")
    capture.run(f"ALTER PUBLICATION {capture.name} ADD TABLE public.t")
    values = [
        ("infinity", "-infinity", "NaN"),
        ("-infinity", "infinity", "1.50"),
        ("0044-03-15 BC", "2024-01-02 03:04:05.600+00", "-0.01"),
    ]
    for row_values in values:
        capture.run("INSERT INTO public.t VALUES (%s, %s, %s)", list(row_values))
    payloads = capture.changes()
    in_binary = capture.changes("binary")
    bench = Bench(capture.shape("t"))
    messages = bench.stream(payloads)
    assert messages == bench.stream(in_binary)
    keys = [tuple(bench.key(m).values()) for _, m in messages]
    assert keys == [*values[:2], ("0044-03-15 BC", "2024-01-02 03:04:05.6+00", "-0.01")]
    assert bench.value(messages[0][1])["special"] == [
        {"row": "after", "column": column, "text": text}
        for column, text in zip(("d", "at", "n"), values[0], strict=True)
    ]
    copied = bench.copy(capture.copied("t", "1, 2"))
    assert {m["key"] for _, m in copied} == {m["key"] for _, m in messages}


def test_special_values_of_both_rows_are_told_apart(capture: Capture) -> None:
    capture.run("ALTER TABLE public.t ADD d date, ADD e date")
    capture.run("ALTER TABLE public.t REPLICA IDENTITY FULL")
    capture.run("INSERT INTO public.t VALUES (1, 1, 'a', 'infinity', 'infinity')")
    capture.changes()
    capture.run("UPDATE public.t SET d = '-infinity', e = '2024-01-01'")
    bench, [message] = streamed(capture)
    assert bench.value(message)["special"] == [
        {"row": "before", "column": "d", "text": "infinity"},
        {"row": "before", "column": "e", "text": "infinity"},
        {"row": "after", "column": "d", "text": "-infinity"},
    ]


def test_a_truncate_goes_to_every_partition(capture: Capture) -> None:
    capture.run("INSERT INTO public.t VALUES (1)")
    capture.changes()
    bench = Bench(capture.shape("t"))
    for module, plan in bench.plans():
        lists: list[list[Message]] = [[] for _ in range(PARTITIONS)]
        assert plan.truncate(LSN, bench.header(module), TS_MS, lists) == PARTITIONS
        assert [len(messages) for messages in lists] == [1] * PARTITIONS
        assert {m["key"] for messages in lists for m in messages} == {None}
        value = bench.value(lists[3][0])
        assert (value["op"], value["before"], value["after"]) == ("t", None, None)
        assert value["transaction"] == {"id": f"{XID}:{LSN}", "total_order": 1, "data_collection_order": 1}


def test_the_streamed_form_has_an_xid_in_front_of_the_relation(capture: Capture) -> None:
    capture.run("INSERT INTO public.t VALUES (1, 2, 'a')")
    [payload] = capture.changes()
    bench = Bench(capture.shape("t"))
    in_stream = payload[:1] + b"\0\0\3\1" + payload[1:]
    assert bench.stream([in_stream], offset=5) == bench.stream([payload])


def test_source_and_transaction_say_where_a_row_comes_from(capture: Capture) -> None:
    capture.run("CREATE TABLE public.other (id int PRIMARY KEY)")
    capture.run(f"ALTER PUBLICATION {capture.name} ADD TABLE public.other")
    capture.run("INSERT INTO public.t VALUES (1), (2)")
    capture.run("INSERT INTO public.other VALUES (1)")
    payloads = capture.changes()
    for module in modules():
        benches = {shape.oid: Bench(shape) for shape in capture.shapes.values()}
        header = module.TransactionHeader(XID, 1_700_000_000_123_456, "777:5", "global", "global id", "branch", 7)
        seen = []
        for payload in payloads:
            bench = benches[int.from_bytes(payload[1:5], "big")]
            plan = next(plan for made_by, plan in bench.plans() if made_by is module)
            lists: list[list[Message]] = [[] for _ in range(PARTITIONS)]
            append(plan, payload, LSN, header, lists)
            seen.append(bench.value(next(m for messages in lists for m in messages)))
        assert [v["transaction"]["total_order"] for v in seen] == [1, 2, 3]
        assert [v["transaction"]["data_collection_order"] for v in seen] == [1, 2, 1]
        assert seen[0]["source"] == {
            "version": "0.1.0",
            "connector": "postgresql",
            "name": "pre.fix",
            "db": "db",
            "schema": "public",
            "table": "t",
            "ts_ms": 1_700_000_000_123,
            "ts_us": 1_700_000_000_123_456,
            "txId": XID,
            "lsn": LSN,
            "gid": "global",
            "snapshot": "false",
            "global_id": "global id",
            "branch": "branch",
            "commit_lsn": 7,
        }
        assert seen[0]["ts_ms"] == TS_MS


def test_a_backfilled_row_belongs_to_no_transaction(capture: Capture) -> None:
    capture.run("INSERT INTO public.t VALUES (1, NULL, '')")
    capture.changes()
    bench = capture.bench("t")
    [(_, message)] = bench.copy(capture.copied("t", "id"))
    value = bench.value(message)
    assert (value["op"], value["transaction"], value["after"]) == ("r", None, row(1, None, ""))
    assert (value["source"]["snapshot"], value["source"]["txId"]) == ("true", None)


def test_odd_names_come_back(capture: Capture) -> None:
    capture.run('CREATE TABLE public."Größe.x" ("a b" int PRIMARY KEY, "a_x20_b" int, "1st" text)')
    capture.run(f'ALTER PUBLICATION {capture.name} ADD TABLE public."Größe.x"')
    capture.run("INSERT INTO public.\"Größe.x\" VALUES (1, 2, 'c')")
    [payload] = capture.changes()
    bench = Bench(capture.shape("Größe.x"))
    [(_, message)] = bench.stream([payload])
    assert bench.value(message)["after"] == {"a_x20_b": 1, "a_x5f_x20_b": 2, "_x31_st": "c"}
    assert bench.value(message)["source"]["table"] == "Größe.x"


@pytest.mark.parametrize("count", [1, 6, 1000])
def test_the_partition_is_the_keys(count: int) -> None:
    assert 0 <= wire.partition_of(b"\0\0\0\0\1\2", count) < count
