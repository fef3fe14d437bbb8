"""`/api/wait`: whether a position is visible in Kafka, in a mirror, or in a global cut."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from typing import Any

import pytest

from twofold.bridge import initial
from twofold.errors import Unreachable
from twofold.watch.activity import Activity
from twofold.watch.activity_view import Positions
from twofold.watch.server import Health, StatusServer, StatusSources
from twofold.watch.visibility import BadQuestion, Visibility
from twofold_common.mirror_place import MirrorPlace
from twofold_common.positions import Lsn

BUSY = Positions(read=Lsn(0x300), applied=Lsn(0x200), sequence=7, waiting=1)
READ = Positions(read=Lsn(0x300), applied=Lsn(0x200), sequence=7, waiting=0)
IDLE = Positions(read=Lsn(0x300), applied=Lsn(0x300), sequence=7)


def seen(question: str, at: Positions = IDLE, mirror: MirrorPlace | None = None) -> Any:
    return Visibility(lambda: at, lambda: mirror).wait(question)["visible"]


@pytest.mark.parametrize(
    ("position", "at", "expected"),
    [
        ("0/200", BUSY, True),
        ("0/201", BUSY, False),
        ("0/300", READ, False),
        ("0/300", IDLE, True),
        ("0/301", IDLE, False),
    ],
)
def test_in_kafka(position: str, at: Positions, expected: bool) -> None:
    """What was read is not there before Kafka has committed it, or progress behind it."""
    assert seen(f"position={position}", at) is expected


@pytest.mark.parametrize(
    ("position", "mirror", "expected"),
    [
        ("0/100", None, False),
        ("0/100", MirrorPlace(5, Lsn(0x100), 0), True),
        ("0/101", MirrorPlace(5, Lsn(0x100), 0), False),
        ("0/300", MirrorPlace(7, Lsn(0x200), 0), True),
        ("0/301", MirrorPlace(7, Lsn(0x200), 0), False),
        ("0/300", MirrorPlace(6, Lsn(0x180), 0), False),
    ],
)
def test_in_a_mirror(position: str, mirror: MirrorPlace | None, expected: bool) -> None:
    assert seen(f"position={position}&until=mirror", IDLE, mirror) is expected


def test_a_mirror_of_former_topics_is_nowhere() -> None:
    """Its numbers and positions are those of another stream."""
    at = Positions(applied=Lsn(0x300), sequence=7, stream_id="now")
    assert seen("position=0/300&until=mirror", at, MirrorPlace(900, Lsn(0x900), 0, stream_id="then")) is False
    assert seen("position=0/300&until=mirror", at, MirrorPlace(7, Lsn(0x200), 0, stream_id="now")) is True


def test_a_global_cut_is_that_of_a_groups_mirror() -> None:
    assert seen("position=0/100&until=global", IDLE, MirrorPlace(7, Lsn(0x200), 0)) is False
    assert seen("position=0/100&until=global", IDLE, MirrorPlace(7, Lsn(0x200), 0, of_group=True)) is True


@pytest.mark.parametrize("until", ["kafka", "mirror"])
def test_nothing_is_visible_while_no_run_is_in_progress(until: str) -> None:
    """A promoted standby may have lost what lies before: its positions are others."""
    state = initial(applied_lsn=Lsn(0x300), confirmed_lsn=Lsn(0x300), sequence=7, pool=1)
    activity = Activity()
    mirror = MirrorPlace(7, Lsn(0x300), 0, stream_id="one")

    def is_visible() -> bool:
        question = f"position=0/200&until={until}"
        return bool(Visibility(lambda: activity.view().of_run, lambda: mirror).wait(question)["visible"])

    activity.recovered(state, "one")
    assert is_visible()
    activity.ended(Unreachable("the server is away"), 1.0)
    assert not is_visible()
    activity.recovering()
    assert not is_visible()
    activity.recovered(state, "one")
    assert is_visible()
    activity.given_up(Unreachable("the server is on timeline 2"))
    assert not is_visible()


def test_it_waits_and_says_how_far_it_is() -> None:
    steps = iter([BUSY, BUSY])
    visibility = Visibility(lambda: next(steps, IDLE), lambda: None)
    assert visibility.wait("position=0/300&timeout=5") == {
        "visible": True,
        "position": "0/300",
        "until": "kafka",
        "at": "0/300",
        "sequence": 7,
    }
    begun = time.monotonic()
    assert Visibility(lambda: BUSY, lambda: None).wait("position=0/300&timeout=0.2")["at"] == "0/200"
    assert 0.2 <= time.monotonic() - begun < 20


@pytest.mark.parametrize("question", ["", "position=x", "position=0/1&until=iceberg", "position=0/1&timeout=-1"])
def test_a_bad_question_is_told(question: str) -> None:
    visibility = Visibility(lambda: IDLE, lambda: None)
    with pytest.raises(BadQuestion):
        visibility.wait(question)
    sources = StatusSources(lambda _: {}, lambda: b"", lambda: Health(True, True, "up"), visibility.wait)
    with StatusServer("127.0.0.1", 0, sources) as server:
        address = f"http://127.0.0.1:{server.port}/api/wait?"
        with pytest.raises(urllib.error.HTTPError, match="400"):
            urllib.request.urlopen(address + question, timeout=5)
        with urllib.request.urlopen(f"{address}position=0/300", timeout=5) as answer:
            assert json.load(answer)["visible"] is True
