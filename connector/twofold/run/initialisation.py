"""`twofold init`: makes topics, publication, slot and the first progress record. It may be
interrupted anywhere and run again.

Init gives the stream that begins a random name. A prefix that is used again begins another stream,
whose numbers and positions say nothing about the former stream's.

The progress topic first says that an init has begun (`applied_lsn` 0), and then where the slot's
stream starts. So a later `run` can tell an unused slot from a slot whose progress was lost: `run`
asks for `init` in the first case, and refuses in the second.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace

from twofold.config import ColumnRule, Config
from twofold.errors import Refused, SetupError, UncertainEnd, Unreachable
from twofold.inspect.checks import check_source, slot_gone
from twofold.inspect.status_report import read_progress_if_any
from twofold.kafka.fencing import Fencing, fence
from twofold.kafka.kafka_settings import bookkeeping, kafka_settings, names_of, open_registry, topic_policy
from twofold.kafka.metadata import ask_brokers
from twofold.kafka.publisher import TransactionRecords
from twofold.kafka.registrar import Registrar
from twofold.kafka.schema_registry import Registry, register_fixed
from twofold.kafka.topics import Topics
from twofold.kafka.watch import Watch
from twofold.run import last_refusal
from twofold.run.source_settings import selection, source_use, wanted_publication
from twofold.source import ddl_messages, identity, provisioning, publishable, readiness
from twofold.source import messages as m
from twofold.source.catalog import Catalog
from twofold.source.connection import connect
from twofold.source.diagnosis import foreign_slot, lost_slot, slot_holder
from twofold.source.locks import Blocker
from twofold.source.published_tables import published_tables
from twofold.source.readiness import ReadinessFinding
from twofold.source.table_copier import with_rows
from twofold.source.table_descriptions import describe_published
from twofold.stream.bookkeeping_records import ConnectorOrigin
from twofold.tables.data_policy import DataPolicy
from twofold.tables.tables import Tables
from twofold_avro.records import Pin
from twofold_common.positions import NO_LSN, Lsn, format_lsn

Say = Callable[[str], None]


def initialise(config: Config, say: Say) -> None:
    """Make the missing parts; report each part that was made."""
    published = wanted_publication(config)
    slot = identity.slot_state(config.conninfo, config.slot)
    database = identity.identify(config.conninfo).database
    if foreign := foreign_slot(config.conninfo, config.slot):
        raise foreign
    if slot is not None and slot.lost:
        raise lost_slot(config.slot, slot.invalidation_reason)
    ask_brokers(kafka_settings(config))
    if slot is not None and slot.active_pid is not None:
        in_use = _in_use(config, slot)
        _tell_ddl(config, say)
        say(in_use)
        return
    advice = readiness.require(
        config.conninfo,
        slot=config.slot,
        publication=config.publication if slot is not None or published is None else None,
        two_phase=config.source.two_phase,
        use=source_use(config),
    )
    if slot is None and published is not None:
        advice += readiness.refuse(publishable.examine(config.conninfo, config.publication, published))
    if published is not None:
        advice += _left_out(config, published)
    if slot is None:
        readiness.refuse(_flaws(config, published))
    for each in advice:
        say(f"note: {each}")
    with ExitStack() as opened:
        first = _First(config, opened)
        if first.progress and first.progress.applied_lsn and slot:
            _tell_ddl(config, say)
            say(
                f"already initialised: slot {config.slot}, published up to {format_lsn(Lsn(first.progress.applied_lsn))}"
            )
            return
        if first.progress and first.progress.applied_lsn:
            raise slot_gone(config.slot, config.prefix, Lsn(first.progress.applied_lsn))
        if slot and not first.progress:
            raise Refused(
                f"slot {config.slot} exists, but the topic {config.prefix}.progress does not mention it",
                at_stake="nobody knows whether rows were published from it",
                repair=f"drop the slot if nobody needs it (SELECT pg_drop_replication_slot('{config.slot}')), then run twofold init again",
            )
        first.write(NO_LSN)
        if published and provisioning.create_publication(config.conninfo, config.publication, published, config.slot):
            say(f"publication {config.publication} made")
        _note_reader(config, say)
        _tell_ddl(config, say)
        pins = _pins(config, first.registry, database)
        _note_empty(config, pins)  # which is refused where a table may not be read
        start = slot.confirmed_flush if slot else _make_slot(config, say)
        # An interrupted init's slot is older than these pins. A table that has joined since may
        # have rows that are not committed yet and will not be streamed: all tables are loaded.
        first.write(start, pins if slot else _note_empty(config, pins))
        last_refusal.forget(config)
        say(f"ready: the stream starts at {format_lsn(start)}; start it with twofold run")


def _left_out(config: Config, published: provisioning.PublicationContent) -> tuple[ReadinessFinding, ...]:
    with connect(config.conninfo) as connection:
        found = publishable.find_left_out(connection, config.publication, published)
    return (found,) if found else ()


def _note_reader(config: Config, say: Say) -> None:
    try:
        provisioning.note_reader(config.conninfo, config.publication, config.slot)
    except (SetupError, Unreachable) as error:
        say(f"note: the reset of another connector may drop publication {config.publication!r}: {error}")


def _tell_ddl(config: Config, say: Say) -> None:
    """Make the event triggers, where they are wanted and missing."""
    if config.source.ddl_messages and ddl_messages.install(config.conninfo, config.slot):
        say("event triggers made: each change of a table's definition is in the stream")


def _flaws(config: Config, published: provisioning.PublicationContent | None) -> tuple[ReadinessFinding, ...]:
    """Return the tables that could not be followed."""
    return tuple(
        ReadinessFinding(f"table {flaw.schema}.{flaw.table}: {flaw.what}", " ".join(flaw.repair))
        for flaw in provisioning.flaws_if_created(config.conninfo, config.publication, published)
    )


def _in_use(config: Config, slot: identity.SlotState) -> str:
    """Say who holds the slot.

    If the topics mention the slot, this connector holds it. Otherwise the configuration is wrong,
    or another program holds it.
    """
    pid, holder = slot_holder(config.conninfo, config.slot)
    recovered = read_progress_if_any(config)
    progress = recovered.progress if recovered else None
    if progress is None:
        raise Refused(
            f"slot {config.slot} is in use by process {pid} from {holder}, and the topics {config.prefix}.* at {config.kafka.bootstrap} do not mention it",
            at_stake="two configurations would share one slot, and nobody would know which rows were published",
            repair="correct kafka.bootstrap, kafka.prefix and name; if that process is another program, choose a slot of this connector's own with source.slot",
        )
    check_source(progress, slot, identity.identify(config.conninfo), config.prefix)
    return f"already initialised: slot {config.slot} is in use by process {pid} from {holder}, published up to {format_lsn(Lsn(progress.applied_lsn))}"


class _Waiting:
    """Says for whom the slot's creation waits: when that changes, and every ten seconds."""

    def __init__(self, config: Config, say: Say) -> None:
        self._config = config
        self._say = say
        self._reported: list[Blocker] = []
        self._again_at = 0.0

    def __call__(self, blockers: Sequence[Blocker]) -> None:
        who = [replace(each, age=None) for each in blockers]
        if who == self._reported and time.monotonic() < self._again_at:
            return
        self._reported, self._again_at = who, time.monotonic() + 10.0
        limit_s = self._config.source.slot_wait
        self._say(
            f"slot {self._config.slot} waits for: {'; '.join(map(str, blockers))}; given up after {limit_s:g} s (source.slot_wait)"
        )


def _make_slot(config: Config, say: Say) -> Lsn:
    start = provisioning.create_slot(
        config.conninfo,
        config.slot,
        two_phase=config.source.two_phase,
        failover=config.source.failover,
        wait_limit_s=config.source.slot_wait,
        on_wait=_Waiting(config, say),
        say=say,
    )
    say(f"slot {config.slot} made (two_phase {'on' if config.source.two_phase else 'off'})")
    return start


def _pins(config: Config, registry: Registry, database: str) -> dict[str, Pin]:
    """Make topics and schemas of the published tables.

    Everything that Kafka and the registry may refuse comes before the slot, which holds WAL.
    """
    rules = DataPolicy(config)
    with closing(Catalog(config.conninfo)) as catalog:
        topics = Topics(kafka_settings(config), topic_policy(config))
        registrar = Registrar(registry, topics, config.prefix, rules.require_rules)
        tables = Tables(config, database, {}, catalog=catalog, registrar=registrar, policy=rules)
        published = published_tables(config.conninfo, config.publication)
        if idle := tables.policy.idle_rules(published):
            raise _idle_rules(idle, config.publication)
        _require_places(tables, published)
        tables.announce(published)
        # Before the slot: the first run notices what changes from here on, and no row is taken for
        # a later one.
        tables.note_descriptions(describe_published(config.conninfo, config.publication))
    return tables.pins.take_unwritten()


def _require_places(tables: Tables, published: Collection[m.Relation]) -> None:
    """Refuse an outbox that does not fit its rule. Before there is a slot, no row has the columns
    that it had formerly.
    """
    tables.events.note_names(published)
    for relation in filter(tables.events.is_outbox, published):
        if (outbox := tables.describe(relation).table.outbox) is not None:
            outbox.find_places()


def _idle_rules(rules: Sequence[ColumnRule], publication: str) -> Refused:
    which = ", ".join(f"{rule.column} ({rule.action})" for rule in rules)
    return Refused(
        f"the data policy's {'rule' if len(rules) == 1 else 'rules'} for {which} match no column that publication {publication} has",
        at_stake="a column that it was meant for has another name, and would be published as it is; nothing was published",
        repair="correct or remove it in policy.columns, then run twofold init again",
    )


def _note_empty(config: Config, pins: dict[str, Pin]) -> dict[str, Pin]:
    """Return the pins; tables without rows count as loaded.

    Behind the slot this stays true: everything that is committed later is streamed.
    """
    to_load = with_rows(config.conninfo, ((pin.schema, pin.table) for pin in pins.values() if pin.backfill != "ready"))
    return {
        topic: pin if (pin.schema, pin.table) in to_load else replace(pin, backfill="ready")
        for topic, pin in pins.items()
    }


class _First:
    """The progress topic during `init`; fenced, so that no connector writes into it."""

    def __init__(self, config: Config, opened: ExitStack) -> None:
        self._config = config
        Topics(kafka_settings(config), topic_policy(config)).ensure(bookkeeping(config, pinned=False))
        self.registry = open_registry(config)
        self._watch = Watch()
        self._opened = opened
        opened.callback(self._watch.close)
        self._fencing = self._fence()
        self.progress = self._fencing.recovered.progress
        self._stream_id = self.progress.stream_id if self.progress else uuid.uuid4().hex
        """The stream's id: of an interrupted `init`, or new."""

    def _fence(self) -> Fencing:
        config, names = self._config, names_of(self._config)
        ids = register_fixed(self.registry, names)
        settings, pool = kafka_settings(config), config.prepared.pool
        fencing = fence(settings, names, self.registry, ids, pool=pool, watch=self._watch)
        self._opened.callback(fencing.publisher.close)
        return fencing

    def write(self, applied_lsn: Lsn, pins: dict[str, Pin] | None = None) -> None:
        config, server = self._config, identity.identify(self._config.conninfo)
        origin = ConnectorOrigin(
            *(server, config.slot, config.prepared.pool, self._stream_id, selection(config, server.version_num)),
            last_up_to=lambda _: None,
        )
        try:
            records = TransactionRecords(None, origin.progress(applied_lsn, sequence=0), pins or {})
            self._fencing.publisher.commit_main(records)
        except UncertainEnd:  # it is committed, and late requests are fenced
            self._fencing = self._fence()
