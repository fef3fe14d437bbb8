"""The last frontier of each member of a source group."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from twofold_avro.errors import MalformedRecord, NotFramed
from twofold_avro.names import TopicNames
from twofold_avro.records import Frontier as FrontierRecord
from twofold_avro.records import RecordDecoder
from twofold_common.errors import Refused, SetupError
from twofold_common.global_cut import Frontier
from twofold_reader.topics import END, GONE, RESET, consumer_settings, passes_by_itself, sorted_errors


class FrontierTopics:
    """Reads on in the members' topics of frontiers; used by one thread."""

    def __init__(self, prefixes: Collection[str], kafka: Mapping[str, Any], schema_of: Callable[[int], str]) -> None:
        self._prefixes = {TopicNames(prefix).frontiers: prefix for prefix in prefixes}
        self._records = RecordDecoder(schema_of)
        self._ended: set[str] = set()
        self.last: dict[str, Frontier] = {}
        """The last frontier that was read of each member, by prefix."""
        with sorted_errors("connecting"):
            self._consumer = Consumer(consumer_settings(kafka))

    def close(self) -> None:
        self._consumer.close()

    def begin(self) -> None:
        """Begin with the first frontiers: who follows them takes them in their order."""
        self._ended.clear()
        self.last.clear()
        with sorted_errors("reading the frontiers"):
            self._consumer.assign([TopicPartition(topic, 0, 0) for topic in self._prefixes])

    @property
    def is_at_end(self) -> bool:
        """No further frontier is visible."""
        return self._ended == self._prefixes.keys()

    def read_more(self, wait_s: float) -> bool:
        """Take what has come, or wait a little; return whether something has."""
        came = False
        with sorted_errors("reading the frontiers"):
            batch = self._consumer.consume(1000, 0) or self._consumer.consume(1, wait_s)
        for message in batch:
            topic, data = message.topic() or "", message.value()
            if (error := message.error()) is None:
                self._ended.discard(topic)
                if data is not None:
                    self.last[self._prefixes[topic]] = self._decode(data, topic)
                    came = True
            elif error.code() == END:
                self._ended.add(topic)
            elif error.code() in GONE:
                raise SetupError(
                    f"{self._prefixes[topic]} writes no frontiers; remedy: name it in [group].members of each member's connector, and restart them"
                )
            elif error.code() == RESET:
                raise SetupError(
                    f"{topic} was deleted and made again while it was read; remedy: start the reader again"
                )
            elif not passes_by_itself(error):
                raise SetupError(f"Kafka: reading {topic} failed: {error.str()}; remedy: grant Read on it")
        return came

    def _decode(self, data: bytes, topic: str) -> Frontier:
        try:
            record = self._records.decode(FrontierRecord, data)
        except (MalformedRecord, NotFramed) as error:
            raise Refused(
                f"a record in {topic} cannot be read: {error}",
                at_stake="which global transactions are whole",
                repair="find who else writes to this topic",
            ) from error
        seen = ((each.prefix, each.sequence, each.stream_id) for each in record.seen)
        in_doubt = ((each.global_id, each.gid) for each in record.in_doubt)
        return Frontier.from_lists(record.sequence, record.lsn, seen, in_doubt, record.gid_patterns)
