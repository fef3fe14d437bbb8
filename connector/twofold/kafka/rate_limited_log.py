"""Limits librdkafka's log: no line of the same kind twice within some seconds.

Without it, each thread of each client reports an absent broker at each attempt, some twenty lines a
second.
"""

from __future__ import annotations

import logging
import re
import threading
import time

REPEAT_S = 30.0
_VARYING = re.compile(r"#(?:producer|consumer)-\d+|\(after \d+ms|\d+ms")
"""The client's number, and durations."""
_GUESS = re.compile(
    r"probably due to (?:old )?broker version < ?0\.10(?: \(see api\.version\.request configuration\))?"
)


class RateLimitedLog(logging.Filter):
    """A filter that passes a line of a kind, and the next of that kind only after a while.

    The next line says how many lines of its kind there were in between.
    """

    def __init__(self) -> None:
        super().__init__()
        self._kinds: dict[str, tuple[float, int]] = {}
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        text, now = in_our_words(record.getMessage()), time.monotonic()
        kind = _VARYING.sub("", text)
        with self._lock:
            passed_at, dropped = self._kinds.get(kind, (now - REPEAT_S, 0))
            if now < passed_at + REPEAT_S:
                self._kinds[kind] = passed_at, dropped + 1
                return False
            self._kinds = {k: v for k, v in self._kinds.items() if now < v[0] + REPEAT_S}
            self._kinds[kind] = now, 0
        more = f" ({dropped} similar lines in the last {now - passed_at:.0f} s)" if dropped else ""
        record.msg, record.args = text + more, ()
        return True


def in_our_words(text: str) -> str:
    """Return librdkafka's line without its guess about a broker that does not answer at all."""
    return _GUESS.sub("the broker accepts connections and does not answer: it is frozen or overloaded", text)
