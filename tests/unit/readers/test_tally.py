"""How the trial of table readers counts."""

from __future__ import annotations

from typing import Any

from readers.metadata import read_sequence
from readers.tally import Outcome, Tally, TornTimes, summarize


def _tally(*reads: tuple[int, int, int]) -> Tally:
    tally = Tally(100)
    for total, before, after in reads:
        tally.count(total, before=before, after=after)
    return tally


def test_a_read_beside_which_a_cut_was_published_does_not_count() -> None:
    tally = _tally((100, 1, 1), (99, 1, 2), (100, 2, 3), (98, 3, 3), (100, 3, 3))
    assert (tally.reads, tally.torn, tally.repeated, tally.repeated_torn) == (3, [98], 2, 1)
    assert tally.versions == {1, 3}
    outcome = Outcome("rest", True, True, 7, 3, 12.3, {"spark": tally, "duckdb": tally})
    assert (outcome.reads, outcome.torn) == (6, 2)
    assert outcome.describe().startswith(
        "rest: 6 reads, 7 cuts, 3 kills in 12 s: 2 torn\n  it offers one commit of several tables\n  spark: 3 reads of 2 versions, 1 torn; 2 were made again"
    )


def test_only_catalogs_that_change_several_tables_at_once_fail_the_command() -> None:
    whole, torn = _tally((100, 1, 1)), _tally((99, 1, 1))
    times = TornTimes(2, 0.25)
    one_by_one = Outcome("sqlite", False, False, 7, 3, 12.3, {"spark": torn}, times)
    at_once = Outcome("rest", True, True, 7, 3, 12.3, {"spark": whole})
    assert summarize([at_once, one_by_one], ["spark"]) == {"readers": ["spark"], "reads": 1, "torn": 0}
    failed = Outcome("rest", True, True, 7, 3, 12.3, {"spark": whole, "duckdb": torn})
    assert summarize([failed, one_by_one], ["spark", "duckdb"])["torn"] == 1
    assert one_by_one.describe().endswith("two tables were of two cuts 2 times, 250 ms at most")


def test_a_torn_time_lasts_until_a_look_that_sees_one_cut() -> None:
    times = TornTimes()
    for at, torn in ((0.0, False), (1.0, True), (1.2, True), (1.5, False), (2.0, True), (2.1, False)):
        times.observe(at, torn=torn)
    assert (times.times, times.longest_s) == (2, 0.5)


def test_compaction_belongs_to_the_cut_before_it() -> None:
    def snapshot(number: int, **summary: str) -> dict[str, Any]:
        return {"snapshot-id": number, "parent-snapshot-id": number - 1, "summary": summary}

    kept = [snapshot(3, **{"twofold.sequence": "30"}), snapshot(4), snapshot(5, **{"twofold.sequence": "50"})]
    assert read_sequence({"snapshots": kept, "refs": {"main": {"snapshot-id": 4}}}) == 30
