"""When a group's mirror names what holds its cut back, and in which words."""

from __future__ import annotations

from twofold_common.global_cut import CommittedBranch, Frontier, Member
from twofold_common.global_loads import Loads
from twofold_common.global_waits import WaitClock, find_waits
from twofold_spark.mirror.group_waiting import AGAIN_S, NAMED_AFTER_S, NAMED_MAX, WaitReport


def members(in_doubt: str, seen: int = 9, committed: str = "") -> dict[str, Member]:
    """In the east each is committed that the west has in doubt, by the commit records 1, 2, ..."""
    names = (committed or in_doubt).split()
    branches = tuple(CommittedBranch(n, name) for n, name in enumerate(names, 1))
    west = Frontier(7, {"east": seen}, {each: (f"the {each}'s",) for each in in_doubt.split()}, lsn=0x16B3748)
    return {"east": Member(0, 9, branches, Frontier(9, {"west": 7}, {})), "west": Member(0, 7, (), west)}


class Rounds:
    """Rounds of a mirror at given times."""

    def __init__(self) -> None:
        self.report, self.clock = WaitReport(), WaitClock()

    def at(self, now: float, known: dict[str, Member], loads: Loads | None = None) -> list[str] | None:
        waits, held = find_waits(known), loads.find_reasons() if loads else {}
        is_due = self.report.note_waits(known, waits, self.clock.measure(waits, now), held, now)
        return self.report.lines if is_due else None


def test_it_is_named_after_a_while_and_every_minute_with_what_ends_it() -> None:
    rounds = Rounds()
    assert rounds.at(0, members("g")) is None
    assert rounds.at(NAMED_AFTER_S - 1, members("g")) is None
    (line,) = rounds.at(NAMED_AFTER_S, members("g")) or []
    assert line == (
        "mirror: waits for the global transaction g for 5 s: committed in east by commit record 1, "
        "in doubt in west at 0/16B3748; commit records that wait: 9 of east; "
        "to end it, in the database of west: COMMIT PREPARED 'the g''s';"
    )
    assert rounds.at(30, members("g")) is None
    assert rounds.report.waits[0].held == {"east": 9}
    (line,) = rounds.at(NAMED_AFTER_S + AGAIN_S, members("g")) or []
    assert " for 65 s" in line
    assert rounds.at(70, members("")) == ["mirror: nothing holds the next cut back any more"]
    assert rounds.report.waits == []
    assert rounds.at(100, members("")) is None


def test_only_what_is_new_is_named_when_another_follows() -> None:
    rounds = Rounds()
    for now in (0, 5):
        rounds.at(now, members("g"))
    rounds.at(20, members("g h"))
    (line,) = rounds.at(26, members("g h")) or []
    assert "global transaction h " in line
    assert [each.wait.global_id for each in rounds.report.waits] == ["g", "h"], "the oldest first"
    assert len(rounds.at(65, members("g h")) or []) == 2


def test_a_load_is_named_with_what_it_waits_for() -> None:
    rounds, known, loads = Rounds(), members("g"), Loads()
    known["east"] = Member(0, 3, (), Frontier(3, {"west": 7}, {}), loads=(3,))
    loads.follow(known)
    assert rounds.at(0, known, loads) is None
    assert rounds.at(NAMED_AFTER_S, known, loads) == [
        "mirror: the load that ends with commit record 3 of east waits for what is in doubt in west: g"
    ]
    assert rounds.at(20, known) == ["mirror: nothing holds the next cut back any more"]


def test_many_are_counted() -> None:
    rounds, many = Rounds(), members(" ".join(f"g{n}" for n in range(9)))
    rounds.at(0, many)
    lines = rounds.at(5, many) or []
    assert len(lines) == NAMED_MAX + 1
    assert lines[-1] == "mirror: waits for 4 more global transactions"


def test_a_member_that_has_not_seen_it_is_named() -> None:
    rounds, behind = Rounds(), members("", seen=0, committed="g")
    rounds.at(0, behind)
    (line,) = rounds.at(5, behind) or []
    assert "committed in east by commit record 1, west has seen nothing of it up to 0/16B3748" in line
    assert "to end it" not in line


def test_a_member_without_a_frontier_is_named_at_once() -> None:
    rounds, known = Rounds(), members("")
    known["west"] = Member(0, 0, (), None)
    assert rounds.at(0, known) == [
        "mirror: waits for the first frontier of west: run its connector with the [group] of all members"
    ]
    assert rounds.at(1, known) is None


def test_members_that_read_gids_by_several_patterns_are_named_at_once() -> None:
    rounds, known = Rounds(), members("")
    known["west"] = Member(0, 7, (), Frontier(7, {"east": 9}, {}, gid_patterns=("t-(?P<global>.)",)))
    (line,) = rounds.at(0, known) or []
    assert line.startswith("mirror: waits until all members read gids alike: east has [], west has [t-(?P<global>.)];")
    assert rounds.at(10, known) is None
    assert len(rounds.at(AGAIN_S, known) or []) == 1
    assert rounds.at(70, members("")) == ["mirror: nothing holds the next cut back any more"]
