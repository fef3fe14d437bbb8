"""What is no change of a row: truncates and logical messages, from PostgreSQL to the topics, in the
order of their transaction.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fixtures.connector import Installation, Maker
from helpers.connector.topics import Seen, Tail

pytestmark = pytest.mark.core


@pytest.fixture(scope="module")
def here(module_connector: Maker) -> Iterator[Installation]:
    made = module_connector(init=False)
    made.sql(
        "CREATE TABLE account (id int PRIMARY KEY, version int NOT NULL, note text)",
        "CREATE TABLE transfer (id text PRIMARY KEY, account int)",
        "CREATE TABLE journal (line text)",
    )
    assert made.init().returncode == 0
    with made.carrying():
        yield made


@pytest.fixture
def tail(here: Installation) -> Iterator[Tail]:
    """Of what is written from here on."""
    here.caught_up()
    made = here.reader.tail([*map(here.table, ("account", "transfer", "journal")), f"{here.prefix}.messages"])
    made.to_end()
    made.seen.clear()
    yield made
    made.close()


def orders(seen: list[Seen]) -> list[tuple[str, str, int, int]]:
    """Topic, op and place in the transaction, once for each change."""
    found = {
        (
            s.topic.split(".")[-1],
            s.value["op"],
            *(s.value["transaction"][k] for k in ("total_order", "data_collection_order")),
        )
        for s in seen
        if s.value["transaction"]
    }
    return sorted(found, key=lambda change: change[2])


def transaction(here: Installation, how: str, *statements: str) -> None:
    if how == "prepared":
        here.prepare("g", *statements)
        here.sql("COMMIT PREPARED 'g'")
    else:
        here.sql("BEGIN; " + "; ".join(statements) + "; COMMIT")


@pytest.mark.parametrize("how", ["plain", "prepared"])
def test_a_truncate_of_several_tables_is_in_every_partition_of_each(here: Installation, tail: Tail, how: str) -> None:
    transaction(
        here,
        how,
        "INSERT INTO transfer VALUES ('a', 1)",
        "TRUNCATE transfer, journal",
        "INSERT INTO transfer VALUES ('b', 1)",
    )
    assert tail.wait_for(lambda s: s.value["after"] and s.value["after"].get("id") == "b")
    assert tail.wait_for(lambda _: sum(s.value["op"] == "t" for s in tail.seen) == 4)
    seen = [s for s in tail.seen if not s.topic.endswith("account")]
    truncates = [s for s in seen if s.value["op"] == "t"]
    assert sorted((s.topic, s.partition, s.key) for s in truncates) == [
        (here.table("journal"), 0, None),
        *((here.table("transfer"), partition, None) for partition in range(3)),
    ]
    assert {(s.value["before"], s.value["after"]) for s in truncates} == {(None, None)}
    assert {s.value["source"]["table"] for s in truncates} == {"journal", "transfer"}
    first, *middle, last = orders(seen)
    assert (first, last) == (("transfer", "c", 1, 1), ("transfer", "c", 4, 3))
    assert {change[:2] for change in middle} == {("transfer", "t"), ("journal", "t")}
    assert [change[2] for change in middle] == [2, 3]


@pytest.mark.parametrize("how", ["plain", "prepared"])
def test_a_message_of_a_transaction_has_its_place_in_it(here: Installation, tail: Tail, how: str) -> None:
    transaction(
        here,
        how,
        "INSERT INTO account VALUES (1, 1, '') ON CONFLICT (id) DO UPDATE SET version = 2",
        "SELECT pg_logical_emit_message(true, 'audit', 'transactional')",
        "DELETE FROM account WHERE id = 1",
    )
    message = tail.wait_for(lambda s: bool(s.value) and s.value["op"] == "m")
    assert message is not None
    assert (message.key, message.value["message"]) == ("audit", {"prefix": "audit", "content": b"transactional"})
    assert message.value["source"]["gid"] == ("g" if how == "prepared" else None)
    assert (message.value["source"]["commit_lsn"] is None) == (how == "prepared")
    assert tail.wait_for(lambda s: bool(s.value) and s.value["op"] == "d")
    changes = orders([s for s in tail.seen if s.value])
    assert changes == [("account", "c", 1, 1), ("messages", "m", 2, 1), ("account", "d", 3, 2)]


def test_a_message_of_a_transaction_that_is_rolled_back_is_not_there_and_another_one_is(
    here: Installation, tail: Tail
) -> None:
    here.sql(
        "BEGIN; SELECT pg_logical_emit_message(true, 'p', 'with it'), pg_logical_emit_message(false, 'p', 'by itself'); ROLLBACK"
    )
    seen = tail.wait_for(lambda s: bool(s.value) and s.value["op"] == "m")
    assert seen is not None
    assert (seen.value["message"]["content"], seen.value["transaction"]) == (b"by itself", None)
    assert [seen.value["source"][name] for name in ("txId", "gid", "commit_lsn")] == [None] * 3
    here.caught_up()
    tail.to_end()
    assert len([s for s in tail.seen if s.value and s.value["op"] == "m"]) == 1
