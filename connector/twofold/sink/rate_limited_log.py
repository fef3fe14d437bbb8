"""What librdkafka logs, without saying the same thing twice in a few seconds: a broker that is away is told of by each thread of each client at each attempt, some twenty lines a second."""

from __future__ import annotations

import logging
import re
import threading
import time

AGAIN_S = 30.0
_VARIES = re.compile(r"#(?:producer|consumer)-\d+|\(after \d+ms|\d+ms")
"""The client's number and how long something took."""


class RateLimitedLog(logging.Filter):
    """Passes a line of a kind, and the next of that kind after a while, which says how many there were meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self._kinds: dict[str, tuple[float, int]] = {}
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        text, now = record.getMessage(), time.monotonic()
        kind = _VARIES.sub("", text)
        with self._lock:
            passed_at, dropped = self._kinds.get(kind, (now - AGAIN_S, 0))
            if now < passed_at + AGAIN_S:
                self._kinds[kind] = passed_at, dropped + 1
                return False
            self._kinds = {k: v for k, v in self._kinds.items() if now < v[0] + AGAIN_S}
            self._kinds[kind] = now, 0
        if dropped:
            record.msg, record.args = f"{text} ({dropped} more like it since {now - passed_at:.0f} s ago)", ()
        return True
