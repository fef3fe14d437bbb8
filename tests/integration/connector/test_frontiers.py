"""Two connectors of a source group: their frontiers, and the global cut that these allow while a
coordinator commits one branch and not the other.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.request import urlopen

import psycopg
import pytest

from fixtures.connector import Installation, Maker, wait_until
from fixtures.stack import fresh_prefix
from twofold.doctor import examine
from twofold.group import frontier_asks
from twofold_common.gids import find_global_id
from twofold_common.global_cut import CommittedBranch, Frontier, Member, greatest_cut


class Group:
    """Two databases, each with its connector; a coordinator over both."""

    def __init__(self, connector: Maker, *, west: Callable[..., Installation] | None = None, **settings: Any) -> None:
        """`west`: makes the connector of the second database, if it is another one."""
        names = sorted(fresh_prefix() for _ in range(2))
        settings["group"] = {"name": "bank", "members": names}
        self.east, self.west = (
            make(name=name, **settings) for name, make in zip(names, (connector, west or connector), strict=True)
        )
        self.members = dict(zip(names, (self.east, self.west), strict=True))

    def prepare(self, global_id: str, number: int) -> list[psycopg.Connection[Any]]:
        """Prepare a branch in each database."""
        branches = []
        for name, here in self.members.items():
            branch = psycopg.connect(here.conninfo)
            here.at_end(branch.close)
            branch.tpc_begin(branch.xid(1, global_id, name))
            branch.execute("INSERT INTO account VALUES (%s, 1, 'transfer')", (number,))
            branch.tpc_prepare()
            branches.append(branch)
        return branches

    def commit(self, global_id: str, number: int) -> None:
        for branch in self.prepare(global_id, number):
            branch.tpc_commit()

    def frontier(self, here: Installation) -> dict[str, Any] | None:
        found: list[dict[str, Any]] = here.records("frontiers")
        return found[-1] if found else None

    def wait_for_first(self, here: Installation) -> None:
        wait_until(lambda: self.frontier(here), what="the first frontier")

    def count_frontiers(self) -> int:
        return sum(len(here.records("frontiers")) for here in self.members.values())

    def members_now(self) -> Iterator[tuple[str, Member]]:
        """What a mirror would know: frontiers first, then commit records."""
        frontiers = {name: self.frontier(here) for name, here in self.members.items()}
        for name, here in self.members.items():
            commits = here.records("commits")
            last = frontiers[name]
            patterns = tuple(last["gid_patterns"]) if last else ()
            branches = tuple(
                CommittedBranch(commit["sequence"], found)
                for commit in commits
                for each in commit["prepared"]
                if (found := find_global_id(each["gid"], each["global_id"], patterns)) is not None
            )
            read = None
            if last is not None:
                seen = {each["prefix"]: each["sequence"] for each in last["seen"]}
                doubts = {each: (each,) for each in in_doubt(last)}
                read = Frontier(last["sequence"], seen, doubts, gid_patterns=patterns)
            yield name, Member(0, commits[-1]["sequence"] if commits else 0, branches, read)

    def shown(self) -> set[tuple[str, str]]:
        """The branches that the greatest global cut shows."""
        members = dict(self.members_now())
        cut = greatest_cut(members)
        return {
            (name, branch.global_id)
            for name, each in members.items()
            for branch in each.branches
            if branch.sequence <= cut[name]
        }

    def both(self, *global_ids: str) -> set[tuple[str, str]]:
        return {(name, global_id) for name in self.members for global_id in global_ids}


def in_doubt(frontier: dict[str, Any] | None) -> set[str]:
    return {each["global_id"] for each in frontier["in_doubt"]} if frontier else set()


@pytest.mark.core
def test_a_global_transaction_is_whole_or_absent_while_its_coordinator_is_away(connector: Maker) -> None:
    group = Group(connector)
    for here in group.members.values():
        here.start()
    group.commit("first", 1)
    wait_until(lambda: group.shown() == group.both("1:first"), what="the first transfer is in the cut")

    east, west = group.prepare("second", 2)
    east.tpc_commit()
    wait_until(lambda: "1:second" in in_doubt(group.frontier(group.west)), what="the west has it in doubt")
    group.commit("third", 3)
    group.east.caught_up()
    group.west.caught_up()
    assert group.shown() == group.both("1:first"), "the second is half there, and the third lies behind it"

    group.west.runs[-1].kill9()
    group.west.start()
    wait_until(lambda: "1:second" in in_doubt(group.frontier(group.west)), what="the next run has it in doubt")
    assert group.shown() == group.both("1:first")

    west.tpc_commit()
    wait_until(lambda: group.shown() == group.both("1:first", "1:second", "1:third"), what="all is whole")
    for here in group.members.values():
        here.check()


def test_no_cut_shows_half_of_what_one_member_cannot_read(connector: Maker) -> None:
    """The coordinator's pattern was forgotten in the west."""
    group = Group(connector)
    patterns = {"prepared": {"gid_patterns": [r"(?P<global>t-\d+)-(?P<branch>\w+)"]}}
    group.east.configure(patterns)
    for here in group.members.values():
        here.start()
        group.wait_for_first(here)
        here.prepare(f"t-1-{here.prefix}", "INSERT INTO account VALUES (1, 1, 'transfer')")
    group.east.sql(f"COMMIT PREPARED 't-1-{group.east.prefix}'")
    group.east.caught_up()
    group.west.sql("INSERT INTO account VALUES (2, 1, 'plain')")
    group.west.caught_up()

    def knows_it() -> bool:
        seen = (group.frontier(group.west) or {}).get("seen")
        return bool(seen and seen[0]["sequence"] == group.east.records("commits")[-1]["sequence"])

    wait_until(knows_it, what="the west's frontier speaks of the transfer, and does not have it in doubt")
    assert in_doubt(group.frontier(group.west)) == set()
    assert group.shown() == set()
    (what,) = (each.what for each in examine(group.east.config) if each.check == "group")
    assert what == f"the group's member {group.west.prefix} last ran with the gid patterns []"

    group.west.runs[-1].stop()
    group.west.configure(patterns)
    group.west.start()
    wait_until(lambda: "t-1" in in_doubt(group.frontier(group.west)), what="the next run has it in doubt")
    assert group.shown() == set()
    group.west.sql(f"COMMIT PREPARED 't-1-{group.west.prefix}'")
    wait_until(lambda: group.shown() == group.both("t-1"), what="all is whole")
    assert [each.what for each in examine(group.east.config) if each.check == "group"] == []


RESTS_S = 2.0
"""The quickest of several is within this: the machine may be busy with other tests."""


@pytest.mark.parametrize("outcome", ["COMMIT of what only read", "ROLLBACK by a person"])
def test_an_idle_group_comes_to_rest_within_two_seconds_of_an_outcome_without_a_commit_record(
    connector: Maker, outcome: str
) -> None:
    """Nothing else happens in the group."""
    group, only_read = Group(connector), outcome.startswith("COMMIT")
    for here in group.members.values():
        here.start()
        group.wait_for_first(here)
    frontiers = group.west.reader.tail([f"{group.west.prefix}.frontiers"])
    group.west.at_end(frontiers.close)
    took = []
    for number in range(3):
        name = f"1:transfer {number}"
        east, west = (psycopg.connect(here.conninfo) for here in group.members.values())
        insert = f"INSERT INTO account VALUES ({number + 10}, 1, 'x')"
        for branch, where, statement in ((east, "east", insert), (west, "west", "SELECT 1" if only_read else insert)):
            branch.tpc_begin(branch.xid(1, f"transfer {number}", where))
            branch.execute(statement)
            branch.tpc_prepare()
        east.tpc_commit()
        assert frontiers.wait_for(lambda seen: name in in_doubt(seen.value))  # noqa: B023
        west.tpc_commit() if only_read else west.tpc_rollback()
        ended = time.monotonic()
        while name in in_doubt(frontiers.seen[-1].value):
            assert time.monotonic() < ended + 30, "the west still has it in doubt"
            frontiers.poll()
        took.append(time.monotonic() - ended)
        assert (group.east.prefix, name) in group.shown()
        east.close()
        west.close()
    print(f"{outcome}: a frontier without it after {took}")
    assert min(took) < RESTS_S


def test_prepared_list_knows_siblings_before_the_members_first_frontier(connector: Maker) -> None:
    """The west's connector has never run."""
    group = Group(connector)
    group.east.start()
    east, west = group.prepare("early", 1)
    gid = group.west.ask("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()")
    assert "no statement is offered" in told(group.west, "prepared", "list")
    assert f"PREPARED '{gid}'" not in told(group.west, "prepared", "list")
    east.tpc_commit()
    group.east.caught_up()
    listed = told(group.west, "prepared", "list")
    assert f"of {group.east.prefix} is committed" in listed
    assert f"COMMIT PREPARED '{gid}';" in listed
    assert f"ROLLBACK PREPARED '{gid}';" not in listed
    assert re.search(rf"holds back \d commit records? of {group.east.prefix} from 1 on", listed)
    assert group.frontier(group.west) is None
    west.tpc_commit()
    group.west.start()
    wait_until(lambda: group.shown() == group.both("1:early"), 90, "it is whole")


def test_a_member_that_begins_again_is_not_taken_for_what_it_was(connector: Maker) -> None:
    """Its numbers begin again, too: the west must not say that it has seen them all."""
    group = Group(connector)
    west, east = group.west, group.east
    for here in (west, east):
        here.start()
    for number in range(2, 6):
        east.sql(f"INSERT INTO account VALUES ({number}, 1, 'former')")
        east.caught_up()

    def seen() -> dict[str, Any]:
        (found,) = (group.frontier(west) or {}).get("seen") or ({},)
        return found

    def knows_all() -> bool:
        last = east.records("commits")[-1:]
        found = seen()  # nothing at all in a first frontier
        return bool(last) and all(last[0][name] == found.get(name) for name in ("sequence", "stream_id"))

    group.commit("former", 9)
    wait_until(knows_all, 90, "the west has seen the former stream")
    former = seen()
    assert former["sequence"] > 3
    east.runs[-1].stop()
    east.twofold("reset", "--yes", ok=True)
    east.delete_topics()
    east.twofold("init", ok=True)
    east.start()
    group.commit("later", 10)
    wait_until(knows_all, 90, "the west has seen the new stream")
    assert seen()["sequence"] < former["sequence"], "its numbers began again"


def told(here: Installation, *arguments: str) -> str:
    return here.twofold(*arguments, ok=True).stdout


def metric(here: Installation, name: str) -> float | None:
    port = re.search(r"status page: http://127\.0\.0\.1:(\d+)/", here.runs[-1].said())
    if port is None:
        return None
    text = urlopen(f"http://127.0.0.1:{port[1]}/metrics").read().decode()
    found = re.search(rf"^{name} (.*)$", text, re.MULTILINE)
    return float(found[1]) if found else None


def test_status_and_metrics_say_who_waits_for_a_branch_in_doubt(connector: Maker) -> None:
    group = Group(connector, status={"listen": "127.0.0.1:0"})
    for here in group.members.values():
        here.start()
    east, west = group.prepare("half", 1)
    for here in group.members.values():
        assert "HOLDS BACK" not in told(here, "status")
    east.tpc_commit()
    for number in (2, 3):
        group.east.sql(f"INSERT INTO account VALUES ({number}, 1, 'plain')")
        group.east.caught_up()
    waiting = group.east.records("commits")[-1]["sequence"]
    assert waiting > 1
    held = f"{waiting} commit records of {group.east.prefix} from 1 on"
    gid = group.west.ask("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()")
    status = told(group.west, "status")
    (line,) = (each for each in status.splitlines() if "HOLDS BACK" in each)
    assert f"HOLDS BACK {held}, committed at " in line
    assert line.endswith(f"in database {group.west.ask('SELECT current_database()')}: COMMIT PREPARED '{gid}';")
    assert f"holds back {held}" in told(group.west, "prepared", "list")
    assert "HOLDS BACK" not in told(group.east, "status")
    wait_until(lambda: metric(group.west, "twofold_half_committed") == 1, 90, "the metric of the west")
    assert metric(group.west, "twofold_held_back_commits") == waiting
    assert metric(group.east, "twofold_half_committed") == 0
    west.tpc_commit()
    wait_until(lambda: metric(group.west, "twofold_half_committed") == 0, 90, "nothing waits")
    assert "HOLDS BACK" not in told(group.west, "status")


def test_plain_transactions_have_a_frontier_at_leisure(connector: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a member that is added need not wait for a prepared transaction."""
    monkeypatch.setattr(frontier_asks, "LEISURE_S", leisure_s := 2.0)
    group = Group(connector)
    for here in group.members.values():
        here.carry()
    for here in group.members.values():
        group.wait_for_first(here)
    began, before = time.monotonic(), group.count_frontiers()
    for number in range(2, 6):
        for here in group.members.values():
            here.sql(f"INSERT INTO account VALUES ({number}, 1, 'plain')")
            here.caught_up()
    commits = {name: here.records("commits")[-1]["sequence"] for name, here in group.members.items()}

    def all_know_all() -> bool:
        last = {name: group.frontier(here) or {} for name, here in group.members.items()}
        seen = {(name, each["prefix"]): each["sequence"] for name in last for each in last[name]["seen"]}
        return seen == {(name, other): commits[other] for name in last for other in last if name != other}

    wait_until(all_know_all, 90, "the frontiers speak of the plain transactions")
    assert group.count_frontiers() - before <= 2 * ((time.monotonic() - began) / leisure_s + 1)


def test_doctor_says_who_does_not_run_as_a_member(connector: Maker) -> None:
    group = Group(connector)

    def found() -> list[str]:
        return [each.what for each in examine(group.east.config) if each.check in {"group", "group_member"}]

    east, west = group.members
    assert found() == [f"the group's member {name} has never written a frontier" for name in (east, west)]
    for here in group.members.values():
        here.carry()
        group.wait_for_first(here)
    assert found() == []
    group.east.configure({"group": {"name": "other", "members": [east, west, "nobody"]}})
    assert found() == [
        "the group's member nobody has no topics in this Kafka, or they are hidden from this user",
        f"the group's member {east} last ran as a member of group bank",
        f"the group's member {west} last ran as a member of group bank",
    ]
    group.east.configure({"group": {"name": "bank"}})
    assert f"the group's member {west} last ran with the members {east}, {west}" in found()


@pytest.mark.core
def test_a_member_without_topics_is_refused(connector: Maker) -> None:
    name = fresh_prefix()
    here = connector(name=name, group={"name": "bank", "members": [name, "nobody"]})
    run = here.start(ready=False)
    assert run.ended() == 3
    assert "the group's members nobody have no topics in this Kafka" in run.said()
