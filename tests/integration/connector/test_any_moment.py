"""Messages outside of transactions through kills, and whether the comparison would have seen that
something is wrong. Chaos kills at no place in particular, while several sessions write.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import psycopg
import pytest

from fixtures.connector import Maker
from helpers.connector.ledger import Entry, Topics, compare, entries
from helpers.connector.topics import Seen
from helpers.connector.workload import Workload


def test_messages_outside_of_transactions_come_once_and_in_order(connector: Maker) -> None:
    here = connector()
    for n, place in enumerate(("after_commit:2", "before_commit", "after_feedback:2", "")):
        run = here.start(place, ready=not place)
        for k in range(5):
            here.sql(
                f"SELECT pg_logical_emit_message(false, 'p', '{n}.{k}')", f"INSERT INTO journal VALUES ('{n}.{k}')"
            )
        if place:
            assert run.ended() == -9
    here.caught_up()
    said = [f"{n}.{k}" for n in range(4) for k in range(5)]
    topics = here.everything()
    assert [s.value["message"]["content"].decode() for s in topics.rows if s.topic.endswith(".messages")] == said
    assert [s.value["after"]["line"] for s in topics.rows if s.topic == here.table("journal")] == said
    records = [c.value for c in topics.commits]
    assert all(before["applied_lsn"] < after["applied_lsn"] for before, after in pairwise(records))
    assert sum(r["rows"] for r in records) == len(topics.rows)


@pytest.fixture(scope="module")
def history(module_connector: Maker) -> tuple[Topics, list[Entry]]:
    here = module_connector()
    with here.carrying():
        work = Workload(here, seed=11)
        for _ in range(2):
            work.run()
            here.caught_up()
        work.settle()
        topics = here.check()
    with psycopg.connect(here.conninfo) as connection:
        return topics, entries(connection)


def account(topics: Topics) -> list[Seen]:
    return [s for s in topics.rows if s.topic.endswith(".account") and s.value is not None]


def without(topics: Topics, *gone: Seen) -> Topics:
    return replace(topics, rows=[s for s in topics.rows if s not in gone])


def one_row_lost(topics: Topics) -> Topics:
    return without(topics, account(topics)[3])


def one_transaction_lost(topics: Topics) -> Topics:
    xid = account(topics)[0].value["source"]["txId"]
    return without(topics, *(s for s in topics.rows if s.value and s.value["source"]["txId"] == xid))


def one_row_doubled(topics: Topics) -> Topics:
    last = account(topics)[-1]
    return replace(topics, rows=[*topics.rows, replace(last, offset=last.offset + 1)])


def two_changes_of_a_key_exchanged(topics: Topics) -> Topics:
    rows = account(topics)
    first, second = next(
        (a, b)
        for a in rows
        for b in rows
        if a.offset < b.offset
        and a.key == b.key
        and a.value["after"] != b.value["after"]
        and a.partition == b.partition
    )
    swapped = {first.place: replace(first, value=second.value), second.place: replace(second, value=first.value)}
    return replace(topics, rows=[swapped.get(s.place, s) for s in topics.rows])


def a_row_of_nobody(topics: Topics) -> Topics:
    first = account(topics)[0]
    value = {**first.value, "source": {**first.value["source"], "txId": 1}}
    return replace(topics, rows=[*topics.rows, replace(first, offset=10**6, value=value)])


def a_commit_record_lost(topics: Topics) -> Topics:
    return replace(topics, commits=[*topics.commits[:-2], topics.commits[-1]])


def a_range_too_wide(topics: Topics) -> Topics:
    last = topics.commits[-1]
    first, *others = last.value["ranges"]
    wider = {**last.value, "ranges": [{**first, "first": first["first"] - 1}, *others]}
    return replace(topics, commits=[*topics.commits[:-1], replace(last, value=wider)])


def torn(topics: Topics) -> Topics:
    """The border between two commit records, in a partition that both wrote, is one row off."""
    written = sorted(
        (r["topic"], r["partition"], r["first"], n)
        for n, commit in enumerate(topics.commits)
        for r in commit.value["ranges"]
    )

    def range_of(place: tuple[str, int, int, int]) -> dict[str, Any]:
        topic, partition, first, n = place
        found = next(
            r
            for r in topics.commits[n].value["ranges"]
            if (r["topic"], r["partition"], r["first"]) == (topic, partition, first)
        )
        assert isinstance(found, dict)
        return found

    sizes = Counter(
        seen.value["transaction"]["id"] for seen in topics.rows if seen.value and seen.value.get("transaction")
    )

    def held_by(place: tuple[str, int, int, int]) -> list[Seen]:
        found = range_of(place)
        rows = (s for s in topics.rows if (s.topic, s.partition) == place[:2])
        return [s for s in rows if found["first"] <= s.offset <= found["last"]]

    def ends_within_a_transaction(place: tuple[str, int, int, int]) -> bool:
        rows = held_by(place)
        return len(rows) > 1 and bool(rows[-1].value) and sizes[rows[-1].value["transaction"]["id"]] > 1

    before, after = next((a, b) for a, b in pairwise(written) if a[:2] == b[:2] and ends_within_a_transaction(a))
    x, y, held = range_of(before), range_of(after), [seen.offset for seen in held_by(before)]

    def moved(n: int, old: dict[str, Any], rows: int, **new: int) -> Seen:
        value = topics.commits[n].value
        ranges = [{**r, **new, "count": r["count"] + rows} if r is old else r for r in value["ranges"]]
        return replace(topics.commits[n], value={**value, "ranges": ranges, "rows": value["rows"] + rows})

    commits = list(topics.commits)
    commits[before[3]] = moved(before[3], x, -1, last=held[-2])
    commits[after[3]] = moved(after[3], y, 1, first=held[-1])
    return replace(topics, commits=commits)


SPOILS = (
    one_row_lost,
    one_transaction_lost,
    one_row_doubled,
    two_changes_of_a_key_exchanged,
    a_row_of_nobody,
    a_commit_record_lost,
    a_range_too_wide,
    torn,
)


@pytest.mark.core
@pytest.mark.parametrize("spoil", SPOILS)
def test_the_comparison_sees_it(spoil: Callable[[Topics], Topics], history: tuple[Topics, list[Entry]]) -> None:
    topics, ledger = history
    with pytest.raises(AssertionError):
        compare(spoil(topics), ledger)


@pytest.mark.core
def test_the_comparison_sees_what_is_not_in_doubt(history: tuple[Topics, list[Entry]]) -> None:
    """What the source committed and the topics have not, from the ledger's side."""
    topics, ledger = history
    with pytest.raises(AssertionError, match="lost"):
        compare(topics, [*ledger, replace(ledger[-1], xid=10**6)])
