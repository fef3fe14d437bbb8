"""What a mirror tells of its place: at its start the last cut, if readers see it, and later each
cut that shows more.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from twofold_spark.mirror import mirror_job, source_mirror
from twofold_spark.mirror.batching import MirrorSettings
from twofold_spark.mirror.mirror_job import Mirror
from twofold_spark.sinks.cuts import NO_CUT, Cut, GlobalCut
from twofold_spark.sinks.sharding import NO_SHARDING

NOTHING = cast("Any", None)
CUT = replace(NO_CUT, sequence=7, applied_lsn=70, stream_id="s", offset=12)


@pytest.mark.parametrize(
    ("last", "told"),
    [
        (CUT, [("bank", CUT)]),
        (None, [("bank", NO_CUT)]),
        (replace(CUT, whole=False), []),
    ],
    ids=["the cut of a backup", "a new place", "a cut that nobody sees"],
)
def test_a_start_tells_what_its_place_has(
    monkeypatch: pytest.MonkeyPatch, last: Cut | None, told: list[tuple[str, Cut]]
) -> None:
    """And not what an earlier mirror has told, of which a reader might find nothing there."""
    found = list[tuple[str, Cut]]()
    place = SimpleNamespace(
        open=lambda *_: None,
        close=lambda: None,
        make_sink=lambda *_: SimpleNamespace(),
        find_part=lambda _: last or NO_CUT,
        last=None if last is None else GlobalCut(3, {"bank": last}),
        sharding=NO_SHARDING,
    )
    for module in (mirror_job, source_mirror):
        monkeypatch.setattr(module, "fork_session", lambda spark: spark)
    monkeypatch.setattr(mirror_job, "limit_tasks_to_cores", lambda _: None)
    mirror = Mirror(
        NOTHING,
        NOTHING,
        NOTHING,
        ("bank",),
        cast("Any", place),
        MirrorSettings(),
        report_place=lambda prefix, cut: found.append((prefix, cut)),
    )
    mirror._begin()
    mirror.close()
    assert found == told


def test_a_member_that_a_cut_shows_further_without_a_batch_is_told() -> None:
    """It has joined, or its own batch was in a cut that another member kept from being whole."""
    found = list[tuple[str, int]]()
    place = cast("Any", SimpleNamespace(sharding=NO_SHARDING, last=None))
    mirror = Mirror(
        NOTHING,
        NOTHING,
        NOTHING,
        ("east", "west"),
        place,
        MirrorSettings(),
        report_place=lambda prefix, cut: found.append((prefix, cut.sequence)),
    )
    at_8 = replace(CUT, sequence=8)
    mirror._report_places(GlobalCut(1, {"east": CUT}), {"east"})
    mirror._report_places(GlobalCut(2, {"east": at_8, "west": replace(CUT, whole=False)}), {"east"})
    assert not found
    mirror._report_places(GlobalCut(3, {"east": at_8, "west": CUT}), {"west"})
    mirror._report_places(GlobalCut(4, {"east": at_8, "west": CUT}), set())
    mirror._report_places(GlobalCut(5, {"east": at_8, "west": at_8}), set())
    assert found == [("east", 8), ("west", 8)]
