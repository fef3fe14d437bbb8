"""The published tables: from a relation of the stream to its topic, its registered schemas and the
plan that encodes its rows.

A relation's shape is *committed* once its schema is registered and its topic pinned. That happens
at the first row of a transaction that is certain to commit. It never happens within a prepared
transaction, because ROLLBACK PREPARED cannot take a registered schema back. A prepared transaction
with another shape is encoded with provisional schema ids and parked. When the transaction commits,
`register_committed` registers the schemas and replaces the ids.

Used by the thread that reads. `Tables` joins four parts: `DescribedVersions` has the described
versions, `Pins` the pins, `TableLives` the loads, and the `Registrar` asks the registry and Kafka.
Servers are asked only for a new shape, never for a row.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from twofold.config import Config
from twofold.descriptions.description import Description
from twofold.errors import Refused, RunEnded
from twofold.kafka.registrar import Registrar
from twofold.kafka.row_batch import PROVISIONAL_KEY_ID, VOID
from twofold.kafka.topic_rules import KnownTopic, RequiredTopic
from twofold.lives.skipped_rows import NO_COMMANDS
from twofold.loads.chunk import TableEncoding
from twofold.outbox.event_topics import EventTopics
from twofold.source import messages as m
from twofold.source.catalog import Catalog
from twofold.source.table_descriptions import DescribedTables
from twofold.tables.column_policy import ColumnPolicy
from twofold.tables.data_policy import DataPolicy
from twofold.tables.ddl_descriptions import NO_DDL, DdlDescriptions, DdlMessages
from twofold.tables.described_versions import DescribedVersions
from twofold.tables.logical_messages import LogicalMessages
from twofold.tables.pins import Pins
from twofold.tables.root_flaws import RootFlaws
from twofold.tables.table_lives import TableLives
from twofold.tables.table_version import DescribedVersion, KeyChanged, RowPlans, TableVersion, key_id_changed
from twofold.tables.topic_mismatch import Decision, TopicRestart, VersionKey, decide
from twofold.thread_owner import ThreadOwner
from twofold_avro.names import TopicNames, topic_of
from twofold_avro.records import Pin
from twofold_avro.shapes import TableShape
from twofold_common.table_names import table_argument

_log = logging.getLogger(__name__)


class Tables:
    """All published tables of one run."""

    def __init__(
        self,
        config: Config,
        database: str,
        pins: dict[str, Pin],
        *,
        catalog: Catalog,
        registrar: Registrar,
        policy: DataPolicy,
        has_ddl_messages: bool = False,
    ) -> None:
        """`has_ddl_messages`: event triggers put each change of a table into the stream, so the
        pins have the table's description where the run begins.
        """
        self._config = config
        self.names = TopicNames(config.prefix)
        self._catalog = catalog
        self._registrar = registrar
        self.policy = ColumnPolicy(policy, catalog, config.publication)
        self._plans = RowPlans(
            config.prefix,
            database,
            tombstones=config.kafka.tombstones,
            placeholders=config.kafka.placeholders,
            hash_key=config.policy.hash_key,
        )
        self._versions = DescribedVersions()
        self._root_flaws = RootFlaws(catalog, self._make_void)
        self.lives = TableLives(pins)
        self.skips = NO_COMMANDS
        """People's commands to skip rows, which recovery has read."""
        loads, described = config.source.backfill, has_ddl_messages
        self.pins = Pins(config.prefix, pins, self.lives, load_first=loads, has_ddl_messages=described)
        self.events = EventTopics(config.outbox, config.prefix, partitions=config.kafka.partitions, registrar=registrar)
        self.messages = LogicalMessages(
            config.prefix, database, registrar, self.events, published=config.source.messages
        )
        self.ddl = DdlDescriptions(config.publication, self.pins.described(), has_messages=described)
        self.owner = ThreadOwner("the tables' versions and pins")

    def restart_topics(self, topics: Iterable[str], published: Iterable[m.Relation]) -> None:
        """Restart these topics: their pins no longer count, and their loads begin with a truncate.

        Call this before `check`, which would refuse topics that a restart repairs. The topic of an
        outbox, from when it was a table like others, gets none of its rows: it restarts if the
        table is one like others again.
        """
        published = tuple(published)
        outboxes = self.pins.topics_of(each for each in published if self.events.is_outbox(each))
        for topic in outboxes & self.pins.all.keys():
            if not self.pins[topic].is_passed_over:
                self.pins.unpublish(topic)
        self.pins.restart(topics, self._topics_in_use(published))

    def check(self, published: Iterable[m.Relation]) -> None:
        """Require every pinned topic to exist unchanged."""
        check_pinned_topics(self.pins, self._registrar, self._topics_in_use(published))

    def _topics_in_use(self, published: Iterable[m.Relation]) -> set[str]:
        """Return the topics of tables; an outbox has none, whatever it was before."""
        return self.pins.topics_of(each for each in published if not self.events.is_outbox(each))

    def announce(self, relations: Iterable[m.Relation]) -> None:
        """Make the topics of tables that have none, all at once, before their first row.

        The stream's descriptions stay valid, because the catalog may be ahead of them.
        """
        assert self.owner.check()
        relations = tuple(relations)
        self.events.require_published(relations, self._config.publication)
        relations = tuple(each for each in relations if not self.events.is_outbox(each))
        for relation in relations:
            topic = self.pins.topic_of(relation)
            if (pin := self.pins.find(topic)) and pin.is_passed_over:
                raise TopicRestart(f"{relation.schema}.{relation.table}", topic, relation.oid)
            self.pins.note_if_recreated(topic, relation.oid)
        new = [relation for relation in relations if self.pins.topic_of(relation) not in self.pins]
        with self._registrar.knowing_versions(map(self.pins.topic_of, new)):
            tables = [table for relation in new if not (table := self.describe(relation).table).committed]
            if not tables:
                return
            shapes = [(table.shape, table.topic) for table in tables]
            made, ids = self._registrar.announce(map(_wanted, tables), shapes)
        for table, value_id in zip(tables, ids, strict=True):
            self._commit(table, value_id=value_id, made=made[table.topic])

    def relation(self, relation: m.Relation, *, committed: bool = True, ddl: DdlMessages = NO_DDL) -> None:
        """Note a table's new description from the stream. It counts with the first row.

        Where partitions are published via their root, the stream describes the partitions too, and
        none of their rows comes. `committed`: the message's transaction is committed; `ddl`: the
        transaction's DDL messages.
        """
        for oid, version in self.descriptions(relation, ddl, committed=committed).items():
            self._versions.set_version(oid, version)

    def descriptions(
        self, relation: m.Relation, ddl: DdlMessages, *, committed: bool = False
    ) -> dict[int, DescribedVersion]:
        """Return the tables that the message describes, by oid: a partition, its root after it."""
        self.pins.find_other_names(self.pins.topic_of(relation), relation.oid)

        def describe(described: m.Relation) -> DescribedVersion:
            return self.describe(described, self.ddl.find(described, ddl), committed=committed)

        root = self._root_flaws.after(relation, self.ddl.above(relation, ddl), describe)
        return {relation.oid: describe(relation), **({root[0]: root[1]} if root else {})}

    def describe(
        self, relation: m.Relation, described: Description | None = None, *, committed: bool = True
    ) -> DescribedVersion:
        """Return the table as the message has it; `described`: the table's description by a DDL
        message. The description of a transaction in progress counts for that transaction alone.
        """
        assert self.owner.check()
        shape = self._shape(relation, described, committed=committed)
        if self._is_outbox(relation):
            return DescribedVersion(self._outbox(shape, committed=committed), self._versions.count())
        topic = self.pins.topic_of(relation)
        shape = self._registrar.like_before(shape, topic, self.pins.find(topic))
        for former, pin in self.pins.former(topic, relation.oid):
            self._registrar.require_former_rules(shape, former, pin)
        number = self._versions.count()
        if known := self._versions.like(shape, topic):
            return DescribedVersion(known, number)
        shape = self._catalog.add_comments(shape)
        table = self._void(shape, topic) if self._starts_with_another_key(shape, topic) else self._new(shape, topic)
        if not table.committed:
            self._versions.add(topic, table)
        return DescribedVersion(table, number)

    def _shape(
        self, relation: m.Relation, described: Description | None = None, *, committed: bool = True
    ) -> TableShape:
        """Return the table's shape under the data policy, and pin the hidden columns."""
        shape = self._catalog.shape(relation, described)
        topic = self.pins.topic_of(relation)
        pins, met = self.pins.ever, self.pins.hidden
        shape, hidden = self.policy.hide(shape, relation, topic, pins, described, met=met, committed=committed)
        if hidden is not None:
            self.pins.note_hidden(topic, shape.oid, hidden)
        return shape

    def adopt(self, described: dict[int, DescribedVersion]) -> None:
        """Make a streamed transaction's descriptions hold for all, unless later ones exist."""
        # The catalog knows whether a name is that of a savepoint that was rolled back.
        named = [each.table.shape for each in described.values() if each.table.outbox is not None]
        now = [self._catalog.published(self._config.publication, each.schema, each.table) for each in named]
        self.events.note_names(filter(None, now))
        self._versions.adopt(described)

    def type(self, message: m.Type) -> None:
        self._catalog.note_type(message)

    def of_relation(self, oid: int, *, provisional: bool) -> TableVersion:
        """Return a row's table; outside a prepared transaction its shape is committed now."""
        table = self._versions.current(oid)
        if table is None:
            raise RunEnded(f"PostgreSQL sent a row of relation {oid} without having described it")
        if not provisional and not table.committed:
            self._certain(table)
        return table

    def register_committed(self, tables: Iterable[TableVersion]) -> None:
        """Register the uncommitted versions of a committed transaction's tables."""
        for table in tables:
            self._certain(table)

    def _certain(self, table: TableVersion) -> None:
        """Commit a table's shape: its rows are part of a committed transaction."""
        assert self.owner.check()
        if table.committed or table.passed_over is not None:
            return
        topic = topic_of(self._config.prefix, table.shape.schema, table.shape.table)
        try:
            if not table.void:
                self._commit(table)
            elif self.lives.is_emptying(topic):
                self.pins.note_void(topic)
            else:  # it was emptied before, or need not restart
                raise table.flaw or KeyChanged(table.shape)
        except Refused as refusal:
            self._decide_mismatch(table, topic, refusal)

    def _decide_mismatch(self, table: TableVersion, topic: str, refusal: Refused) -> None:
        """Decide about rows that do not fit their topic.

        Rows of a table that is gone are passed over. Otherwise the topic restarts, or a person
        decides.
        """
        shape, pin = table.shape, self.pins.find(topic)
        relation = self._catalog.published(self._config.publication, shape.schema, shape.table)
        now, key = self._shape(relation) if relation else None, self._registrar.key
        decision = decide(
            VersionKey.of(shape, key(shape)),
            VersionKey.of(now, key(now)) if now else None,
            pin,
            key_differs=isinstance(refusal, KeyChanged),
            in_backfill=self.lives.is_in_backfill(topic),
            emptied_later=self.lives.is_emptying(topic),
        )
        match decision:
            case Decision.REFUSE:
                raise refusal
            case Decision.START_OVER:
                raise TopicRestart(table.name, topic, shape.oid, refusal) from refusal
        is_there = now is not None and now.oid == shape.oid
        why = "starts over, and its load brings them" if is_there else "has no table any more"
        _log.warning("%s: rows are passed over, for the topic %s: %s", table.name, why, refusal.what)
        if is_there:
            self.pins.note_void(topic)
        self._versions.drop_uncommitted(topic)
        table.pass_over(self._plans.make_void(shape, table.provisional_id))
        if now is None and pin is not None:
            self.pins.give_up(topic)

    def _starts_with_another_key(self, shape: TableShape, topic: str) -> bool:
        """Whether the topic's coming truncate lets rows have another key.

        Rows of one key would lie in two partitions, but all of them are loaded again behind that
        truncate.
        """
        pin = self.pins.find(topic)
        return self.lives.is_emptying(topic) and pin is not None and pin.key_schema != self._registrar.key(shape)

    def _is_outbox(self, relation: m.Relation) -> bool:
        """Whether the table's inserts are events. Under a name without a rule they are none if the
        table has a topic by it, or if another table has the rule's name now.
        """
        if (named := self.events.other_name(relation)) is None:
            return self.events.is_outbox(relation)
        if (pin := self.pins.find(self.pins.topic_of(relation))) and pin.oid == relation.oid:
            return False
        if now := self._catalog.published(self._config.publication, *named):
            self.events.note_names([now])
        if not (is_outbox := self.events.is_outbox(relation)):
            _log.warning(
                "%s.%s was the outbox %s.%s, which is another table now: its rows are published as rows, also those from before the other table was made",
                *(relation.schema, relation.table, *named),
            )
        return is_outbox

    def _outbox(self, shape: TableShape, *, committed: bool) -> TableVersion:
        table = self._make_void(shape)
        table.outbox = self.events.table(table.shape, committed=committed)
        table.ids = 0, 0  # it has no schemas that could be registered
        return table

    def _void(self, shape: TableShape, topic: str) -> TableVersion:
        self.pins.note_void(topic)
        _log.warning(
            "%s.%s: rows with another key than the topic's are passed over: the topic starts over, and its load brings them",
            *(shape.schema, shape.table),
        )
        return self._make_void(shape)

    def _make_void(self, shape: TableShape) -> TableVersion:
        plan_id = self._versions.next_provisional_id()
        return TableVersion(shape, VOID, 1, self._plans.make_void(shape, plan_id), plan_id, self.lives.is_in_backfill)

    def _new(self, shape: TableShape, topic: str) -> TableVersion:
        pin = self.pins.find(topic)
        partitions = pin.partitions if pin else 1 if shape.keyless else self._config.kafka.partitions
        # The key's id is part of the bytes that choose a row's partition. With another id for each
        # version, a key's rows before and after an ALTER in one transaction would lie in two lists.
        key_id = (pin.key_schema_id if pin else None) or PROVISIONAL_KEY_ID
        table = self._version(shape, topic, partitions, key_id)
        # Shapes with different keys may have one envelope. A key other than the pinned one is
        # refused at its commit, because it may be rolled back.
        if pin and pin.key_schema == self._registrar.key(shape) and not pin.is_passed_over:
            known_id = self._registrar.known_envelope(shape, topic)
            if pin.value_schema_id == known_id:
                self._commit(table, value_id=known_id)
            elif self._registrar.is_like_pinned(shape, topic, pin):
                # Comments are of the catalog, where they are committed: no ROLLBACK PREPARED takes
                # them back.
                self._commit(table)
        return table

    def _version(self, shape: TableShape, topic: str, partitions: int, key_id: int) -> TableVersion:
        """Return a version whose envelope has a provisional id."""
        provisional_id = self._versions.next_provisional_id()
        plan = self._plans.make(shape, partitions, key_id, provisional_id)
        return TableVersion(shape, topic, partitions, plan, provisional_id, self.lives.is_in_backfill)

    def _commit(
        self, table: TableVersion, *, value_id: int | None = None, made: KnownTopic | None = None
    ) -> tuple[int, int]:
        """Register the schemas, make or check the topic, pin both: before a row is written with the
        shape.

        `value_id`: the envelope's id if it is known; `made`: the topic, if it was just made or
        checked.
        """
        shape, topic, registrar = table.shape, table.topic, self._registrar
        pin = self.pins.find(topic)
        key_text = registrar.key(shape)
        if pin is not None and (pin.key_schema != key_text or pin.is_passed_over):
            raise KeyChanged(shape)
        if pin is not None:
            made = KnownTopic(pin.partitions, pin.topic_id)
        elif made is None:
            made = registrar.ensure([_wanted(table)])[topic]
        if pin is None and key_text is None and self.lives.is_emptying(topic):
            registrar.withdraw_key(shape, topic)
        key_id = registrar.register_key(key_text, topic)
        if pin is not None and pin.key_schema_id != key_id:
            raise key_id_changed(shape, pin.key_schema_id, key_id)
        if value_id is None:
            value_id = registrar.register_envelope(shape, topic, pin)
        table.partitions = made.partitions
        ids = table.ids = key_id or 0, value_id
        table.plan = self._plans.make(shape, made.partitions, *ids)
        self._versions.commit(topic, table)
        self.pins.pin_version(shape, topic, made, key_text, (key_id, value_id))
        return ids

    def copying(self, relation: m.Relation) -> TableEncoding:
        """Return the table as a snapshot shows it, committed, with a plan for another thread.

        The stream's description stays valid, because the snapshot may be ahead of it.
        """
        table = self.describe(relation).table
        topic = self.pins.topic_of(relation)
        try:
            if table.void:
                raise KeyChanged(table.shape)
            ids = table.ids or self._commit(table)
        except Refused as refusal:
            self._decide_mismatch(table, topic, refusal)
            raise RunEnded(f"{table.name} was dropped while it was about to be loaded") from refusal
        return TableEncoding(
            table.shape, table.partitions, self._plans.make(table.shape, table.partitions, *ids), table
        )

    def is_loadable(self, relation: m.Relation) -> bool:
        """Whether a table's rows may and can be loaded. A load goes in the order of the key, which
        a hashed key does not show.
        """
        return self._config.source.backfill and not any(column.policy for column in self._shape(relation).key)

    def is_current(self, copying: TableEncoding) -> bool:
        """Whether no later description of the table exists."""
        return self._versions.committed(copying.version.topic) is copying.version  # type: ignore[attr-defined]

    def note_changed(self, tables: Iterable[TableVersion], own: Mapping[int, DescribedVersion]) -> None:
        """Note that changes of these tables join the batch: the topics of a table's other names
        lack them. `own`: the descriptions that hold for the changes' transaction alone.
        """
        for table in tables:
            oid, topic = table.shape.oid, topic_of(self._config.prefix, table.shape.schema, table.shape.table)
            now = own[oid].table if oid in own else self._versions.current(oid)
            for other in self.pins.note_changed(topic, oid, now.topic if now and now.committed else None):
                _log.warning("%s: its rows come under this name now, and %s lacks them", table.name, other)
                if self.pins[other].is_passed_over:
                    self._versions.forget(other)

    def note_descriptions(self, found: DescribedTables) -> None:
        """Pin the catalog's descriptions of tables of which no DDL message came lately.

        The stream has passed the position of that look at the catalog.
        """
        self.ddl.look_again(self.pins.note_descriptions(found.relations, found.described))

    def emptied(self, topic: str) -> None:
        """Note that later rows are behind the truncate, and belong to the table as it is now.

        The table's life has noted the truncate already, so the rows are not void.
        """
        table = self._versions.committed(topic)
        if table and (root := self._root_flaws.emptied(table.shape.oid)):
            self._versions.set_version(root.oid, self.describe(root))
        self.pins.emptied(topic, table.shape.oid if table else None)


def _wanted(table: TableVersion) -> RequiredTopic:
    """Return the topic that the table requires."""
    name = table_argument(table.shape.schema, table.shape.table)
    return RequiredTopic(table.topic, "table", table.partitions, table=name)


def check_pinned_topics(pins: Pins, registrar: Registrar, in_use: set[str]) -> None:
    """Require every pinned topic to exist unchanged.

    The topic of a table that is no longer published may be missing: rows that do not fit are then
    passed over.
    """
    for topic in registrar.missing(pins.all.keys() - in_use):
        pins.forget(topic)
    pins.note_topics(
        registrar.ensure(RequiredTopic.of_pin(topic, pin) for topic, pin in pins.all.items() if topic in in_use)
    )
    unused = [RequiredTopic.of_pin(topic, pin) for topic, pin in pins.all.items() if topic not in in_use]
    for topic, refusal in registrar.mismatched(unused):
        _log.warning("of a table that is no longer published: %s", refusal.what)
        pins.unpublish(topic)
