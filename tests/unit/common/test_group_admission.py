"""When a member that is added may be in a global cut: the cut shows of it whatever belongs to what
the others show.
"""

from __future__ import annotations

from twofold_common.global_cut import CommittedBranch, Frontier, Member
from twofold_common.group_admission import Admission


def member(known: int, seen: dict[str, int], *in_doubt: str, cut: int = 0) -> Member:
    branches = tuple(CommittedBranch(n, f"g{n}") for n in range(cut + 1, known + 1))
    return Member(cut, known, branches, Frontier(known, seen, {each: (f"{each}/1",) for each in in_doubt}))


def test_without_what_is_unknown_nothing_is_waited_for() -> None:
    members = {"east": member(3, {"west": 2}, "g9"), "west": member(2, {"east": 3})}
    assert Admission({"east": 0, "west": 0}, ()).admits(members, {"east": 0, "west": 0})


def test_it_waits_until_what_the_others_show_is_decided_and_shown() -> None:
    admission = Admission({"east": 10, "north": 0}, {"east"})
    east = member(12, {"north": 4}, cut=10)

    def admits(north: Member, shown: int) -> bool:
        return admission.admits({"east": east, "north": north}, {"east": 12, "north": shown})

    assert not admits(member(4, {"east": 9}), 4), "the frontier knows less than the east shows"
    assert "a frontier of north that knows commit record 10 of east" in admission.find_reasons({"north": 4})[0]
    assert not admits(member(5, {"east": 10}, "g1", "g2"), 5)
    assert not admits(member(6, {"east": 11}, "g2", "g3"), 6), "the second one is still in doubt"
    assert admission.find_reasons({"north": 6}) == ["what is in doubt in north: g2"]
    assert not admits(member(8, {"east": 12}, "g3", "g4"), 7), "all are decided by the eighth commit record"
    assert admission.find_reasons({"north": 7}) == ["a cut that shows commit record 8 of north"]
    assert admits(member(9, {"east": 12}, "g5"), 8), "what came later is in doubt, and no matter"


def test_others_must_speak_of_commit_records_that_kafka_no_longer_has() -> None:
    admission = Admission({"east": 10, "north": 7}, {"east"})
    north = member(9, {"east": 10}, cut=7)
    east = member(12, {"north": 6}, cut=10)
    assert not admission.admits({"east": east, "north": north}, {"east": 12, "north": 9})
    east = member(12, {"north": 7}, cut=10)
    assert admission.admits({"east": east, "north": north}, {"east": 12, "north": 9})


def test_a_member_of_which_nothing_can_be_shown_is_not_admitted() -> None:
    """Its first commit records are gone, so its tables are empty or wait for a reload."""
    admission = Admission({"east": 0, "north": 7}, ())
    members = {"east": member(2, {"north": 7}), "north": member(7, {"east": 2}, cut=7)}
    assert not admission.admits(members, {"east": 2, "north": 7})
