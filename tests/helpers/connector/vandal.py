"""Makes the damage that a late end of a Kafka transaction does, for real: rows in the connector's
own bytes, commit records and progress in its own formats, by transactional producers.

The connector itself is stopped meanwhile. Each call is one thing that the broker was left with.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import KafkaError, Message, Producer

from fixtures.connector import Installation
from helpers.reading import read_to_end
from twofold.inspect.status_report import read_progress
from twofold.kafka.kafka_settings import kafka_settings, names_of, open_registry
from twofold.kafka.names import commit_key
from twofold.kafka.schema_registry import register_fixed
from twofold_avro.records import Commit, Progress, Range


class Vandal:
    """One a connector."""

    def __init__(self, here: Installation) -> None:
        self.config = here.config
        self._names = names_of(self.config)
        self._ids = register_fixed(open_registry(self.config), self._names)
        client = kafka_settings(self.config).client
        self._producer = Producer({**client, "transactional.id": f"{here.prefix}.vandal"})
        self._producer.init_transactions()

    def rows(self, topic: str, many: int = 3) -> list[Message]:
        """The first records of the topic, of one partition that has so many."""
        found: dict[int, list[Message]] = {}
        for message in read_to_end(self.config.kafka.bootstrap, [topic], patience_s=20):
            if message.key() is not None:
                found.setdefault(message.partition() or 0, []).append(message)
        longest = max((found[partition] for partition in sorted(found)), key=len)  # each time the same one
        assert len(longest) >= many
        return longest[:many]

    def write(self, rows: Iterable[Message], *, commit: bool, at_ms: int = 0) -> Range:
        """The rows once more, in a transaction of their own that is committed or aborted; where
        they lie. `at_ms`: by a clock that is off.
        """
        offsets: list[int] = []

        def delivered(error: KafkaError | None, message: Message) -> None:
            assert error is None
            offsets.append(message.offset() or 0)

        place: tuple[str, int] = ("", 0)
        with self._transaction(commit=commit):
            for row in rows:
                place = row.topic() or "", row.partition() or 0
                self._producer.produce(place[0], row.value(), row.key(), place[1], delivered, timestamp=at_ms)
            self._producer.flush()
        return Range(*place, min(offsets), max(offsets), len(offsets))

    def record(
        self,
        *ranges: Range,
        after: int = 1,
        progress: bool = True,
        commit: bool = True,
        at_ms: int = 0,
        stream_id: str | None = None,
    ) -> int:
        """A commit record that names the ranges, and the progress that says so.

        Returns its number: `after` the last one.
        """
        said = read_progress(self.config).progress
        assert said is not None
        number = said.sequence + after
        record = Commit(
            number,
            "batch",
            said.applied_lsn,
            0,
            1,
            sum(r.count for r in ranges),
            ranges=ranges,
            stream_id=said.stream_id if stream_id is None else stream_id,
        )
        now: dict[str, Any] = {name: getattr(said, name) for name in Progress.__slots__}
        with self._transaction(commit=commit):
            data = record.to_bytes(self._ids.commit)
            self._producer.produce(self._names.commits, data, commit_key(record), 0, timestamp=at_ms)
            if progress:
                value = Progress(**{**now, "sequence": number}).to_bytes(self._ids.progress)
                self._producer.produce(self._names.progress, value, self._names.progress_key, 0, timestamp=at_ms)
        return number

    def open(self, topic: str) -> None:
        """Begin a transaction, write a record, and leave it so; `abort` ends it."""
        self._producer.begin_transaction()
        self._producer.produce(topic, b"open", partition=0)
        self._producer.flush()

    def abort(self) -> None:
        self._producer.abort_transaction()

    @contextmanager
    def _transaction(self, *, commit: bool) -> Iterator[None]:
        self._producer.begin_transaction()
        yield
        self._producer.flush()
        if commit:
            self._producer.commit_transaction()
        else:
            self._producer.abort_transaction()
