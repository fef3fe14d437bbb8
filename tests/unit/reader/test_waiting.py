"""What a waiter makes of the ends of the progress topic: of which stream the numbers are, and
whether the connector has refused to go on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from twofold_avro.records import Progress
from twofold_common.errors import Refused
from twofold_common.positions import Lsn
from twofold_reader.waiting import Heard

KEY = b"bank"
REFUSAL = {"exit_status": 5, "what": "the server is on timeline 2", "at_stake": "-", "repair": "start over"}


def progress(applied: int, stream_id: str = "first") -> Progress:
    return Progress(applied, 7, "1", 1, "db", "slot", 0, 0, stream_id)


def heard(refusal: Mapping[str, object] | bytes, key: bytes = b"bank/refusal") -> Heard:
    """What is told by progress at 0/5000, and then a refusal."""
    told = Heard()
    told.note_progress(KEY, progress(0x5000))
    told.note_refusal(key, refusal if isinstance(refusal, bytes) else json.dumps(refusal).encode())
    return told


def test_a_refusal_behind_the_progress_ends_the_wait() -> None:
    with pytest.raises(Refused) as found:
        heard(REFUSAL).refuse(Lsn(0x3100))
    assert found.value.what == "the connector has refused to go on: the server is on timeline 2"
    assert "whether 0/3100 is visible" in found.value.at_stake
    assert found.value.repair == "start over"


def test_a_refusal_that_was_overcome_ends_no_wait() -> None:
    later, removed = heard(REFUSAL), heard(REFUSAL)
    later.note_progress(KEY, progress(0x6000))
    later.refuse(Lsn(0x3100))
    removed.note_refusal(b"bank/refusal", None)
    removed.refuse(Lsn(0x3100))


@pytest.mark.parametrize(
    ("refusal", "key"),
    [
        (REFUSAL, b"another/refusal"),  # it was refused here, because the topics are bank's
        ({**REFUSAL, "exit_status": 3}, b"bank/refusal"),  # what is visible remains so
        ({"exit_status": 5}, b"bank/refusal"),
        ([], b"bank/refusal"),
        (b"nonsense", b"bank/refusal"),
    ],
)
def test_what_does_not_concern_positions_ends_no_wait(refusal: Mapping[str, object] | bytes, key: bytes) -> None:
    heard(refusal, key).refuse(Lsn(0x3100))


def test_progress_of_another_stream_has_the_topics_read_again() -> None:
    told = Heard()
    told.note_progress(KEY, progress(0x5000))
    told.note_progress(KEY, progress(0x5001))
    assert told.is_current
    told.note_progress(KEY, progress(0x3000, "second"))
    assert not told.is_current
