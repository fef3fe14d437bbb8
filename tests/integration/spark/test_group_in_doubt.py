"""One branch stays in doubt for long, while other global transactions go on."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from fixtures.connector import Installation, Maker, wait_until
from fixtures.stack import fresh_prefix
from helpers.spark.group_lake import Coordinator, GroupLake, prepare, regroup, transfer

pytestmark = pytest.mark.timeout(1800)


def ask_status(here: Installation, *options: str) -> str:
    asked = subprocess.run(here.command("status", *options), capture_output=True, text=True, timeout=60, check=True)
    return asked.stdout


def find_in_doubt(here: Installation, gid: str) -> Mapping[str, Any]:
    (found,) = (each for each in json.loads(ask_status(here, "--json"))["in_doubt"] if each["gid"] == gid)
    return dict(found)


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [6, 600])
def test_a_branch_that_stays_in_doubt_holds_back_only_who_shows_the_other_one(
    spark: SparkSession, connector: Maker, tmp_path: Path, seconds: int
) -> None:
    names = sorted(fresh_prefix() for _ in range(3))
    east, west, north = banks = [connector(name=name, prepared={"doubt_warning": 5.0}) for name in names]
    regroup(*banks)
    lake = GroupLake(spark, tmp_path, dict(zip(names, banks, strict=True)))
    halves = {here.prefix: here for here in (east, west)}
    transfer(halves, "one", 10)
    lake.runs_until_it_shows("one")

    committed, in_doubt = prepare(halves, "two", 20)
    gid = west.ask("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()")
    committed.tpc_commit()
    coordinator = Coordinator({here.prefix: here for here in (west, north)}, pause_s=0.5)

    def go_on() -> None:
        begun, number = time.monotonic(), len(lake.published)
        seen = number

        def more_cuts() -> bool:
            return len(lake.published) > seen

        coordinator.start()
        while time.monotonic() < begun + seconds or len(lake.published) < number + 4:
            east.sql(
                "INSERT INTO account VALUES (1, 1, '') ON CONFLICT (id) DO UPDATE SET version = account.version + 1"
            )
            wait_until(more_cuts, 300, "cuts go on")
            seen = len(lake.published)
        (wait,) = wait_until(lambda: [each for each in lake.waits() if each["global_id"] == "1:two"], 90, "it is named")
        held = next(each["sequence"] for each in wait["branches"] if each["prefix"] == east.prefix)
        cuts = lake.published[number:]
        assert {cut.members[east.prefix].sequence for cut in cuts[1:]} == {held - 1}, "the east waits before it"
        for here in (west, north):
            assert cuts[-1].members[here.prefix].sequence > cuts[0].members[here.prefix].sequence, "the others go on"
        wait_until(lambda: "HOLDS BACK" in ask_status(west), 120, "the status names who waits")
        status = ask_status(west)
        for words in ("HOLDS BACK", f"of {east.prefix} from {held} on", "TOO LONG", f"COMMIT PREPARED '{gid}';"):
            assert words in status
        found = find_in_doubt(west, gid)
        assert found["age_s"] >= seconds
        wait_until(lambda: find_in_doubt(west, gid)["wal_bytes"] > found["wal_bytes"] > 0, 90, "more WAL is held")

        in_doubt.tpc_commit()
        wait_until(lambda: lake.published[-1].members[east.prefix].sequence > held, 300, "the east goes on")

    try:
        lake.follow_during(go_on)
    finally:
        coordinator.stop()
    for here in banks:
        here.check()
    lake.runs_until_it_shows("one", "two", *coordinator.committed)
    assert lake.assert_all_whole({**coordinator.places, "one": {*halves}, "two": {*halves}})
