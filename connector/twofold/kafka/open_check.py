"""Asks Kafka whether a transaction is still open before a commit record declares its rows.

`late_ends` keeps each of our late requests away from later transactions. This check is the second
line, for causes that its rule does not know: no commit record may declare a transaction that
somebody else ended.

A partition's last stable offset is the first offset of its oldest open transaction. While it is not
beyond a transaction's own first offset there, that transaction has not ended. Everything written
between that offset and this question is in the same Kafka transaction, in every partition. An end
that arrives between this question and our own end is all or nothing. A commit commits everything;
after an abort, Kafka refuses our commit (INVALID_TXN_STATE, `EndedElsewhere`).

The check costs one request to one broker per Kafka transaction. `get_watermark_offsets` would send
two, because it also asks where the partition begins. Brokers close idle connections, so a question
that meets a lost connection is repeated. Asking changes nothing, and without an answer nothing is
declared.
"""

from __future__ import annotations

import time
from typing import Final

from confluent_kafka import OFFSET_END, KafkaError, KafkaException, TopicPartition

from twofold.errors import EndedElsewhere
from twofold.kafka.client import KafkaSettings, error_code, sorted_errors
from twofold.kafka.watch import Watch
from twofold_avro.records import Range

_PAUSE_S: Final = 0.02
_LOST: Final = KafkaError._UNKNOWN_PARTITION  # noqa: SLF001
"""The connection was lost during the question. A partition that is gone has a broker's code."""
_NO_OFFSET: Final = KafkaError._BAD_MSG  # noqa: SLF001
"""An answer that says nothing of the partition."""
_PASSING: Final = {
    KafkaError._TRANSPORT,  # noqa: SLF001
    _LOST,
    KafkaError._DESTROY_BROKER,  # noqa: SLF001
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
}
"""The question names the leader's epoch, so a leader that has just changed may refuse it."""


class OpenCheck:
    """The check, used by the worker's thread."""

    def __init__(self, settings: KafkaSettings, watch: Watch) -> None:
        self._timeout_s = settings.call_timeout_s
        self._watch = watch
        with sorted_errors("creating the client that reads last stable offsets"):
            self._consumer = settings.open_consumer({})

    def assert_open(self, transactional_id: str, written: Range) -> None:
        """Raise `EndedElsewhere` if the transaction with these writes has ended.

        No older transaction may be open in that partition, because it would hide the end.
        """
        partition = f"{written.topic} [{written.partition}]"
        stable = self.stable_offset(written.topic, written.partition)
        if stable > written.first:
            raise EndedElsewhere(
                f"Kafka: somebody else ended the transaction of {transactional_id}, whose rows in {partition} begin at offset {written.first}: everything there before offset {stable} has ended;"
                " no commit record declares it, and the run recovers and compares the visible records with the commit records"
            )

    def stable_offset(self, topic: str, partition: int) -> int:
        """Return the partition's last stable offset: every transaction below it has ended."""
        doing = f"reading the last stable offset of {topic} [{partition}]"
        with self._watch.call(doing, self._timeout_s + 5), sorted_errors(doing):
            return self._last_stable_offset(TopicPartition(topic, partition, OFFSET_END))

    def _last_stable_offset(self, partition: TopicPartition) -> int:
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                (found,) = self._consumer.offsets_for_times([partition], max(0.1, deadline - time.monotonic()))
                if found.error is not None or found.offset < 0:
                    raise KafkaException(found.error or KafkaError(_NO_OFFSET))
            except KafkaException as error:
                code = error_code(error)
                if code not in _PASSING:
                    raise
                if time.monotonic() > deadline:
                    raise (_without_leader() if code == _LOST else error) from error
                time.sleep(_PAUSE_S)
            else:
                return int(found.offset)

    def close(self) -> None:
        self._consumer.close()


def _without_leader() -> KafkaException:
    """Return the error in words that do not say that the partition is unknown."""
    return KafkaException(KafkaError(KafkaError._TRANSPORT, "the partition's leader does not answer"))  # noqa: SLF001
