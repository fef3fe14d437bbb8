"""When a mirror looks for more: at a micro-batch, and once by itself: a checkpoint may be ahead of
the tables. After an error nothing more is applied.
"""

from __future__ import annotations

import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from twofold_spark.errors import Refused, TableRefused
from twofold_spark.mirror.batching import MirrorSettings
from twofold_spark.mirror.mirror_job import Mirror
from twofold_spark.mirror.source_mirror import Batch
from twofold_spark.sinks.cuts import EVERY_TABLE, NO_CUT, Cut, GlobalCut
from twofold_spark.sinks.interface import MirrorTable
from twofold_spark.sinks.place import Place
from twofold_spark.sinks.sharding import SHARED, Sharding
from twofold_spark.sources.commit_records import CommitRecord
from twofold_spark.streaming import EndRequested

NOTHING = cast("Any", None)


class Rounds:
    """What the rounds of a mirror of one source have read; `failure` is raised by the next."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.count = 0
        self.failure: Exception | None = None
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        self.mirror = Mirror(NOTHING, NOTHING, NOTHING, ("bank",), cast("Place", self), MirrorSettings())
        monkeypatch.setattr(self.mirror, "_begin", lambda: None)
        monkeypatch.setattr(self.mirror._reader, "read", self._read)

    def _read(self, _spark: object) -> bool:
        self.count += 1
        if self.failure is not None:
            raise self.failure
        return True


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> Rounds:
    return Rounds(monkeypatch)


def test_a_stream_without_anything_new_is_looked_behind_once(rounds: Rounds) -> None:
    rounds.mirror.look_if_due(False)
    assert rounds.count == 0, "a micro-batch may come"
    rounds.now += 11
    for _ in range(3):
        rounds.mirror.look_if_due(False)
        rounds.now += 3600
    assert rounds.count == 1


def test_a_stream_that_has_ended_without_a_round_is_looked_behind(rounds: Rounds) -> None:
    rounds.mirror.look_if_due(True)
    assert rounds.count == 1


def test_a_stream_that_had_a_micro_batch_is_not(rounds: Rounds) -> None:
    rounds.mirror(NOTHING, 0)
    rounds.now += 11
    rounds.mirror.look_if_due(False)
    rounds.mirror.look_if_due(True)
    assert rounds.count == 1
    rounds.mirror(NOTHING, 1)
    assert rounds.count == 2


def test_after_an_error_nothing_more_is_applied(rounds: Rounds) -> None:
    """The stream's thread may wait for a round that fails beside it."""
    rounds.failure = ValueError("the registry is away")
    with pytest.raises(ValueError, match="registry"):
        rounds.mirror.look_if_due(True)
    rounds.failure = None
    with pytest.raises(EndRequested):
        rounds.mirror(NOTHING, 0)
    assert rounds.count == 1


def make_mirror(*joined: str, **settings: Any) -> Mirror:
    """East has rows in a sharded table, west none."""
    place = cast("Any", SimpleNamespace(sharding=Sharding.parse("*"), last=None, next_number=1))
    mirror = Mirror(NOTHING, NOTHING, NOTHING, ("east", "west"), place, MirrorSettings(**settings))
    mirror._membership.joined = frozenset(joined)
    mirror._shared.versions = {"public.accounts": "7"}
    mirror._sources["east"]._next.cut = replace(NO_CUT, sequence=5, versions={"public.accounts": "0"})
    return mirror


def test_a_member_without_a_commit_record_may_have_rows_of_every_shard() -> None:
    """Its frontier comes before the first rows of its load, which may wait for a lock."""
    made = make_mirror("east", "west")._make_cut({"east": 5, "west": 0})
    assert made.members["west"].backfilling == ("public.accounts",)
    assert made.members["east"].backfilling == ()


def test_a_shard_that_is_stopped_while_its_member_joins_holds_the_table_back() -> None:
    mirror = make_mirror("east")
    mirror._sources["west"]._next.cut = replace(NO_CUT, sequence=3, stopped=("public.accounts",))
    made = mirror._make_cut({"east": 5, "west": 3})
    assert made.others["west"].backfilling == ("public.accounts",)
    assert made.members["east"].versions == {"public.accounts": "7"}
    assert made.held_tables == {"public.accounts"}
    mirror._place.last = made
    del mirror._sources["west"]
    left = mirror._make_cut({"east": 5})
    assert (left.others["west"].backfilling, left.held_tables) == ((), frozenset()), "it has left"


def test_a_source_that_left_is_loaded_again_if_the_table_was_made_again_meanwhile() -> None:
    """Nobody else knows that it had rows in there: its changes alone would go into the new one."""
    mirror = make_mirror("east")
    left = replace(NO_CUT, sequence=3)
    mirror._place.last = GlobalCut(4, {"east": replace(NO_CUT, sequence=5)}, {"west": left})
    west = mirror._sources.pop("west")
    assert mirror._make_cut({"east": 5}).others["west"].stopped == ()
    mirror._shared.gone = ["public.accounts"]
    west._next.cut = mirror._make_cut({"east": 5}).others["west"]
    assert west._next.find_stopped({MirrorTable("", "public", "accounts", ()): 0}) == {EVERY_TABLE, "public.accounts"}
    assert west._next.find_stopped({MirrorTable("", "public", "own", ()): 0}) >= {"public.own"}, "nobody knows better"


@pytest.mark.parametrize(
    ("sequence", "has_topic", "is_stopped"), [(3, True, True), (3, False, False), (0, True, False)]
)
def test_a_source_that_joins_again_when_the_table_is_gone_is_loaded_again(
    sequence: int, has_topic: bool, is_stopped: bool
) -> None:
    west = make_mirror("east")._sources["west"]
    west._next.cut = replace(NO_CUT, sequence=sequence)
    west._merger.has_topic = lambda topic: has_topic and topic == "west.public.accounts"  # type: ignore[method-assign]
    west.stop_table("public.accounts")
    assert west.cut.stopped == (("public.accounts",) if is_stopped else ())


WITH_ROWS = replace(NO_CUT, sequence=3, versions={"public.accounts": "7"})


@pytest.mark.parametrize(
    ("members", "others"),
    [
        pytest.param({}, {"west": WITH_ROWS}, id="it was joining"),
        pytest.param({"west": replace(WITH_ROWS, backfilling=("public.accounts",))}, {}, id="it was being loaded"),
    ],
)
def test_a_source_does_not_leave_with_a_part_of_its_rows(members: dict[str, Cut], others: dict[str, Cut]) -> None:
    mirror = make_mirror("east")
    mirror._place.last = GlobalCut(4, {"east": replace(NO_CUT, sequence=5), **members}, others)
    mirror._shared.refuse_parts_of_rows(mirror._sources)
    del mirror._sources["west"]
    with pytest.raises(Refused, match=r"west was taken out while public\.accounts had a part of its rows"):
        mirror._shared.refuse_parts_of_rows(mirror._sources)
    mirror._shared.versions = {}
    mirror._shared.refuse_parts_of_rows(mirror._sources)


def test_a_source_whose_rows_were_all_in_a_cut_may_leave() -> None:
    mirror = make_mirror("east")
    del mirror._sources["west"]
    east, no_commit = replace(NO_CUT, sequence=5), replace(WITH_ROWS, sequence=0)
    for last in (
        None,
        GlobalCut(4, {"east": east, "west": WITH_ROWS}),
        GlobalCut(4, {"east": east}, {"west": no_commit}),
    ):
        mirror._place.last = last
        mirror._shared.refuse_parts_of_rows(mirror._sources)
    mirror._place.last = mirror._make_cut({"east": 5})
    mirror._shared.refuse_parts_of_rows(mirror._sources)


def refuse(table: str) -> TableRefused:
    made = TableRefused("two members have one key", at_stake="which counts", repair="delete one")
    made.prefix, made.table = SHARED, table
    return made


@pytest.mark.parametrize("has_batch", [False, True])
def test_a_sharded_table_that_is_refused_where_nobody_changed_it_stops_alone(has_batch: bool) -> None:
    """Of two that are refused both stay stopped, whatever the members' last batches had."""
    mirror = make_mirror("east", "west", on_table_error="go-on")
    mirror._shared.versions = mirror._shared._published = {"public.accounts": "7", "sales.a": "8"}
    east = mirror._sources["east"]
    east._next.cut = replace(NO_CUT, sequence=5, versions={"public.accounts": "0", "sales.a": "0"})
    if has_batch:
        last = CommitRecord(0, 5, 0, 0, 1, 1, (), ())
        east._sink, east._batch = cast("Any", object()), Batch(last, {MirrorTable("", "sales", "a", ()): 5}, set())
        east._topic = cast("Any", SimpleNamespace(read_after=lambda *_: ()))
    for name in ("public.accounts", "sales.a"):
        mirror._leave_out(refuse(name))
    made = mirror._make_cut({"east": 5, "west": 0})
    assert made.held_tables == {"public.accounts", "sales.a"} == {*made.members["east"].stopped}
    assert made.members["west"].stopped == ()
    with pytest.raises(TableRefused):
        make_mirror("east", "west")._leave_out(refuse("public.accounts"))
