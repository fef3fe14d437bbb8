"""How long readers waited: a read_committed consumer of a connector's commit records, and the
longest time between two of them.
"""

from __future__ import annotations

import threading
import time

from confluent_kafka import TopicPartition

from helpers.reading import make_consumer


class Gaps(threading.Thread):
    """Watches from now on, until `stop`."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(daemon=True)
        self.longest_s = 0.0
        self.seen = 0
        self._reader = make_consumer(bootstrap)
        self._reader.assign([TopicPartition(topic, 0, 0)])
        self._over = threading.Event()

    def run(self) -> None:
        last = time.monotonic()
        while not self._over.is_set():
            found = [message for message in self._reader.consume(1000, 0.02) if message.error() is None]
            now = time.monotonic()
            if found or self._over.is_set():
                if self.seen:
                    self.longest_s = max(self.longest_s, now - last)
                self.seen += len(found)
                last = now
        self._reader.close()

    def stop(self) -> float:
        """The longest gap, up to now, behind the first record."""
        self._over.set()
        self.join()
        return round(self.longest_s, 2)
