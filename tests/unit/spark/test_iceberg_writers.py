"""A table in Iceberg that another job wrote to, or that a backup brought back, and its repair."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import pytest

from twofold_spark.errors import Refused
from twofold_spark.sinks.cuts import NO_CUT
from twofold_spark.sinks.iceberg_commits import check_since_cut
from twofold_spark.sinks.iceberg_tables import SEQUENCE
from twofold_spark.sinks.interface import MirrorTable

TABLE, NAME = MirrorTable("bank.public.t", "public", "t", ("id",)), "lake.public.t"
ROLL_BACK = f"ALTER TABLE {NAME} CREATE OR REPLACE BRANCH twofold AS OF VERSION 2"
RELOAD = "drop the mirror's table, then `twofold backfill start public.t`"


@dataclass
class Snapshot:
    """A merge, as Java has it."""

    number: int
    parent: int | None
    sequence: int

    def snapshotId(self) -> int:
        return self.number

    def parentId(self) -> int | None:
        return self.parent

    def summary(self) -> dict[str, str]:
        return {SEQUENCE: str(self.sequence)}


@dataclass
class Table:
    """A table whose branch ends with the last snapshot."""

    snapshots: list[Snapshot]

    def snapshot(self, which: int | str) -> Snapshot | None:
        if isinstance(which, str):
            return self.snapshots[-1]
        return next((each for each in self.snapshots if each.number == which), None)


@pytest.mark.parametrize(
    ("snapshots", "repair"),
    [
        ([Snapshot(1, None, 5), Snapshot(2, 1, 9), Snapshot(3, 1, 5)], ROLL_BACK),
        ([Snapshot(1, None, 5)], RELOAD),
    ],
    ids=["set back", "from a backup"],
)
def test_the_repair_names_no_snapshot_that_is_not_there(snapshots: list[Snapshot], repair: str) -> None:
    cut = replace(NO_CUT, sequence=9, versions={str(TABLE): "2"})
    with pytest.raises(Refused, match=rf"public\.t is at 5 again, after cut 9 had it.*\n.*\n.*{re.escape(repair)}"):
        check_since_cut(TABLE, NAME, Table(snapshots), cut)
