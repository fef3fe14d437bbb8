"""Which global transactions a group's mirror names as holding others back."""

from __future__ import annotations

from twofold_common.global_cut import Waiting
from twofold_spark.mirror.waiting_names import WaitingNames

G, H = Waiting("g", ("east",), ("west", "north")), Waiting("h", ("west",), ("east",))


def test_each_is_named_once_in_its_second_round_and_again_when_it_comes_back() -> None:
    names = WaitingNames()
    assert names.describe_new([G]) == []
    assert names.describe_new([G, H]) == [
        "mirror: waits for the global transaction g: committed in east, in doubt in west, north"
    ]
    (line,) = names.describe_new([G, H])
    assert " h: committed in west, in doubt in east" in line
    assert names.describe_new([G, H]) == []
    assert names.describe_new([]) == []
    assert names.describe_new([G]) == []
    assert len(names.describe_new([G])) == 1
