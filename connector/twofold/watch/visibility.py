"""Whether a position of the source is visible, as a running connector knows: `/api/wait`.

What is committed in Kafka its run knows. Between two runs nothing is visible: the source may come
back with another history, whose positions it would compare with those of Kafka. How far the mirror
is it asks Kafka, at most every 50 ms, however many wait.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import parse_qs

from twofold.watch.activity_view import Positions
from twofold_common.mirror_place import MirrorPlace
from twofold_common.positions import Lsn, format_lsn, parse_lsn

WAIT_MAX_S: Final = 5.0
"""The longest time of one answer: whoever waits longer asks again."""
_POLLED_S: Final = 0.05
_NOWHERE: Final = MirrorPlace(-1, Lsn(0), 0)


class BadQuestion(ValueError):
    """The question has no valid position, place or time."""


class Visibility:
    """Answers whether positions are visible. Several threads may use it."""

    def __init__(self, positions: Callable[[], Positions], ask_mirror: Callable[[], MirrorPlace | None]) -> None:
        self._positions = positions
        self._ask_mirror = ask_mirror
        self._lock = threading.Lock()
        self._asked_at = 0.0
        self._mirror: MirrorPlace | None = None

    def wait(self, query: str) -> dict[str, Any]:
        """Return the answer to `position=0/1A2B3C&until=mirror&timeout=5`, when it is yes or the
        time is over.
        """
        asked = {name: values[0] for name, values in parse_qs(query).items()}
        lsn, until, timeout_s = _parse(asked)
        deadline = time.monotonic() + min(timeout_s, WAIT_MAX_S)
        while True:
            at = self._positions()
            is_visible, place, sequence = at.applied >= lsn, at.applied, at.sequence
            if until != "kafka":
                mirror = self._ask()
                # A mirror that reads former topics of the prefix counts by other numbers.
                if mirror is None or mirror.stream_id != at.stream_id or (until == "global" and not mirror.of_group):
                    mirror = _NOWHERE
                # Behind the last commit record the source's position moves on without one.
                is_visible = mirror.applied_lsn >= lsn or (is_visible and mirror.sequence >= sequence)
                place, sequence = mirror.applied_lsn, mirror.sequence
            if is_visible or time.monotonic() >= deadline:
                return {
                    "visible": is_visible,
                    "position": format_lsn(lsn),
                    "until": until,
                    "at": format_lsn(place),
                    "sequence": sequence,
                }
            time.sleep(_POLLED_S)

    def _ask(self) -> MirrorPlace | None:
        with self._lock:
            if time.monotonic() - self._asked_at >= _POLLED_S:
                self._mirror = self._ask_mirror()
                self._asked_at = time.monotonic()
            return self._mirror


def _parse(asked: Mapping[str, str]) -> tuple[Lsn, str, float]:
    try:
        lsn, timeout_s = parse_lsn(asked.get("position", "")), float(asked.get("timeout", "0"))
    except ValueError:
        raise BadQuestion("ask ?position=0/1A2B3C&until=kafka&timeout=5") from None
    until = asked.get("until", "kafka")
    if until not in {"kafka", "mirror", "global"} or not timeout_s >= 0:
        raise BadQuestion("until is kafka, mirror or global, and timeout a number of seconds")
    return lsn, until, timeout_s
