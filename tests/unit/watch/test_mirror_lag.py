"""How far the mirror is behind, from what it says of itself and what this process has seen."""

from __future__ import annotations

import pytest

from twofold.bridge import initial
from twofold.errors import RunEnded, SetupError
from twofold.watch.activity import Activity
from twofold.watch.sampler import MirrorLag, Sampler
from twofold_common.mirror_place import MirrorPlace, parse_place
from twofold_common.positions import Lsn


def behind(place: MirrorPlace | None, *, sequence: int = 30, transactions: int = 1000) -> MirrorLag | None:
    """At 100 s, after commit record 10 was seen at 50 s, 20 at 70 s and 30 at 90 s."""
    activity = Activity()
    if sequence:
        activity.recovered(initial(applied_lsn=Lsn(9000), confirmed_lsn=Lsn(1), sequence=sequence, pool=1), "ours")
    activity._totals.transactions = transactions
    sampler = Sampler("", activity)
    for moment in ((50.0, 10, 700), (70.0, 20, 800), (90.0, 30, 1000)):
        sampler._sequences.add(*moment)
    sampler.mirror = place
    return sampler.mirror_lag(activity.view(), 100.0)


@pytest.mark.parametrize(
    ("place", "lag"),
    [
        (MirrorPlace(30, Lsn(9000), 0), MirrorLag(0.0, 0, 0)),
        (MirrorPlace(31, Lsn(9100), 0), MirrorLag(0.0, 0, 0)),  # it is quicker than what was sampled
        (MirrorPlace(20, Lsn(8000), 0), MirrorLag(10.0, 1000, 200)),
        (MirrorPlace(25, Lsn(8500), 0), MirrorLag(10.0, 500, 200)),  # at most
        (MirrorPlace(3, Lsn(100), 0), MirrorLag(50.0, 8900, None)),
        (MirrorPlace(20, Lsn(8000), 0, stream_id="ours"), MirrorLag(10.0, 1000, 200)),
        # The last cut of former topics' mirror: it has nothing of these, whatever its number.
        (MirrorPlace(5000, Lsn(9500), 0, stream_id="former"), MirrorLag(50.0, 0, None)),
        (None, None),
    ],
)
def test_lag(place: MirrorPlace | None, lag: MirrorLag | None) -> None:
    assert behind(place) == lag


def test_before_a_recovery_nothing_is_known() -> None:
    assert behind(MirrorPlace(20, Lsn(8000), 0), sequence=0) is None


@pytest.mark.parametrize("words", [None, "", "nonsense", "{}", "[]", '{"sequence": 1}'])
def test_what_another_program_has_written_there_is_said(words: str | None) -> None:
    with pytest.raises(SetupError, match=r"bank\.mirror .* another program wrote it"):
        parse_place(words, "bank.mirror")


@pytest.mark.parametrize("behind", ["", "\0", "\0\0\x02rest", "\x02\u00ff and the like", "}"])
def test_what_a_mirror_writes_is_one_whatever_lies_behind_it(behind: str) -> None:
    words = '{"sequence": 7, "applied_lsn": 99, "committed_us": 5}'
    assert parse_place(words + behind, "bank.mirror") == MirrorPlace(7, Lsn(99), 5)


class Clock:
    now = 5000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("told", "quiet_s", "gone"),
    [
        ('"told_ms": 4990000, "ended": false', 30, None),
        ('"told_ms": 4990000, "ended": false', 40, 4990.0),
        ('"told_ms": 4990000, "ended": true', 0, 4990.0),
        ('"told_ms": 9990000, "ended": true', 0, 5000.0),  # by a clock that is ahead of ours
        ("", 4000, None),  # one that tells only of its cuts
    ],
)
def test_a_mirror_that_says_nothing_more_does_not_run(told: str, quiet_s: float, gone: float | None) -> None:
    words = f'{{"sequence": 7, "applied_lsn": 99, "committed_us": 5{told and ", " + told}}}'
    clock, activity = Clock(), Activity()
    activity.recovered(initial(applied_lsn=Lsn(9000), confirmed_lsn=Lsn(1), sequence=7, pool=1))
    sampler = Sampler("", activity, lambda: parse_place(words, "bank.mirror"), clock)
    sampler._ask_for_mirror()
    clock.now += quiet_s
    sampler._ask_for_mirror()
    assert sampler.mirror_gone_since(clock.now) == gone


def test_while_kafka_is_away_a_mirror_is_shown_only_where_one_was_seen() -> None:
    activity = Activity()
    activity.recovered(initial(applied_lsn=Lsn(9000), confirmed_lsn=Lsn(1), sequence=7, pool=1))
    answers: list[MirrorPlace | RunEnded | SetupError] = [
        RunEnded("away"), MirrorPlace(7, Lsn(99), 5), RunEnded("away"), SetupError("forbidden"),
    ]  # fmt: skip

    def ask() -> MirrorPlace:
        if isinstance(answer := answers.pop(0), MirrorPlace):
            return answer
        raise answer

    sampler, said = Sampler("", activity, ask, Clock()), []
    while answers:
        sampler._ask_for_mirror()
        said.append(sampler.mirror_error)
    assert said == ["", "", "away", "forbidden"]
