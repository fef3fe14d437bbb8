"""`GroupReader` on the topics of two databases: global transactions come whole, in an order that
both databases agree with.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from fixtures.connector import Maker, wait_until
from helpers.topic_changes import delete_records
from integration.connector.test_frontiers import Group, in_doubt
from twofold_reader import GroupReader, Refused, UsageError

Seen = tuple[tuple[str, ...], list[tuple[str, int]], str]
"""The global ids, each branch's prefix with the account that it inserts, and the bookmark."""


def reader_of(group: Group) -> GroupReader:
    here = group.east
    kafka = {"bootstrap.servers": here.reader.bootstrap}
    tables = {prefix: ["public.account"] for prefix in group.members}
    return GroupReader([*group.members], kafka, here.config.registry.url, tables=tables)


def read(group: Group, start: str = "beginning") -> list[Seen]:
    """All that may be shown now from a place on, without the loads."""
    with reader_of(group) as reader:
        found: list[Seen] = []
        for each in reader.transactions(start, follow=False):
            branches = [
                (prefix, change.after["id"])
                for prefix, transaction in each.branches
                if transaction.kind == "transaction"
                for change in transaction.changes
                if change.after is not None
            ]
            found.append((each.global_ids, branches, each.bookmark))
        return [each for each in found if each[1]]


def global_ids(group: Group) -> list[tuple[str, ...]]:
    return [each for each, _, _ in read(group) if each]


def test_patterns_that_change_while_a_branch_is_in_doubt_tear_nothing(connector: Maker) -> None:
    """The east's commit record names the transfer as the former patterns do, the west's frontier as
    the new ones do.
    """
    group = Group(connector, prepared={"gid_patterns": [r"(?P<global>t-\d+)-(?P<branch>\w+)"]})
    for here in group.members.values():
        here.start()
        here.prepare(f"t-1-{here.prefix}", "INSERT INTO account VALUES (1, 1, 'transfer')")
    group.east.sql(f"COMMIT PREPARED 't-1-{group.east.prefix}'")
    group.east.sql("INSERT INTO account VALUES (100, 1, 'behind')")
    group.east.caught_up()
    for here in group.members.values():
        here.runs[-1].stop()
        here.configure({"prepared": {"gid_patterns": [r"t-(?P<global>\d+)-(?P<branch>\w+)"]}})
        here.start()
    wait_until(lambda: in_doubt(group.frontier(group.west)) == {"1"}, 90, "the west has it in doubt")
    wait_until(lambda: knows_its_commits(group), 90, "the west speaks of what the east has committed")
    assert read(group) == []

    group.west.sql(f"COMMIT PREPARED 't-1-{group.west.prefix}'")
    wait_until(lambda: global_ids(group) == [("1",)], 90, "the transfer comes")
    (names, branches, _), *behind = read(group)
    assert names == ("1",)
    assert sorted(branches) == [(prefix, 1) for prefix in group.members]
    assert [(group.east.prefix, 100)] in [each for _, each, _ in behind]


def knows_its_commits(group: Group) -> bool:
    last = group.frontier(group.west)
    return last is not None and last["seen"][0]["sequence"] >= group.east.records("commits")[-1]["sequence"]


@pytest.mark.core
def test_a_global_transaction_comes_whole_or_not_at_all(connector: Maker) -> None:
    group = Group(connector)
    both = [*group.members]
    for here in group.members.values():
        here.carry()
    group.east.sql("INSERT INTO account VALUES (100, 1, 'local')")
    group.commit("first", 1)
    wait_until(lambda: global_ids(group) == [("1:first",)], 90, "the first transfer comes")
    east, west = group.prepare("second", 2)
    east.tpc_commit()
    wait_until(lambda: "1:second" in in_doubt(group.frontier(group.west)), 90, "the west has it in doubt")
    group.commit("third", 3)
    group.west.sql("INSERT INTO account VALUES (200, 1, 'local')")
    group.east.caught_up()
    group.west.caught_up()
    assert global_ids(group) == [("1:first",)], "the second is half there, and the third lies behind it"

    west.tpc_commit()
    opposite = group.prepare("one", 4), group.prepare("other", 5)
    for branch in (opposite[0][0], opposite[1][1]):
        branch.tpc_commit()
        group.east.caught_up()
        group.west.caught_up()
    for branch in (opposite[1][0], opposite[0][1]):
        branch.tpc_commit()
    wait_until(lambda: len(global_ids(group)) == 3, 90, "all come")
    found = read(group)
    assert [each for each, _, _ in found if each] == [("1:first",), ("1:second", "1:third"), ("1:one", "1:other")]
    for names, branches, _ in found:
        # What lies between two of opposite orders comes with them: the local account, and the mark.
        global_ones = [(prefix, account) for prefix, account in branches if names and 0 < account < 100]
        accounts = {account for _, account in global_ones}
        assert sorted(global_ones) == sorted((prefix, account) for prefix in both for account in accounts)
    for prefix, here in group.members.items():
        rows = [account for _, branches, _ in found for p, account in branches if p == prefix and account]
        with psycopg.connect(here.conninfo) as connection:
            source = connection.execute("SELECT id FROM account WHERE id > 0").fetchall()
        assert sorted(rows) == sorted(account for (account,) in source)
    for at, (_, _, bookmark) in enumerate(found):
        rest = [(names, branches) for names, branches, _ in read(group, bookmark)]
        assert sorted(rest) == sorted((names, branches) for names, branches, _ in found[at + 1 :])


def test_without_the_first_commit_records_a_reader_starts_at_newest(connector: Maker) -> None:
    """Nobody knows of which global transactions they had a branch: what is in doubt since then does
    not come in part.
    """
    group = Group(connector)
    for here in group.members.values():
        here.carry()
        for _ in range(2):
            here.caught_up()
    wait_until(lambda: read(group), 90, "something comes")
    delete_records(group.west.reader.bootstrap, f"{group.west.prefix}.commits", 1)
    with pytest.raises(Refused, match=f"no longer has the first commit records of {group.west.prefix}"):
        read(group)
    east, west = group.prepare("half", 1)
    east.tpc_commit()
    group.east.caught_up()
    with reader_of(group) as reader, ThreadPoolExecutor(1) as executor:
        starting = executor.submit(reader.transactions, "newest")
        wait_until(lambda: "1:half" in in_doubt(group.frontier(group.west)), 90, "the west has it in doubt")
        assert not starting.done()
        west.tpc_commit()
        transactions = starting.result(60)
        group.commit("whole", 2)
        first = next(each for each in transactions if each.global_ids)
        assert first.global_ids == ("1:whole",)
        assert {prefix for prefix, _ in first.branches} == {*group.members}
    assert [each for each, _, _ in read(group, first.bookmark) if each] == []


def test_newest_is_found_where_retention_has_deleted_all_commit_records(connector: Maker) -> None:
    group = Group(connector)
    for here in group.members.values():
        here.carry()
        here.caught_up()
    wait_until(lambda: read(group), 90, "something comes")
    delete_records(group.west.reader.bootstrap, f"{group.west.prefix}.commits")
    with reader_of(group) as reader:
        transactions = reader.transactions("newest")
        group.commit("whole", 1)
        first = next(each for each in transactions if each.global_ids)
        assert {prefix for prefix, _ in first.branches} == {*group.members}


def test_a_place_of_other_prefixes_is_refused(connector: Maker) -> None:
    group = Group(connector)
    with reader_of(group) as reader:
        for start in ("bank=beginning", "0/1"):
            with pytest.raises(UsageError, match="is no place of"):
                reader.transactions(start)
