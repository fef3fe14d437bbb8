"""When a snapshot was replaced for its readers."""

from __future__ import annotations

from twofold_spark.sinks.iceberg_maintenance import Snapshot, find_replaced


def test_a_snapshot_ends_with_the_move_behind_its_own() -> None:
    """1 was read for nine hours; the branch had 2 long before `main`."""
    snapshots = [Snapshot(1, None, 10), Snapshot(2, 1, 20), Snapshot(3, 2, 950)]
    replaced = find_replaced(snapshots, [(1, 11), (2, 900), (3, 951)])
    assert replaced == {1: 900, 2: 951, 3: 950}, "the present one is named by main"


def test_a_snapshot_that_main_passed_by_ends_with_the_first_that_was_made_of_it() -> None:
    snapshots = [Snapshot(1, None, 10), Snapshot(2, 1, 20), Snapshot(3, 2, 30), Snapshot(4, 2, 40), Snapshot(5, 9, 5)]
    assert find_replaced(snapshots, [(3, 31)]) == {1: 20, 2: 30, 3: 30, 4: 40, 5: 5}


def test_main_may_come_back_to_a_snapshot() -> None:
    replaced = find_replaced([Snapshot(1, None, 10), Snapshot(2, 1, 20)], [(1, 11), (2, 21), (1, 50), (2, 70)])
    assert replaced == {1: 70, 2: 50}
