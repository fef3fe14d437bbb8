"""The worlds of one scenario of lives: the source writes, people give commands, the connector
loads, publishes and crashes. The product's own bridge, lives, barrier and change memory decide.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from model.lives.merger import Commit, Merger, Produce, ToWatch
from model.lives.source import FIRST_XID, LENGTH, Item, Scenario, Script
from model.lives.world import (
    MAIN,
    Chunk,
    Connector,
    Folded,
    Kafka,
    Load,
    Row,
    TablePin,
    Topic,
    Watched,
    World,
)
from model.logs import check
from model.world import Numbers
from twofold.bridge import actions, events, initial, step
from twofold.kafka import names
from twofold.lives import load_life, topic_life
from twofold.lives.exchanged import NO_COMMAND, ExecuteCommand, LoadCommand, WatchTopic
from twofold.lives.load_life import LoadLife
from twofold.lives.load_progress import LoadProgress
from twofold_common.positions import Lsn

LOADED = LoadProgress()


class LivesModel:
    """The worlds of one scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.script = Script(scenario)
        self.tables = self.script.tables
        self.merger = Merger(self.script, scenario.keyless)
        self._parts: tuple[Numbers[Hashable], ...] = tuple(Numbers() for _ in range(4))

    def pack(self, world: World) -> Hashable:
        """The same in little space, to be remembered."""
        parts = (world.source, world.kafka.topics, world.kafka._replace(topics=()), world.connector)
        return (*(numbers.number(part) for numbers, part in zip(self._parts, parts, strict=True)), *world[3:])

    def first(self) -> World:
        nothing = Topic(Folded(), ())
        topics, pins = [], []
        for table in self.tables:
            rows = tuple((key, *row) for t, key, row in self.script.rows if t == table)
            ready = table in self.scenario.ready
            folded = Folded(rows, tuple((key, big) for key, _, big in rows)) if ready else Folded()
            topics.append(nothing._replace(folded=folded))
            pins.append(None if table in self.scenario.late else TablePin("ready" if ready else "waiting", LOADED))
        kafka = Kafka(tuple(topics), tuple(pins), (), frozenset(), 0, frozenset())
        return World(self.script.first(), kafka, None, 0, self.scenario.crashes, 0)

    def after(self, world: World) -> Iterator[World]:
        """Every world that can come next. None: everything has come to rest, and must be right."""
        if world.connector is None:
            yield self._recover(world)
            return
        rested = True
        for following in self._live(world, world.connector):
            if following != world:
                rested = False
                yield following
        if rested:
            self._check_done(world, world.connector)
        if world.crashes:
            yield self._crashed(world)

    def _live(self, world: World, connector: Connector) -> Iterator[World]:
        yield from self._write(world)
        if world.given < len(self.scenario.commands):
            yield from self._command(world)
        if connector.place < world_length(self, world) and not connector.bridge.must_wait:
            yield self._read(world, connector)
        for entry in connector.bridge.prepared:  # they have waited long enough
            yield self._step(world, events.OpenDue(entry.identity))
        if connector.queue:
            yield self._work(world)
        for table in range(len(self.tables)):
            yield from self._turn(world, connector, table)
        if connector.answers:
            (table, done), *rest = connector.answers
            yield self._apply(world._replace(connector=connector._replace(answers=tuple(rest))), table, done)
        yield from self._due(world, connector)

    # --- the source, and people

    def _write(self, world: World) -> Iterator[World]:
        if on := self.script.next(world.source):
            yield world._replace(source=on)
        for number in world.source.invisible:
            yield world._replace(source=self.script.appear(world.source, number))

    def _command(self, world: World) -> Iterator[World]:
        name, what = self.scenario.commands[world.given]
        table = self.tables.index(name)
        assert world.connector is not None
        if table not in world.connector.pinned:
            return
        key = table, names.record_of(what)
        kept = (each for each in world.kafka.asked if (each[1], names.record_of(each[2])) != key)
        asked = (*kept, (world.given, table, what))
        owed = {"start": world.kafka.owed | {table}, "cancel": world.kafka.owed - {table}}.get(what, world.kafka.owed)
        given = world._replace(kafka=world.kafka._replace(asked=asked, owed=owed), given=world.given + 1)
        yield self._apply(given, table, load_life.CommandGiven(LoadCommand(world.given, what)))

    # --- lives

    def _stepped(
        self, connector: Connector, table: int, event: load_life.LoadEvent
    ) -> tuple[Connector, tuple[load_life.LoadAction, ...]]:
        life, given = load_life.step_load(connector.lives[table], event)
        self.merger.met |= {type(event), *map(type, given)}
        return connector._replace(lives=put(connector.lives, table, life)), given

    def _apply(self, world: World, table: int, event: load_life.LoadEvent) -> World:
        """As `Loading` and `TableLives` do it."""
        connector = world.connector
        assert connector is not None
        connector, given = self._stepped(connector, table, event)
        for action in given:
            match action:
                case WatchTopic():
                    connector = connector._replace(queue=(*connector.queue, ToWatch(table, action)))
                case load_life.BeginReading(progress):
                    load = Load(connector.serial, progress, progress.after is not None)
                    connector = connector._replace(loads=put(connector.loads, table, load), serial=connector.serial + 1)
                case load_life.StopReading():
                    connector = connector._replace(loads=put(connector.loads, table, None))
                case load_life.ReportDelayedRows():
                    pass
                case _:
                    raise AssertionError(action)
        return self.merger.rows_on_their_way(world._replace(connector=connector))

    def _turn(self, world: World, connector: Connector, table: int) -> Iterator[World]:
        life, load = connector.lives[table], connector.loads[table]
        if table not in connector.pinned:
            if self.script.joined(self.tables[table], world.source.place):
                yield self._pin(world, table)
            return
        if life.needs_turn:
            for entry in connector.bridge.prepared:
                if self._touches(entry.identity.xid, table):
                    world = self._step(world, events.ParkDue(entry.identity, "backfill"))
            yield self._apply(world, table, load_life.ReadingDue())
            return
        if load is None:
            return
        if load.done:
            stopped = world._replace(connector=connector._replace(loads=put(connector.loads, table, None)))
            yield self._apply(stopped, table, load_life.LoadEnded())
            return
        if (on := self._load(world, load, table)) is not None:
            yield world._replace(connector=connector._replace(loads=put(connector.loads, table, on)))

    def _pin(self, world: World, table: int) -> World:
        """The table gets its topic, and is to be loaded."""
        connector = world.connector
        assert connector is not None
        pinned = connector._replace(pinned=connector.pinned | {table}, unwritten=connector.unwritten | {table})
        return self._apply(world._replace(connector=pinned), table, load_life.TopicPinned(self.merger.keyless[table]))

    def park_reason(self, connector: Connector, number: int) -> str | None:
        """The rule of `TableVersion.park_reason`."""
        tables = {self.tables.index(change.table) for change in self.script.sent(number)}
        if any(connector.lives[table].in_backfill or self.merger.keyless[table] for table in tables):
            return "backfill"
        return None

    def _touches(self, xid: int, table: int) -> bool:
        return any(change.table == self.tables[table] for change in self.script.sent(xid - FIRST_XID))

    # --- a load's thread

    def _load(self, world: World, load: Load, table: int) -> Load | None:
        """What the thread does next; None: it waits."""
        end = self.script.written(world.source)
        if load.progress.reload:
            truncate = Chunk("truncate", (), world.source.snapshot(), end)
            return None if load.offered else load._replace(offered=truncate)
        if not load.through:
            return self._pass_barrier(world, load, table)
        if load.ahead or (load.offered and not self.scenario.ahead):
            return None
        progress = load.progress
        if load.offered:
            progress = progress.behind(
                last=load.offered.last, order=(), among=load.offered.among, scanned=load.offered.scanned
            )
        if progress.complete:
            return None
        chunk = self._chunk(world, progress, table, end)
        return load._replace(ahead=chunk) if load.offered else load._replace(offered=chunk)

    def _pass_barrier(self, world: World, load: Load, table: int) -> Load:
        assert world.connector is not None
        holders = self.script.holders(world.source, self.tables[table])
        delivered = {(e.identity.xid, e.identity.gid) for e in world.connector.bridge.prepared}
        blocking = load_life.blocking(holders, load.holders, resumed=load.resumed, delivered=delivered)
        return load._replace(holders=blocking, through=not blocking)

    def _chunk(self, world: World, progress: LoadProgress, table: int, end: Lsn) -> Chunk:
        rows = tuple((key, *row) for t, key, row in world.source.rows if t == self.tables[table])
        snapshot = world.source.snapshot()
        if self.merger.keyless[table]:
            return Chunk("whole", rows, snapshot, end, scanned=True)
        if progress.again:
            among = tuple(row for row in rows if row[0].encode() in progress.again)
            return Chunk("range", among, snapshot, end, among=progress.again)
        behind = [row for row in rows if progress.after is None or row[0].encode() > progress.after]
        last = behind[0][0].encode() if behind else None
        return Chunk("range", tuple(behind[:1]), snapshot, end, last, scanned=len(behind) < 2)

    # --- the stream

    def _read(self, world: World, connector: Connector) -> World:
        record = self.script.log[connector.place]
        read = world._replace(connector=connector._replace(place=connector.place + 1))
        match record.kind:
            case "T" if connector.bridge.is_applied(record.start):
                return self._step(read, events.Passed(record.end))
            case "T":
                read, rows = self._rows(read, record)
                return self._drained(self._step(self._queued(read, rows), events.PlainRead(1, len(rows), record.end)))
            case "P":
                count, reason = len(self.script.sent(record.number)), self.park_reason(connector, record.number)
                event = events.PrepareRead(record.identity, record.start, record.end, count, reason)
                return self._drained(self._step(read, event))
            case "K":
                read, _ = self._rows(read, record)
                return self._drained(
                    self._step(read, events.CommitPreparedRead(record.identity, record.start, record.end))
                )
            case _:
                return self._drained(self._step(read, events.RollbackPreparedRead(record.identity, record.end)))

    def _rows(self, world: World, record: Item) -> tuple[World, tuple[tuple[int, Row], ...]]:
        """The first row of a table pins it."""
        rows = self.merger.rows_of(record.identity.xid)
        for table in {table for table, _ in rows}:
            assert world.connector is not None
            if table not in world.connector.pinned:
                world = self._pin(world, table)
        return world, rows

    def _drained(self, world: World) -> World:
        return self._step(world, events.Drained())

    def _queued(self, world: World, *items: object) -> World:
        connector = world.connector
        assert connector is not None
        made = tuple(
            Produce(item) if isinstance(item, tuple) and not hasattr(item, "_fields") else item for item in items
        )
        return self.merger.rows_on_their_way(
            world._replace(connector=connector._replace(queue=(*connector.queue, *made)))
        )

    def _step(self, world: World, event: events.Event, commit: Commit | None = None) -> World:
        """`commit`: what the CommitChunk that follows is for."""
        assert world.connector is not None
        bridge, given = step(world.connector.bridge, event)
        bridge = bridge._replace(sequence=0)  # a key is read again any number of times
        world = world._replace(connector=world.connector._replace(bridge=bridge))
        for action in given:
            connector = world.connector
            assert connector is not None
            match action:
                case actions.Report(_, flush):
                    world = world._replace(confirmed=int(flush))
                case actions.Forget():
                    pass
                case actions.Refuse(what):
                    check(False, what)
                case actions.AppendStaged(identity):
                    world = self._queued(world, self.merger.rows_of(identity.xid))
                case actions.CommitMain() | actions.CommitOpenPrepared() | actions.CommitChunk():
                    on = world._replace(connector=connector._replace(unwritten=frozenset()))
                    made = commit if commit and isinstance(action, actions.CommitChunk) else Commit(action)
                    made = made._replace(action=action)
                    world = self._queued(on, made._replace(pins=connector.unwritten))
                case _:
                    world = self._queued(world, action)
        return world

    # --- the worker

    def _work(self, world: World) -> World:
        world, done = self.merger.carry_out(world)
        match done:
            case Commit(actions.CommitMain(_, applied_lsn) | actions.CommitChunk(_, applied_lsn)):
                event: events.Event = events.MainCommitted(applied_lsn)
            case Commit(actions.CommitOpenPrepared(identity, _, _, applied_lsn)):
                event = events.PreparedCommitted(identity, applied_lsn)
            case actions.OpenPrepared(identity):
                event = events.PreparedOpened(identity)
            case actions.AbortPrepared(identity):
                event = events.PreparedAborted(identity)
            case _:
                raise AssertionError(done)
        return self._step(self.merger.rows_on_their_way(world), event)

    def _due(self, world: World, connector: Connector) -> Iterator[World]:
        """As `Loading.due` does it: commands first, then a chunk that the stream has passed."""
        bridge = connector.bridge
        if bridge.unfinished or not bridge.caught_up:
            return
        commanded = [table for table, life in enumerate(connector.lives) if life.has_command]
        for table in commanded:
            sent, (order,) = self._stepped(connector, table, load_life.CommandDue())
            assert isinstance(order, ExecuteCommand)
            yield self._step(world._replace(connector=sent), events.ChunkDue(), _to_come(table, order))
        if commanded:
            return
        for table, load in enumerate(connector.loads):
            if load is None or load.given or load.offered is None or load.offered.end > bridge.read_lsn:
                continue
            start = NO_COMMAND
            given_out = connector._replace(loads=put(connector.loads, table, load._replace(given=True)))
            if load.offered.kind == "truncate":
                given_out, answer = self._stepped(given_out, table, load_life.TopicEmptied())
                start = next((a.number for a in answer if isinstance(a, load_life.ExecuteStart)), NO_COMMAND)
            commit = _to_come(table, load.offered, load.serial, start)
            yield self._step(world._replace(connector=given_out), events.ChunkDue(), commit)

    # --- a crash, and recovery

    def _crashed(self, world: World) -> World:
        return world._replace(connector=None, crashes=world.crashes - 1)

    def _recover(self, world: World) -> World:
        kafka = world.kafka
        for producer in (MAIN, 0):
            kafka = self.merger.ended(kafka, producer, commits=False)
        bridge = initial(
            applied_lsn=Lsn(kafka.applied_lsn),
            confirmed_lsn=Lsn(world.confirmed),
            sequence=0,
            pool=1,
            in_doubt=kafka.ledger,
            policy=self.scenario.policy,
        )
        count = len(self.tables)
        lives = tuple(
            load_life.step_load(LoadLife(), load_life.PinRead(pin.state, pin.progress))[0] if pin else LoadLife()
            for pin in kafka.pins
        )
        merger = tuple(Watched(_begun(pin, keyless=self.merger.keyless[table])) for table, pin in enumerate(kafka.pins))
        pinned = frozenset(table for table, pin in enumerate(kafka.pins) if pin)
        connector = Connector(
            bridge,
            world.confirmed // LENGTH,
            lives,
            (None,) * count,
            0,
            pinned,
            frozenset(),
            (),
            merger,
            (),
            (),
        )
        world = world._replace(kafka=kafka, connector=connector)
        pending = [each for each in kafka.asked if not _is_executed(kafka, each)]
        for _, table, what in pending:
            if what == "start":  # as `Pins.restart` does it
                world = self._pin(self._apply(world, table, load_life.TopicUnpinned()), table)
        for number, table, what in pending:
            world = self._apply(world, table, load_life.CommandGiven(LoadCommand(number, what)))
        return world

    # --- at rest

    def _check_done(self, world: World, connector: Connector) -> None:
        check(world.source.place == len(self.script.items), "stuck before the end of the script")
        check(world.given == len(self.scenario.commands), "a command is never given")
        pending = [each for each in world.kafka.asked if not _is_executed(world.kafka, each)]
        check(not pending, f"commands are never executed: {pending}")
        check(not connector.bridge.prepared and not connector.queue, "a transaction has not ended")
        for table, name in enumerate(self.tables):
            self._check_table(world, connector, table, name)

    def _check_table(self, world: World, connector: Connector, table: int, name: str) -> None:
        pin, topic = world.kafka.pins[table], world.kafka.topics[table]
        check(pin is not None, f"{name} has no topic")
        assert pin is not None
        asked = [what for who, what in self.scenario.commands if who == name]
        last = asked[-1] if asked else "start"
        check(not topic.tail, "a Kafka transaction is left open")
        refused = last == "cancel" and pin.progress.delayed  # the table is as it was before
        check(
            refused or pin.state in {"pause": {"paused", "ready"}}.get(last, {"ready"}),
            f"{name} is {pin.state} after {last}",
        )
        check(pin.state != "ready" or table not in world.kafka.owed, f"the topic of {name} was not emptied")
        check(connector.lives[table].in_backfill == (pin.state != "ready"), f"the halves of {name}'s life differ")
        wanted = tuple((key, *row) for t, key, row in world.source.rows if t == name)
        if "cancel" not in asked and pin.state == "ready":
            check(topic.folded.rows == wanted and not topic.folded.again, f"{name} is {topic.folded}, not {wanted}")
        elif self.merger.keyless[table] and "start" not in asked:
            missing = {row for row in wanted if row[1]} - {*topic.folded.rows}
            check(pin.state == "paused" or not missing, f"{name} has lost {missing}")


def world_length(model: LivesModel, world: World) -> int:
    return int(model.script.written(world.source)) // LENGTH


def put(values: tuple, table: int, value: object) -> tuple:  # type: ignore[type-arg]
    return (*values[:table], value, *values[table + 1 :])


def _begun(pin: TablePin | None, *, keyless: bool) -> topic_life.TopicLife:
    if pin is None or pin.state == "ready":
        return topic_life.TopicLife(keyless, executed=pin.executed if pin else NO_COMMAND)
    return topic_life.begin(pin.state, pin.progress.to_bytes(), pin.executed, keyless=keyless)


def _is_executed(kafka: Kafka, asked: tuple[int, int, str]) -> bool:
    number, table, _ = asked
    pin = kafka.pins[table]
    return pin is not None and number <= pin.executed


def _to_come(table: int, due: Chunk | ExecuteCommand, serial: int = -1, start: int = NO_COMMAND) -> Commit:
    """What the next CommitChunk is for."""
    return Commit(actions.CommitChunk(0, Lsn(0)), frozenset(), table, due, serial, start)
