"""Logical messages of the stream: events of the outbox, or records of the messages topic."""

from __future__ import annotations

from twofold import __version__
from twofold.kafka.registrar import Registrar
from twofold.kafka.row_batch import RowBatch
from twofold.outbox.event_topics import EventTopics
from twofold.source import messages as m
from twofold.tables.table_version import TransactionInfo
from twofold_avro.names import TopicNames
from twofold_avro.records import Message, MessageBody, Source, Transaction
from twofold_avro.transcode import TransactionHeader


class LogicalMessages:
    """The messages topic of one run; its schema is registered with the first message."""

    def __init__(
        self, prefix: str, database: str, registrar: Registrar, events: EventTopics, *, published: bool = True
    ) -> None:
        self.published = published
        """Whether messages are published at all."""
        self._prefix = prefix
        self._database = database
        self._registrar = registrar
        self._events = events
        self._schema_id: int | None = None
        self._topic = TopicNames(prefix).messages

    def prepare(self, message: m.LogicalMessage) -> str:
        """Return the message's topic once it can be written; the thread that reads asks first."""
        if (event := self._events.message_event(message)) is not None:
            return event.topic
        self._register()
        return self._topic

    def _register(self) -> int:
        if self._schema_id is None:
            self._schema_id = self._registrar.register_message(self._topic)
        return self._schema_id

    def append(
        self,
        message: m.LogicalMessage,
        wal_start: int,
        facts: TransactionInfo,
        header: TransactionHeader | None,
        ts_ms: int,
        batch: RowBatch,
    ) -> str:
        """Add a message to the batch, and return its topic. `header` counts the message if it
        belongs to a transaction.

        The worker's thread calls this too, after `prepare`.
        """
        if (event := self._events.message_event(message)) is not None:
            self._events.append(event, batch)
            return event.topic
        schema_id = self._register()
        transaction = None
        if header is not None and facts.transaction_id is not None:
            transaction = Transaction(facts.transaction_id, *header.next_order(0))
        parsed = facts.parsed
        record = Message(
            source=Source(
                version=__version__,
                name=self._prefix,
                db=self._database,
                ts_ms=facts.ts_us // 1000,
                ts_us=facts.ts_us,
                lsn=wal_start,
                txId=facts.xid,
                gid=facts.gid,
                global_id=parsed.global_id,
                branch=parsed.branch,
                commit_lsn=facts.commit_lsn,
            ),
            message=MessageBody(message.prefix, message.content),
            transaction=transaction,
            ts_ms=ts_ms,
        )
        value = record.to_bytes(schema_id)
        batch.lists(self._topic, 1)[0].append({"key": message.prefix.encode(), "value": value})
        batch.bytes += len(value)
        return self._topic
