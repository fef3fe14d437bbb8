"""The parts of the group's chaos that need no server: the bank, the coordinator's log, what readers
of each source alone see, and what the checker takes for a cut.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from chaos.faults import ALWAYS, Storms
from chaos.group import bank
from chaos.group.coordinator import Log
from chaos.group.mirrored import InDelta, Mirrored
from chaos.group.shown import GlobalCut, Shown, sum_up
from chaos.group.topics import NEVER, Spans, visible_since
from chaos.lanes import CALM_S, GROUP_KINDS, STORM_S
from chaos.plan import VERSIONS, draw, draw_group
from chaos.reading import Record
from fixtures.connector import wait_until
from twofold_common.gids import parser


@pytest.mark.parametrize("seed", range(20))
def test_a_transfer_changes_no_total_and_its_branches_share_a_global_id(seed: int) -> None:
    rng, parse = random.Random(seed), parser(bank.OWN_GIDS[:1])
    for number in range(20):
        name = f"17{seed}{number}"
        branches = bank.draw_branches(rng, name, range(4))
        assert sum(each.amount for each in branches) == 0
        assert {bank.name_of(each.gid) for each in branches} == {name}
        parsed = [parse(each.gid) for each in branches]
        assert len({each.global_id for each in parsed}) == 1
        assert parsed[0].global_id is not None
        assert len({(each.global_id, each.branch) for each in parsed}) == len(branches)


def test_what_was_not_decided_is_rolled_back(tmp_path: Path) -> None:
    log = Log(tmp_path / "decisions")
    log.decide("1")
    for each in (log, Log(tmp_path / "decisions")):
        assert each.outcome("1") == "COMMIT"
        assert each.outcome("2") == "ROLLBACK"


def test_branches_that_are_left_are_so_for_whoever_reads_the_log(tmp_path: Path) -> None:
    log = Log(tmp_path / "decisions")
    log.decide("1")
    log.decide("2", 50.5, ["pay-2-1", "pay-2-0"])
    for each in (log, Log(tmp_path / "decisions")):
        assert each.outcome("2") == "COMMIT"
        assert [each.left_until(gid) for gid in ("pay-2-0", "pay-2-1", "pay-2-2", "pay-1-0")] == [50.5, 50.5, 0, 0]
        assert each.all_left_until == 50.5


def test_faults_of_a_group_come_in_storms_with_a_calm_between() -> None:
    plan = draw(5, GROUP_KINDS)
    storms = plan.storms(600)
    assert storms == plan.storms(600)
    assert all(STORM_S[0] <= end - begin <= STORM_S[1] for begin, end in storms)
    assert all(CALM_S[0] <= begin - end <= CALM_S[1] for (_, end), (begin, _) in pairwise(storms))
    assert storms[0][0] < CALM_S[0] < 600 < storms[-1][1]


def test_a_lane_waits_for_the_next_storm() -> None:
    storms = Storms([(0.0, 0.05), (60.0, 70.0)])
    assert storms.wait_s() == 0
    wait_until(lambda: storms.wait_s() > 0, 5, "the first storm is over")
    assert 50 < storms.wait_s() < 60
    assert Storms([]).wait_s() == float("inf")
    assert ALWAYS.wait_s() == 0


def test_a_group_has_every_version_and_one_standby() -> None:
    members = draw_group(7, GROUP_KINDS, 4)
    assert [each.postgres for each in members] == [*VERSIONS]
    assert [each.standby for each in members] == [False, False, False, True]
    assert members == draw_group(7, GROUP_KINDS, 4)
    assert not any(each.standby for each in draw_group(7, {"connector-kill"}, 4))


def test_a_transfer_is_torn_between_its_first_branch_and_its_last() -> None:
    seen = {"a": [10, 30], "b": [15], "c": [20, 20], "d": [40]}
    spans = Spans.of(seen, {"a": 2, "b": 1, "c": 2, "d": 2}, [5, 10, 29, 30, 39, 40, 99])
    assert spans.torn == ((10, 30), (40, NEVER))
    assert spans.torn_moments() == [10, 29, 40, 99]


def test_a_row_is_visible_with_the_commit_record_whose_range_has_it() -> None:
    def row(offset: int) -> Record:
        return Record("t", 0, offset, None, {"after": {}})

    def commit(at: int, first: int, last: int) -> Record:
        return Record("c", 0, at, None, {"ranges": [{"topic": "t", "partition": 0, "first": first, "last": last}]}, at)

    rows, commits = [row(0), row(3), row(4)], [commit(100, 0, 1), commit(200, 3, 4)]
    assert [at for _, at in visible_since("t", rows, commits)] == [100, 200, 200]
    assert [at for _, at in visible_since("t", [row(2), row(5)], commits)] == [None, None]
    prepared_first = [commit(100, 3, 4), commit(200, 0, 1)]
    assert [at for _, at in visible_since("t", rows, prepared_first)] == [200, 100, 100]


def member(*tables: str, loading: tuple[str, ...] = ()) -> dict[str, object]:
    return {"tables": [{"name": f"public.{name}", "version": 1} for name in tables], "backfilling": list(loading)}


def test_a_cut_is_checked_once_all_members_have_all_tables() -> None:
    def cut(west: object) -> GlobalCut:
        return GlobalCut(1, {"east": 3, "west": 4}, {"east": member("account", "part"), "west": west})

    assert cut(member("account", "part", "other")).complete
    assert not cut(member("account")).complete
    assert not cut(member("account", "part", loading=("p.public.account",))).complete
    assert cut(member("account")).has("account")
    assert not cut(member("account")).has("part")
    assert not cut(member("account", "part", loading=("p.public.account",))).has("account")
    assert not cut(None).complete


def test_a_reader_finds_another_total_or_a_part_of_a_transfer() -> None:
    def kinds(total: int | None, torn: tuple[tuple[str, int, int], ...] = ()) -> list[str]:
        return [each.kind for each in Shown("a cut", 1, total, torn).violations(100)]

    assert kinds(100) == []
    assert kinds(None) == []
    assert kinds(99) == ["total"]
    assert kinds(100, (("7", 1, 2),)) == ["torn"]
    assert kinds(98, (("7", 1, 2),)) == ["total", "torn"]


def test_a_transfer_is_whole_if_it_has_all_its_branches_and_their_amounts_add_up_to_nothing() -> None:
    whole = [("7", 0, 2, -5), ("7", 1, 2, 5), ("8", 0, 1, 0)]
    assert sum_up("a cut", 1, [(1, 60), (1, 40)], whole) == Shown("a cut", 1, 100, ())
    assert sum_up("a cut", 1, None, whole) == Shown("a cut", 1, None, ())
    for torn in (whole[1:], [("7", 0, 2, -4), *whole[1:]], [*whole, ("7", 1, 2, 0)]):
        ((name, there, of),) = sum_up("a cut", 1, [(1, 100)], torn).torn
        assert (name, there, of) == ("7", sum(row[0] == "7" for row in torn), 2)


@dataclass
class Tables:
    """In place of Spark: what was asked of it, and the rows of each version."""

    rows: dict[str, list[tuple[Any, ...]]]
    asked: list[str] = field(default_factory=list)

    def sql(self, question: str) -> Tables:
        self.asked.append(question.partition(" FROM ")[2])
        return self

    def collect(self) -> list[tuple[Any, ...]]:
        return self.rows.get(self.asked[-1], [])


def test_each_version_of_a_table_is_read_once_and_a_new_one_is_seen() -> None:
    def of(table: str, version: int) -> str:
        return f"delta.`/lake/{table.replace('.', '/')}` VERSION AS OF {version}"

    def cut(number: int, west: int) -> GlobalCut:
        def part(version: int) -> dict[str, Any]:
            versions = {"public.account": 1, "public.part": version}
            return {"tables": [{"name": its, "version": v} for its, v in versions.items()], "backfilling": []}

        return GlobalCut(number, {"east": 1, "west": west}, {"east": part(1), "west": part(west)})

    tables = Tables(
        {
            of("east.public.account", 1): [(1, 60)],
            of("west.public.account", 1): [(1, 40)],
            of("east.public.part", 1): [("7", 0, 2, -5)],
            of("west.public.part", 1): [("7", 1, 2, 5)],
        }
    )
    mirrored = Mirrored(cast("SparkSession", tables), ["east", "west"], InDelta("/lake"))
    shown = [mirrored.show(cut(number, west)) for number, west in ((1, 1), (2, 1), (3, 2))]
    assert [each.violations(100) == [] for each in shown if each is not None] == [True, True, False]
    assert tables.asked == [*tables.rows, of("west.public.part", 2)]


def test_cuts_follow_each_other_without_gaps_and_never_move_back() -> None:
    first = GlobalCut(1, {"east": 3, "west": 4}, {})
    assert GlobalCut(2, {"east": 3, "west": 5}, {}).follows(first)
    assert not GlobalCut(3, {"east": 3, "west": 5}, {}).follows(first)
    assert not GlobalCut(2, {"east": 4, "west": 3}, {}).follows(first)
