"""Which statements are offered for a branch in doubt, none that could tear what is global, and
which members of a source group wait for it.
"""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, Literal, cast

import pytest

from twofold.group.ledgers import Branch, Branches
from twofold.inspect import in_doubt
from twofold.inspect.in_doubt import HeldBack, InDoubt, count_held_back, held_back_by

COMMIT, ROLLBACK = "COMMIT PREPARED 'a';", "ROLLBACK PREPARED 'a';"
State = Literal["open", "parked", "committed", "rolled_back"]
EAST = Branch("east", "g/east", "g", "committed", sequence=40, committed_at=1000.0)
MEMBERS = ("east", "west", "north")


@pytest.mark.parametrize(
    ("global_id", "states", "offered"),
    [
        (None, [], (COMMIT, ROLLBACK)),
        ("g", [], ()),
        ("g", ["open", "parked"], ()),
        ("g", ["open", "committed"], (COMMIT,)),
        ("g", ["rolled_back"], (ROLLBACK,)),
        ("g", ["committed", "rolled_back"], (COMMIT, ROLLBACK)),
    ],
)
def test_the_outcome_of_another_branch_decides(
    global_id: str | None, states: list[State], offered: tuple[str, ...]
) -> None:
    others = tuple(Branch("west", f"b{n}", "g", state) for n, state in enumerate(states))
    each = InDoubt(xid=7, gid="a", age_s=1, global_id=global_id, branch="b", others=others)
    assert each.statements == offered
    assert each.ending == (" or ".join(offered) or "see twofold prepared list")
    assert each.torn == (len(set(states)) == 2 and "open" not in states)


@pytest.mark.parametrize(
    ("ended_s_ago", "offered", "waits"), [(3600, (), 0), (120, (), 1), (59, (COMMIT,), 1), (0, (COMMIT,), 1)]
)
def test_an_outcome_that_is_older_than_the_prepare_is_of_an_earlier_use_of_the_gid(
    monkeypatch: pytest.MonkeyPatch, ended_s_ago: float, offered: tuple[str, ...], waits: int
) -> None:
    """Or of a server whose clock is behind: no statement is offered, and who waits is named."""
    west = Branch("west", "g/west", "g", "committed", sequence=40, committed_at=time.time() - ended_s_ago)
    monkeypatch.setattr(in_doubt, "kafka_settings", lambda _: None)
    monkeypatch.setattr(in_doubt, "open_registry", lambda _: None)
    found_by = SimpleNamespace(branches=lambda *_: Branches((west,), (), {}))
    monkeypatch.setattr(in_doubt, "Ledgers", lambda *_: found_by)
    parts = {"group": SimpleNamespace(members=("east", "west")), "prepared": SimpleNamespace(gid_patterns=())}
    config = cast("Any", SimpleNamespace(prefix="east", **parts))
    mine = InDoubt(xid=7, gid="a", age_s=60, global_id="g", branch="b")
    ((each,), _) = in_doubt.add_branches(config, (mine,))
    assert (each.statements, len(each.held_back)) == (offered, waits)


def test_json_has_the_statements_and_the_siblings_in_words() -> None:
    held_back = held_back_by([EAST], MEMBERS, {"east": 43})
    each = InDoubt(xid=7, gid="a", age_s=1, global_id="g", branch="b", others=(EAST,), held_back=held_back)
    said = each.to_json()
    assert (said["statements"], said["siblings"]) == ((COMMIT,), ("g/east of east is committed",))
    assert said["held_back"] == ({"prefix": "east", "sequence": 40, "commits": 4, "since": 1000.0},)
    assert list(said) == [
        "xid", "gid", "owner", "database", "age_s", "too_long", "wal_bytes", "in_kafka", "rows", "topics", "global_id",
        "branch", "statements", "siblings", "torn", "held_back",
    ]  # fmt: skip


def test_a_member_that_has_committed_waits_from_there_on() -> None:
    (found,) = held_back_by([EAST], MEMBERS, {"east": 43, "other": 9})
    assert found == HeldBack("east", 40, 4, 1000.0)
    assert str(found) == "4 commit records of east from 40 on"


def test_the_first_of_two_branches_counts() -> None:
    second = Branch("east", "g/east 2", "g", "committed", sequence=38, committed_at=999.0)
    (found,) = held_back_by([EAST, second], MEMBERS, {"east": 43})
    assert (found.sequence, found.commits) == (38, 6)


def test_nobody_else_waits() -> None:
    others = [
        Branch("west", "g/west", "g", "parked"),
        Branch("north", "g/north", "g", "rolled_back"),
        Branch("elsewhere", "g/elsewhere", "g", "committed", sequence=3, committed_at=1.0),
    ]
    assert held_back_by(others, MEMBERS, {"elsewhere": 9}) == ()


def test_a_commit_record_that_waits_for_two_counts_once() -> None:
    found = [HeldBack("east", 40, 4, None), HeldBack("east", 42, 2, None), HeldBack("north", 7, 1, None)]
    assert count_held_back(found) == 5
