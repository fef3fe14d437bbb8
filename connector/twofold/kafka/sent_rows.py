"""`SentRows`: rows of opened transactions that are sent and perhaps not acknowledged.

Nobody waits for them but those who must: what follows them in a partition, and the end of their own
transaction. Until then other Kafka transactions may end.
"""

from __future__ import annotations

import time
from typing import Final

from twofold.errors import RunEnded
from twofold.kafka.producer import TransactionalProducer
from twofold.kafka.row_batch import RowBatch

_PATIENCE_S: Final = 0.2
"""After that they are waited for: only a flush notices that the transaction has failed."""


class SentRows:
    """The producers whose rows are on their way."""

    def __init__(self) -> None:
        self._since: dict[TransactionalProducer, float] = {}

    def add(self, producer: TransactionalProducer) -> None:
        """Note that all rows of its transaction are handed over."""
        self._since[producer] = time.monotonic()

    def are_of(self, producer: TransactionalProducer) -> bool:
        """Return whether its rows are on their way."""
        return producer in self._since

    def is_due(self, producer: TransactionalProducer) -> bool:
        """Return whether `wait_for` would not wait, or must look why they do not come."""
        return producer.is_acknowledged() or time.monotonic() - self._since[producer] > _PATIENCE_S

    def beside(self, batch: RowBatch) -> list[TransactionalProducer]:
        """Return the producers with rows on their way to one of the batch's partitions."""
        places = [(topic, partition) for topic, partition, _ in batch.partitions()] if self._since else []
        return [producer for producer in self._since if any(producer.wrote_to(*place) for place in places)]

    def wait_for(self, producer: TransactionalProducer) -> None:
        """Return when the in-sync replicas have acknowledged its rows."""
        del self._since[producer]
        producer.flush()
        if not producer.all_acknowledged:
            raise RunEnded(
                f"Kafka: {producer.transactional_id}: not every row was reported as delivered after the flush"
            )
