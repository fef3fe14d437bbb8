"""Which statements the page offers for a transaction in doubt: those of `prepared list`, and none
before its other branches are known.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from twofold.bridge import events, initial, step
from twofold.errors import Unreachable
from twofold.group.ledgers import Branch
from twofold.inspect.in_doubt import HeldBack, InDoubt
from twofold.watch.activity import Activity
from twofold.watch.in_doubt_answers import ASKED_AGAIN_S, KNOWN_FOR_S, InDoubtAnswers
from twofold_common.gids import Parse, parse, parser
from twofold_common.positions import Lsn, PreparedIdentity

XA = "1234_Z3RyaWQ=_YnF1YWw="


SIBLING = Branch("other", "1234_Z3RyaWQ=_b3RoZXI=", "1234:gtrid", "committed")
COMMIT = f"COMMIT PREPARED '{XA}';"


def report(gid: str, *others: Branch, held_back: tuple[HeldBack, ...] = ()) -> InDoubt:
    return InDoubt(
        xid=7, gid=gid, owner="me", age_s=60, global_id="1234:gtrid", branch="bqual", others=others, held_back=held_back
    )


def listed(gid: str, answers: InDoubtAnswers, now: float = 1060.0) -> dict[str, object]:
    (found,) = answers.list_all(prepared(gid).view(), None, now)
    return found


def counted(gid: str, answers: InDoubtAnswers, now: float = 1060.0) -> tuple[int, int]:
    return answers.count_held_back(prepared(gid).view(), None, now)


def prepared(gid: str) -> Activity:
    activity = Activity(lambda: 1000.0)
    state = initial(applied_lsn=Lsn(100), confirmed_lsn=Lsn(100), sequence=3, pool=1)
    activity.recovered(state)
    event = events.PrepareRead(PreparedIdentity(7, gid), Lsn(110), Lsn(115), rows=4)
    state, decided = step(state, event)
    activity.stepped(event, decided, state, 0)
    return activity


class Asked:
    """Answers in the thread of the view, which a test waits for."""

    def __init__(self, *answers: Sequence[InDoubt] | Exception, parse_gid: Parse = parse) -> None:
        self.answers = list(answers)
        self.now = 0.0
        self.may_answer = threading.Event()
        self.view = InDoubtAnswers(self.ask, parse_gid, lambda: self.now)

    def ask(self) -> tuple[Sequence[InDoubt], Sequence[str]]:
        assert self.may_answer.wait(10)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer, ("other.prepared: not allowed",)

    def wait(self) -> None:
        self.may_answer.set()
        for thread in threading.enumerate():
            if thread.name == "status-branches":
                thread.join(10)
        self.may_answer.clear()


def test_an_opaque_gid_has_no_other_branches() -> None:
    asked = Asked()
    found = listed("it's", asked.view)
    assert found["statements"] == ["COMMIT PREPARED 'it''s';", "ROLLBACK PREPARED 'it''s';"]
    asked.wait()


def test_a_gid_of_ones_own_pattern_has_other_branches() -> None:
    own = parser((r"pay-(?P<global>\d+)-(?P<branch>\w+)",))
    found = listed("pay-7-bank", Asked(parse_gid=own).view, now=0)
    assert (found["global_id"], found["branch"], found["statements"]) == ("7", "bank", [])


def test_a_branch_is_offered_nothing_until_its_siblings_are_known_and_then_what_keeps_them_whole() -> None:
    asked = Asked([report(XA, SIBLING)])
    before = listed(XA, asked.view)
    assert (before["global_id"], before["branch"]) == ("1234:gtrid", "bqual")
    assert before["statements"] == []
    assert before["statements_wait"]
    asked.wait()
    after = listed(XA, asked.view)
    assert (after["statements"], after["siblings"]) == ([COMMIT], ["1234:gtrid branch other of other is committed"])
    assert asked.view.unread == ("other.prepared: not allowed",)


def test_statements_are_taken_back_when_the_siblings_cannot_be_read_any_more() -> None:
    asked = Asked([report(XA, SIBLING)], Unreachable("Kafka is away"))
    listed(XA, asked.view)
    asked.wait()
    assert listed(XA, asked.view)["statements"]
    asked.now += ASKED_AGAIN_S
    listed(XA, asked.view)
    asked.wait()
    found = listed(XA, asked.view)
    assert (found["statements"], found["statements_wait"]) == ([], "Kafka is away")


@pytest.mark.parametrize("age_s", [0, 3])
def test_one_that_was_just_prepared_is_not_asked_about(age_s: float) -> None:
    asked = Asked()  # a question would find no answer, and end its thread with an error
    listed(XA, asked.view, now=1000.0 + age_s)
    asked.wait()
    assert asked.view.error == ""


def test_it_is_asked_seldom() -> None:
    asked = Asked([report(XA)], [report(XA)])
    for _ in range(5):
        listed(XA, asked.view)
        asked.wait()
    assert len(asked.answers) == 1


def test_who_waits_for_it_is_shown_and_counted_for_metrics() -> None:
    east = HeldBack("east", 40, 4, 1000.0)
    asked = Asked([report(XA, SIBLING, held_back=(east,))])
    assert counted(XA, asked.view) == (0, 0)
    asked.wait()
    assert counted(XA, asked.view) == (1, 4)
    shown: Any = listed(XA, asked.view)["held_back"]
    assert [(each["prefix"], each["commits"], each["shown"]) for each in shown] == [("east", 4, str(east))]
    asked.answers = [Unreachable("Kafka is away")]
    asked.now += KNOWN_FOR_S + 1
    assert counted(XA, asked.view) == (1, 4), "the last answer, however old"
    asked.wait()
    assert counted("another", asked.view) == (0, 0), "it is in doubt no more"
