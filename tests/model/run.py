"""A run as the model has it: the reader, the bridge and the worker between them. The product's own
bridge decides.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from model import gathering
from model.kafka import MAIN, Chunk, Item, Kafka, Sink, arrives, raised, settled
from model.logs import LENGTH, Record, Scenario, Violation, check
from model.recovery import Recovery
from model.worker import Worker
from model.world import Numbers, World, ended, stopped
from twofold.bridge import State, actions, events, step
from twofold.bridge.state import Phase
from twofold_common.positions import PreparedIdentity


class Model:
    """The worlds of one scenario."""

    def __init__(self, scenario: Scenario, recovery: type[Recovery] = Recovery) -> None:
        self.scenario = scenario
        self.log = scenario.log
        self.sink = Sink(self.log, scenario.second_line)
        self.worker = Worker(self.sink)
        self.end = self.log[-1].end
        self.states: Numbers[State] = Numbers()
        self.recovery = recovery(scenario, self.worker, self.states)
        self._rest: Numbers[Hashable] = Numbers()
        self._steps: dict[tuple[int, events.Event], tuple[int, tuple[actions.Action, ...]]] = {}

    def first(self) -> World:
        kafka = Kafka(0, (), 0, 0, frozenset(), (), frozenset(), frozenset())
        nothing: frozenset[PreparedIdentity] = frozenset()
        scenario = self.scenario
        return World(
            None,
            0,
            None,
            0,
            0,
            False,
            (),
            nothing,
            nothing,
            kafka,
            scenario.crashes,
            scenario.cuts,
            scenario.timeouts,
            scenario.parks,
            scenario.chunks,
            scenario.forecasts,
            (),
        )

    @property
    def met(self) -> set[type]:
        """The kinds of events and actions that have occurred."""
        return {type(event) for _, event in self._steps} | {
            type(each) for _, given in self._steps.values() for each in given
        }

    def pack(self, world: World) -> tuple[object, ...]:
        """The same in little space, to be remembered."""
        return (*world[:7], self._rest.number(world[7:]))

    def after(self, world: World) -> Iterator[World]:
        """Every world that can come next.

        None: it has come to rest, and everything must be done.
        """
        if world.bridge is None:
            yield from self.recovery.after(world)
            return
        rested, bridge = True, self.states[world.bridge]
        for following in self._live(world, bridge):
            if following != world:
                rested = False
                yield following
        if rested:
            self._check_done(world, bridge)
        yield from self._crash(world, bridge)

    # --- a run

    def _live(self, world: World, bridge: State) -> Iterator[World]:
        if world.place < len(self.log) and not bridge.must_wait:
            held = any(each.name == self.log[world.place].name for each in world.held)
            yield self._resolve(world) if held else self._read(world, bridge)
            yield from self._read_with_half_of_the_next(world, bridge)
            yield from self._hold(world, bridge)
        yield from self._announce(world)
        for event in self._due(bridge):
            yield self._step(world, event)
        if world.chunks and bridge.caught_up and not bridge.unfinished:
            yield self._step(world._replace(chunks=world.chunks - 1), events.ChunkDue())
        if world.parks:
            yield from self._park(world._replace(parks=world.parks - 1), bridge)
        if world.queue and not self.worker.is_waiting(world):
            yield from self._work(world)
        for following, chunk in self.worker.acknowledge(world):
            yield self._opened(following, chunk) if following else self.failed(world, int(bridge.flush))
        for end in world.kafka.late:
            yield world._replace(kafka=arrives(world.kafka, end))
        for producer in range(MAIN, self.scenario.pool if world.timeouts else MAIN):
            yield world._replace(kafka=raised(world.kafka, producer), timeouts=world.timeouts - 1)
        for chunk in world.kafka.tail:
            if chunk.status == "dead":  # noticed
                tail = tuple(c for c in world.kafka.tail if c is not chunk)
                yield self._step(
                    world._replace(kafka=settled(world.kafka._replace(tail=tail))),
                    events.PreparedAborted(self._owner(chunk)),
                )

    def _owner(self, chunk: Chunk) -> PreparedIdentity:
        return next(identity for identity, record in self.sink.prepare.items() if record.rows == chunk.rows)

    def _due(self, bridge: State) -> Iterator[events.Event]:
        yield events.Drained()
        if bridge.batch is None:
            yield events.IdleDue()
        if self.scenario.turns:
            yield events.TurnFull()
        for entry in bridge.prepared:
            yield events.OpenDue(entry.identity)

    def _park(self, world: World, bridge: State) -> Iterator[World]:
        for entry in bridge.prepared:
            accepted = world.accepted
            if entry.phase is Phase.STAGED:  # for a backfill: a rule, so PREPARE may return
                accepted |= {entry.identity}
            if entry.phase is not Phase.PARKED and entry.rows:
                yield self._step(world._replace(accepted=accepted), events.ParkDue(entry.identity, "held"))

    def _read(self, world: World, bridge: State) -> World:
        record = self.log[world.place]
        read = world._replace(place=world.place + 1, half=False)
        match record.kind:
            case "T" | "L" if bridge.is_applied(record.start):
                return self._step(read, events.Passed(record.end))
            case "M" if bridge.is_applied_upto(record.end):
                return self._step(read, events.Passed(record.end))
            case "T":
                return self._step(self._queued(read, record.rows), events.PlainRead(1, len(record.rows), record.end))
            case "L" if not world.half:
                return self._step(self._queued(world._replace(half=True), record.rows[:1]), events.PlainUnfinished())
            case "L":
                return self._step(
                    self._queued(read, record.rows[1:]), events.PlainRead(1, len(record.rows), record.end)
                )
            case "M":
                return self._step(self._queued(read, record.rows), events.MessageRead(record.end))
            case "W":
                return self._step(read, events.Passed(record.end))
            case "H":
                return read
            case "P" | "Q" | "E":
                return self._prepare(read, record)
            case "K" if self.sink.prepare[record.identity].kind == "H" and not world.half:
                return self._prepare(world._replace(half=True), self.sink.prepare[record.identity])
            case "K" | "X":
                return self._step(read, events.CommitPreparedRead(record.identity, record.start, record.end))
            case _:
                return self._step(read, events.RollbackPreparedRead(record.identity, record.end))

    def _read_with_half_of_the_next(self, world: World, bridge: State) -> Iterator[World]:
        """A plain transaction's end and a large one's beginning go to the main producer
        together.
        """
        record, *behind = self.log[world.place : world.place + 2]
        if record.kind not in "TL" or not behind or behind[0].kind != "L" or bridge.is_applied(record.start):
            return
        rows = (*record.rows[1 if world.half else 0 :], *behind[0].rows[:1])
        read = self._queued(world._replace(place=world.place + 1, half=True), rows)
        yield self._step(read, events.PlainRead(1, len(record.rows), record.end, unfinished=True))

    def _hold(self, world: World, bridge: State) -> Iterator[World]:
        """The prepare that is next is read, and nobody hears of it yet."""
        record = self.log[world.place]
        if self.scenario.holds and gathering.may_hold(bridge, record):
            yield self._told(world._replace(place=world.place + 1, held=(*world.held, record)))

    def _announce(self, world: World) -> Iterator[World]:
        if world.held:
            first, *others = world.held
            yield self._told(self._prepare(world._replace(held=tuple(others)), first))

    def _told(self, world: World) -> World:
        return self._step(world, gathering.unannounced(world.held))

    def _resolve(self, world: World) -> World:
        """An outcome of one that is held: its rows go to the main producer with it."""
        outcome, world = self.log[world.place], world._replace(place=world.place + 1)
        prepare = next(each for each in world.held if each.name == outcome.name)
        held = tuple(each for each in world.held if each is not prepare)
        queued = outcome.kind == "K" and prepare.rows
        world = self._queued(world, prepare.rows) if queued else world
        return self._told(self._step(world, gathering.resolved(prepare, outcome))._replace(held=held))

    def _prepare(self, world: World, record: Record) -> World:
        rule = "rule" if record.kind == "Q" else None
        if rule:
            world = world._replace(accepted=world.accepted | {record.identity})
        world = world._replace(spool=world.spool | {record.identity})
        return self._step(world, events.PrepareRead(record.identity, record.start, record.end, len(record.rows), rule))

    def _queued(self, world: World, rows: tuple[str, ...]) -> World:
        return world._replace(queue=(*world.queue, self.worker.items.number(rows)))

    def _step(self, world: World, event: events.Event) -> World:
        assert world.bridge is not None
        key = (world.bridge, event)
        if key not in self._steps:
            state, given = step(self.states[world.bridge], event)
            self._steps[key] = (self.states.number(state), given)
        bridge, given = self._steps[key]
        if not given and bridge == world.bridge:
            return self.worker.rows_on_their_way(world)
        queue = list(world.queue)
        for action in given:
            match action:
                case actions.Refuse(what):
                    raise Violation(f"refused: {what}")
                case actions.Report(write, flush):
                    self._check_report(world, write, flush)
                case _:
                    queue.append(self.worker.items.number(action))
        return self.worker.rows_on_their_way(world._replace(bridge=bridge, queue=tuple(queue)))

    def _check_report(self, world: World, write: int, flush: int) -> None:
        assert world.bridge is not None
        bridge = self.states[world.bridge]
        check(flush >= bridge.flush and write >= bridge.write, "a reported position moved back")
        check(
            flush <= world.kafka.applied_lsn,
            "flush beyond what a progress record says: a restart would find the slot ahead",
        )
        if not self.scenario.policy.synchronous:
            return
        for start, _rows in self.sink.expected[world.kafka.committed :]:
            check(write <= start, "write passes an outcome that Kafka has not accepted")
        for identity, record in self.sink.prepare.items():
            over = world.place > self.log.index(
                self.sink.outcome[identity]
            )  # nobody waits in a PREPARE whose outcome has come
            over = over or self.sink.outcome[identity].end <= world.kafka.applied_lsn
            settled = identity in world.accepted or not record.rows or over or record.kind == "H"
            check(settled or write <= record.start, "write passes a prepare that Kafka has not accepted")

    def _work(self, world: World) -> Iterator[World]:
        """Carry out the action at the head of the queue and take the answer; one that fails ends
        the run, and so does an end that may have been sent twice.
        """
        assert world.bridge is not None
        action, flush = self.worker.head(world), self.states[world.bridge].flush
        nothing = True
        for following, end in self.worker.foretell_wrong_ranges(world):
            uncertain = end is not None and self.sink.ends_the_epoch(end)
            yield stopped(following, flush) if uncertain else self.worker.rows_on_their_way(following)
        for following, end in self.worker.carry_out(world):
            nothing = False
            if end and self.sink.ends_the_epoch(end):
                yield stopped(following, flush)
            else:
                yield self.answered(following, action)
        if nothing:
            yield self.failed(world, flush)

    def failed(self, world: World, flush: int) -> World:
        """The rule: an action that fails ends the run, and nothing behind it is carried out."""
        return ended(world, flush)

    def _opened(self, world: World, chunk: Chunk) -> World:
        identity = self._owner(chunk)
        return self._step(world._replace(accepted=world.accepted | {identity}), events.PreparedOpened(identity))

    def answered(self, world: World, action: Item | None) -> World:
        match action:
            case actions.CommitMain(_, applied_lsn) | actions.CommitChunk(_, applied_lsn):
                return self._step(world, events.MainCommitted(applied_lsn))
            case actions.OpenPrepared():  # the answer comes when its rows are acknowledged
                return self.worker.rows_on_their_way(world)
            case actions.CommitOpenPrepared(identity, _, _, applied_lsn):
                return self._step(world, events.PreparedCommitted(identity, applied_lsn))
            case actions.AbortPrepared(identity):
                return self._step(world, events.PreparedAborted(identity))
            case _:
                raise AssertionError(action)

    def _crash(self, world: World, bridge: State) -> Iterator[World]:
        if world.crashes:
            flush = int(bridge.flush)
            for confirmed in {flush, max(0, flush - LENGTH), max(0, flush - 3 * LENGTH)}:
                yield ended(world._replace(crashes=world.crashes - 1), confirmed)

    # --- at rest

    def _check_done(self, world: World, bridge: State) -> None:
        """Nothing more will happen by itself: everything must have ended, and PostgreSQL may forget
        all of it.
        """
        check(world.place == len(self.log), "stuck before the end of the log")
        check(world.kafka.committed == len(self.sink.expected), "committed in the source, and not in Kafka")
        check(not world.kafka.tail, "a Kafka transaction is left open")
        check(
            not bridge.prepared and not bridge.slots_in_use and not bridge.unanswered and not bridge.batch,
            "a prepared transaction has not ended",
        )
        check(not world.kafka.ledger, "the ledger has one in doubt that has ended")
        check(not world.spool, "the spool keeps rows of one that has ended")
        check(bridge.flush == bridge.write == self.end, "PostgreSQL keeps its log for nothing")
