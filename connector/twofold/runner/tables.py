"""The published tables: from a relation of the stream to its topic, its registered schemas and the
plan that encodes its rows.

A relation's shape is *committed* once its schema is registered and its topic pinned. That happens
at the first row of a transaction that is certain to commit, and never within a prepared one,
because ROLLBACK PREPARED cannot take a registered schema back. A prepared transaction with another
shape is encoded with provisional schema ids and parked. When it commits, `settle` registers the
schemas and replaces the ids.

Used by the thread that reads. Asks the catalog, the registry and Kafka only for a new shape, never
for a row.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Literal

from twofold import __version__
from twofold.backfill.chunk import TableEncoding
from twofold.backfill.load_progress import LoadProgress
from twofold.errors import Refused, RunEnded
from twofold.runner.root_flaws import RootFlaws
from twofold.runner.subjects import Subjects
from twofold.runner.table_version import DescribedVersion, KeyChanged, TableVersion, TransactionInfo, key_id_changed
from twofold.runner.topic_mismatch import PASSED_OVER, Decision, TopicRestart, VersionKey, decide
from twofold.sink.batch import PROVISIONAL_KEY_ID, VOID, RowBatch
from twofold.sink.schema_registry import Registry, value_subject
from twofold.sink.topic_rules import RequiredTopic
from twofold.sink.topics import Topics
from twofold.source import messages as m
from twofold.source.catalog import Catalog
from twofold.source.rewrites import TableStorage, unsent_change
from twofold_avro.names import topic_of
from twofold_avro.records import Message, MessageBody, Pin, Source, Transaction
from twofold_avro.schemas import canonical, fixed
from twofold_avro.shapes import TableShape
from twofold_avro.transcode import RowPlan, ServerConstants, TransactionHeader
from twofold_common.table_names import table_argument

_log = logging.getLogger(__name__)


class Tables:
    """All published tables of one run."""

    def __init__(
        self,
        *,
        prefix: str,
        database: str,
        publication: str,
        partitions: int,
        tombstones: bool,
        placeholders: bool,
        catalog: Catalog,
        registry: Registry,
        topics: Topics,
        pins: dict[str, Pin],
        load_first: bool,
    ) -> None:
        """`load_first`: load the existing rows of new tables."""
        self._prefix = prefix
        self._publication = publication
        self._partitions = partitions
        self._tombstones = tombstones
        self._placeholders = placeholders
        self._catalog = catalog
        self._registry = registry
        self._subjects = Subjects(registry, prefix)
        self._root_flaws = RootFlaws(catalog, self._make_void)
        self._topics = topics
        self._pins = pins
        self._server = ServerConstants(version=__version__, prefix=prefix, db=database)
        self._by_oid: dict[int, TableVersion] = {}
        self._descriptions = 0
        self._said: dict[int, int] = {}
        self._committed: dict[str, TableVersion] = {}
        self._uncommitted: dict[str, TableVersion] = {}
        """The latest described versions that are not committed yet."""
        self._message_schema_id: int | None = None
        self._provisional_id = PROVISIONAL_KEY_ID  # envelopes' follow it
        self.messages_topic = f"{prefix}.messages"
        self._unwritten_pins: dict[str, Pin] = {}
        self._load_first = load_first
        self._starting_over = {
            t for t, pin in pins.items() if pin.backfill != "ready" and LoadProgress.from_bytes(pin.bound).reload
        }
        """The topics that are to restart and have not been emptied."""
        self._recreated: set[str] = set()
        self.in_backfill = {topic: pin.key_schema is None for topic, pin in pins.items() if pin.backfill != "ready"}

    def restart_topics(self, topics: Iterable[str], published: Iterable[m.Relation]) -> None:
        """Restart these topics: their pins no longer count, and their loads begin with a truncate.

        A table that is no longer published is not loaded, and rows that do not fit are passed over.
        Called before `check`, which would refuse what this repairs. A table that is published again
        after rows of it were passed over restarts by itself.
        """
        in_use = self._topics_of(published)
        gone = {topic for topic, pin in self._pins.items() if pin.relation == PASSED_OVER}
        for topic in {*topics, *(gone & in_use)}:
            self.in_backfill.pop(topic, None)  # until it is pinned again
            if topic in in_use:
                self._pins.pop(topic, None)
                self._starting_over.add(topic)
            elif topic in self._pins:
                self._give_up(topic)

    def check(self, published: Iterable[m.Relation]) -> None:
        """Require every pinned topic to exist unchanged.

        The topic of a table that is no longer published may be missing: rows that do not fit are
        then passed over.
        """
        in_use = self._topics_of(published)
        for topic in self._topics.missing(self._pins.keys() - in_use):
            del self._pins[topic]
            self.in_backfill.pop(topic, None)
        self._topics.ensure(_pinned(topic, pin) for topic, pin in self._pins.items() if topic in in_use)
        for topic, refusal in self._topics.mismatched(
            [_pinned(t, p) for t, p in self._pins.items() if t not in in_use]
        ):
            _log.warning("of a table that is no longer published: %s", refusal.what)
            self._give_up(topic)

    def _give_up(self, topic: str) -> None:
        """Pass over rows that do not fit, as long as no table of this name is published."""
        self.in_backfill.pop(topic, None)
        self._starting_over.discard(topic)
        pin = replace(self._pins[topic], backfill="ready", bound=None, relation=PASSED_OVER)
        self._pins[topic] = self._unwritten_pins[topic] = pin

    def _topics_of(self, relations: Iterable[m.Relation]) -> set[str]:
        return {topic_of(self._prefix, relation.schema, relation.table) for relation in relations}

    def announce(self, relations: Iterable[m.Relation]) -> None:
        """Make the topics of tables that have none, all at once, before their first row.

        The stream's descriptions stay, because the catalog may be ahead of them.
        """
        relations = tuple(relations)
        for relation in relations:
            topic = topic_of(self._prefix, relation.schema, relation.table)
            if topic in self._pins and self._pins[topic].relation == PASSED_OVER:
                raise TopicRestart(f"{relation.schema}.{relation.table}", topic, relation.oid)
            self._note_if_recreated(topic, relation.oid)
        new = (r for r in relations if topic_of(self._prefix, r.schema, r.table) not in self._pins)
        tables = [table for relation in new if not (table := self.describe(relation).table).committed]
        made = self._topics.ensure(map(_wanted, tables)) if tables else {}
        for table in tables:
            self._commit(table, partitions=made[table.topic])

    def relation(self, relation: m.Relation) -> None:
        """Note a table's new description from the stream. It counts with the first row.

        Where partitions are published via their root, the stream describes them too, and none of
        their rows comes.
        """
        for oid, said in self.descriptions(relation).items():
            self._say(oid, said)

    def descriptions(self, relation: m.Relation) -> dict[int, DescribedVersion]:
        """Return the tables that the message describes, by oid: a partition, its root after it."""
        root = self._root_flaws.after(relation, self.describe)
        return {relation.oid: self.describe(relation), **({root[0]: root[1]} if root else {})}

    def describe(self, relation: m.Relation) -> DescribedVersion:
        """Return the table as the message has it.

        In a transaction in progress that holds for it alone.
        """
        topic = topic_of(self._prefix, relation.schema, relation.table)
        shape = self._subjects.like_before(self._catalog.shape(relation), topic, self._pins.get(topic))
        self._descriptions += 1
        # The server describes a new shape again with each streamed part of a transaction in
        # progress.
        for known in (self._committed.get(topic), self._uncommitted.get(topic)):
            if known and known.shape == shape:
                return DescribedVersion(known, self._descriptions)
        table = self._void(shape) if self._starts_with_another_key(shape, topic) else self._new(shape, topic)
        if not table.committed:
            self._uncommitted[topic] = table
        return DescribedVersion(table, self._descriptions)

    def adopt(self, described: dict[int, DescribedVersion]) -> None:
        """Make the descriptions of a committed transaction in progress hold for all, unless later
        ones exist.
        """
        for oid, said in described.items():
            if said.number > self._said.get(oid, 0):
                self._say(oid, said)

    def _say(self, oid: int, said: DescribedVersion) -> None:
        self._by_oid[oid] = said.table
        self._said[oid] = said.number

    def type(self, message: m.Type) -> None:
        self._catalog.note_type(message)

    def of_relation(self, oid: int, *, provisional: bool) -> TableVersion:
        """Return a row's table.

        Outside a prepared transaction its shape is committed now, if it was not yet.
        """
        table = self._by_oid.get(oid)
        if table is None:
            raise RunEnded(f"PostgreSQL sent a row of relation {oid} without having described it")
        if not provisional and not table.committed:
            self._certain(table)
        return table

    def settle(self, tables: Iterable[TableVersion]) -> None:
        """Register the uncommitted ones of a committed transaction's tables."""
        for table in tables:
            self._certain(table)

    def _certain(self, table: TableVersion) -> None:
        """Commit a table's shape: its rows are part of a committed transaction."""
        if table.committed or table.passed_over is not None:
            return
        topic = topic_of(self._prefix, table.shape.schema, table.shape.table)
        try:
            if not table.void:
                self._commit(table)
            elif topic not in self._starting_over:  # it was emptied before, or need not restart
                raise table.flaw or KeyChanged(table.shape)
        except Refused as refusal:
            self._settle_mismatch(table, topic, refusal)

    def _settle_mismatch(self, table: TableVersion, topic: str, refusal: Refused) -> None:
        """Decide about rows that do not fit their topic.

        Rows of a table that is gone are passed over. Otherwise the topic restarts, or a person
        decides.
        """
        shape, pin = table.shape, self._pins.get(topic)
        relation = self._catalog.published(self._publication, shape.schema, shape.table)
        decision = decide(
            VersionKey(shape.oid, self._subjects.key(shape, pin)),
            VersionKey(relation.oid, self._subjects.key(self._catalog.shape(relation), pin)) if relation else None,
            pin,
            key_differs=isinstance(refusal, KeyChanged),
            emptied_later=topic in self._starting_over,
        )
        match decision:
            case Decision.REFUSE:
                raise refusal
            case Decision.START_OVER:
                raise TopicRestart(table.name, topic, shape.oid, refusal) from refusal
        _log.warning(
            "%s no longer exists: rows that do not fit its topic are passed over: %s", table.name, refusal.what
        )
        self._uncommitted.pop(topic, None)  # a later description is examined again
        table.pass_over(self._void_plan(shape, table.provisional_id))
        if relation is None and pin is not None:
            self._give_up(topic)

    def await_messages(self) -> int:
        """Return the messages' schema id. It is registered when the first message comes."""
        if self._message_schema_id is None:
            subject = value_subject(self.messages_topic)
            self._message_schema_id = self._registry.register(subject, canonical(fixed("message")))
        return self._message_schema_id

    def message(
        self,
        message: m.LogicalMessage,
        wal_start: int,
        facts: TransactionInfo,
        header: TransactionHeader | None,
        ts_ms: int,
        batch: RowBatch,
    ) -> None:
        """Add a logical message to the messages topic; `header` counts it if it belongs to a
        transaction.
        """
        schema_id = self.await_messages()
        transaction = None
        if header is not None and facts.transaction_id is not None:
            transaction = Transaction(facts.transaction_id, *header.next_order(0))
        parsed = facts.parsed
        record = Message(
            source=Source(
                version=__version__,
                name=self._prefix,
                db=self._server.db,
                ts_ms=facts.ts_us // 1000,
                ts_us=facts.ts_us,
                lsn=wal_start,
                txId=facts.xid,
                gid=facts.gid,
                global_id=parsed.global_id,
                branch=parsed.branch,
            ),
            message=MessageBody(message.prefix, message.content),
            transaction=transaction,
            ts_ms=ts_ms,
        )
        value = record.to_bytes(schema_id)
        batch.lists(self.messages_topic, 1)[0].append({"key": message.prefix.encode(), "value": value})
        batch.bytes += len(value)

    def _starts_with_another_key(self, shape: TableShape, topic: str) -> bool:
        """Whether the topic's coming truncate lets rows have another key.

        Rows of one key would lie in two partitions, but all of them are loaded again behind that
        truncate.
        """
        pin = self._pins.get(topic)
        return topic in self._starting_over and pin is not None and pin.key_schema != self._subjects.key(shape, pin)

    def _void(self, shape: TableShape) -> TableVersion:
        _log.warning(
            "%s.%s: rows with another key than the topic's are passed over: the topic starts over, and its load brings them",
            shape.schema,
            shape.table,
        )
        return self._make_void(shape)

    def _make_void(self, shape: TableShape) -> TableVersion:
        self._provisional_id += 1
        plan = self._void_plan(shape, self._provisional_id)
        return TableVersion(shape, VOID, 1, plan, self._provisional_id, self.in_backfill)

    def _void_plan(self, shape: TableShape, value_id: int) -> RowPlan:
        """Return a plan without a key: rows that are passed over may lack its values."""
        columns = tuple(replace(column, in_key=False) for column in shape.columns)
        return self._plan(replace(shape, columns=columns), 1, PROVISIONAL_KEY_ID, value_id)

    def _new(self, shape: TableShape, topic: str) -> TableVersion:
        pin = self._pins.get(topic)
        partitions = pin.partitions if pin else 1 if shape.keyless else self._partitions
        self._provisional_id += 1
        # The key's id is part of the bytes that choose a row's partition. With another id for each
        # version, a key's rows before and after an ALTER in one transaction would lie in two lists.
        key_id = (pin.key_schema_id if pin else None) or PROVISIONAL_KEY_ID
        plan = self._plan(shape, partitions, key_id, self._provisional_id)
        table = TableVersion(shape, topic, partitions, plan, self._provisional_id, self.in_backfill)
        # Shapes with different keys may have one envelope. A key other than the pinned one is
        # refused
        # at its commit, because it may be rolled back.
        if pin and pin.key_schema == self._subjects.key(shape, pin) and pin.relation != PASSED_OVER:
            known_id = self._subjects.known_envelope(shape, topic)
            if pin.value_schema_id == known_id:
                self._commit(table, value_id=known_id)
        return table

    def _commit(
        self, table: TableVersion, *, value_id: int | None = None, partitions: int | None = None
    ) -> tuple[int, int]:
        """Register the schemas, make or check the topic, pin both: before a row is written with the
        shape.

        `value_id`: the envelope's id if it is known; `partitions`: the topic's, if it was just made
        or checked.
        """
        shape, topic = table.shape, table.topic
        pin = self._pins.get(topic)
        key_text = self._subjects.key(shape, pin)
        if pin is not None and (pin.key_schema != key_text or pin.relation == PASSED_OVER):
            raise KeyChanged(shape)
        if pin is not None:
            partitions = pin.partitions
        elif partitions is None:
            partitions = self._topics.ensure([_wanted(table)])[topic]
        if pin is None and key_text is None and topic in self._starting_over:
            self._subjects.withdraw_key(shape, topic)
        key_id = self._subjects.register_key(key_text, topic)
        if pin is not None and pin.key_schema_id != key_id:
            raise key_id_changed(shape, pin.key_schema_id, key_id)
        if value_id is None:
            value_id = self._subjects.register_envelope(shape, topic)
        table.partitions = partitions
        ids = table.ids = key_id or 0, value_id
        table.plan = self._plan(shape, partitions, *ids)
        self._committed[topic] = table
        self._uncommitted.pop(topic, None)
        self._note_if_recreated(topic, shape.oid)
        starts_over = topic in self._starting_over or topic in self._recreated
        # Until the topic is emptied the pin names the former table: a run after this one must know
        # it.
        relation = pin.relation if pin and pin.relation is not None and starts_over else shape.oid
        new = pin or self._new_pin(shape, topic, partitions, key_text)
        new = replace(new, key_schema_id=key_id, value_schema_id=value_id, relation=relation)
        if new != pin:
            self._pins[topic] = self._unwritten_pins[topic] = new
        return ids

    def _new_pin(self, shape: TableShape, topic: str, partitions: int, key_schema: str | None) -> Pin:
        if topic in self._starting_over:
            self.in_backfill[topic] = shape.keyless
            bound = LoadProgress(reload=True).to_bytes()
            return Pin(shape.schema, shape.table, partitions, key_schema, backfill="waiting", bound=bound)
        if self._load_first:
            self.in_backfill[topic] = shape.keyless
        state: Literal["waiting", "ready"] = "waiting" if self._load_first else "ready"
        return Pin(shape.schema, shape.table, partitions, key_schema, backfill=state)

    def copying(self, relation: m.Relation) -> TableEncoding:
        """Return the table as a snapshot shows it, committed, with a plan for another thread.

        The stream's description stays, because the snapshot may be ahead of it.
        """
        table = self.describe(relation).table
        topic = topic_of(self._prefix, relation.schema, relation.table)
        try:
            if table.void:
                raise KeyChanged(table.shape)
            ids = table.ids or self._commit(table)
        except Refused as refusal:
            self._settle_mismatch(table, topic, refusal)
            raise RunEnded(f"{table.name} was dropped while it was about to be loaded") from refusal
        return TableEncoding(table.shape, table.partitions, self._plan(table.shape, table.partitions, *ids), table)

    def is_current(self, copying: TableEncoding) -> bool:
        """Whether no later description of the table exists."""
        return self._committed.get(copying.version.topic) is copying.version  # type: ignore[attr-defined]

    @property
    def pins(self) -> Mapping[str, Pin]:
        """What is pinned of each table, by topic."""
        return self._pins

    def pin(self, topic: str) -> Pin:
        return self._pins[topic]

    def has(self, topic: str) -> bool:
        return topic in self._pins

    def _note_if_recreated(self, topic: str, oid: int) -> None:
        """Notice that another table has the name: the former one's rows are gone."""
        pin = self._pins.get(topic)
        if pin and pin.relation not in {None, oid} and self._load_first and topic not in self._starting_over:
            self._recreated.add(topic)

    def take_recreated(self) -> set[str]:
        """Return the topics whose tables were dropped and created again."""
        recreated, self._recreated = self._recreated, set()
        return recreated

    def check_storage(
        self, relations: Iterable[m.Relation], stored: Mapping[int, TableStorage], *, reloads: bool
    ) -> list[tuple[str, str]]:
        """Return the topics of tables with changes that PostgreSQL does not send, each with the
        cause.

        Each is returned once; with `reloads`, until it is reloaded.
        """
        found = []
        for relation in relations:
            topic, now = topic_of(self._prefix, relation.schema, relation.table), stored.get(relation.oid)
            pin = self._pins.get(topic)
            if pin is None or now is None or topic in self._starting_over or pin.stored == now.to_text():
                continue
            if pin.stored is not None and pin.relation == relation.oid:
                what = unsent_change(TableStorage.from_text(pin.stored), now)
                found += [(topic, what)] if what else []
                if what and reloads:
                    continue  # until it is emptied
            self._pins[topic] = self._unwritten_pins[topic] = replace(pin, stored=now.to_text())
        return found

    def reload(self, topic: str) -> None:
        """Load the table from the beginning."""
        pin = self._pins[topic]
        self.in_backfill[topic] = pin.key_schema is None
        self._pins[topic] = replace(pin, backfill="waiting", bound=LoadProgress(reload=True).to_bytes())
        self._starting_over.add(topic)

    def emptied(self, topic: str) -> None:
        """Note that later rows are behind the truncate, and belong to the table as it is now."""
        self._starting_over.discard(topic)
        pin, table = self._pins[topic], self._committed.get(topic)
        if table and (root := self._root_flaws.emptied(table.shape.oid)):
            self._say(root.oid, self.describe(root))
        relation = table.shape.oid if table else pin.relation
        self._pins[topic] = self._unwritten_pins[topic] = replace(pin, relation=relation, stored=None)

    def gone(self, topic: str) -> None:
        """Note that a load found no such table: a later one restarts the topic."""
        self._pins[topic] = self._unwritten_pins[topic] = replace(self._pins[topic], relation=PASSED_OVER)

    def loaded(self, topic: str) -> None:
        """Note that the table's backfill is over, and recorded in Kafka."""
        self.in_backfill.pop(topic, None)
        self._starting_over.discard(topic)
        self._pins[topic] = replace(self._pins[topic], backfill="ready", bound=None)

    def _plan(self, shape: TableShape, partitions: int, key_id: int, value_id: int) -> RowPlan:
        return RowPlan(
            shape,
            key_schema_id=None if shape.keyless else key_id,
            value_schema_id=value_id,
            partitions=partitions,
            server=self._server,
            tombstones=self._tombstones,
            placeholders=self._placeholders,
        )

    def take_pins(self) -> dict[str, Pin]:
        """Return the pins that the main producer's next commit must carry."""
        pins, self._unwritten_pins = self._unwritten_pins, {}
        return pins


def _wanted(table: TableVersion) -> RequiredTopic:
    """Return the topic that the table requires."""
    return RequiredTopic(
        table.topic, "table", table.partitions, table=table_argument(table.shape.schema, table.shape.table)
    )


def _pinned(topic: str, pin: Pin) -> RequiredTopic:
    """Return the topic that the pin requires."""
    return RequiredTopic(topic, "table", pin.partitions, pinned=True, table=table_argument(pin.schema, pin.table))
