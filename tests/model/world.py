"""A small world around the product's own bridge: PostgreSQL's redelivery, Kafka's transactions, the sink's worker, crashes.

A world is an immutable tuple, so that `explore` can visit every one that can be reached. What is modelled, and why so:

- PostgreSQL's log is a list of records that share their boundaries. A session gets every record that starts at or after the confirmed position. After a crash that
  is anything up to what was reported last: feedback may be lost, and a server that crashes forgets positions it had not yet written down.
- Kafka is one partition. A transaction's rows are a chunk in it: open, committed or (then it is gone) aborted. What is committed before the first open chunk is only counted.
- The worker carries actions out one by one and answers at once; a slow answer and a slow worker look the same to the bridge. A crash leaves the worker as a zombie that may
  go on with its queue, unheard, until it is fenced: that is the kill -9 before or after an action, the commit with an unknown outcome and the stopped process in one.
- Kafka may abort an open prepared transaction by itself; the worker notices later, or not before it is told to commit.

Every promise is an assertion at the place where it could be broken: Violation.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, NamedTuple, TypeVar

from model.kafka import Chunk, Item, Kafka, Sink, fenced, replaced, settled
from model.logs import LENGTH, Record, Scenario, Violation, check
from twofold.bridge import State, actions, events, initial, step
from twofold.bridge.state import Phase
from twofold.positions import Lsn, PreparedIdentity

T = TypeVar("T", bound=Hashable)


class World(NamedTuple):
    """`bridge` is the bridge's state while a run lasts (its number: see Numbers); else `stage` of recovery is next. `saved` is the progress that recovery has read."""

    bridge: int | None
    stage: int
    saved: tuple[int, int, frozenset[PreparedIdentity]] | None
    confirmed: int
    place: int  # next record to be read
    half: bool  # the record there is half read
    queue: tuple[int, ...]  # the worker's Items, as numbers
    spool: frozenset[PreparedIdentity]
    accepted: frozenset[PreparedIdentity]  # prepares that Kafka has taken in this run, or that a rule parked
    kafka: Kafka
    crashes: int
    timeouts: int
    parks: int
    chunks: int


class Numbers(Generic[T]):
    """Values that are kept once and passed as small numbers, which hash fast."""

    def __init__(self) -> None:
        self._numbers: dict[T, int] = {}
        self._values: list[T] = []

    def number(self, value: T) -> int:
        known = self._numbers.setdefault(value, len(self._values))
        if known == len(self._values):
            self._values.append(value)
        return known

    def __getitem__(self, number: int) -> T:
        return self._values[number]


class Model:
    """The worlds of one scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.log = scenario.log
        self.sink = Sink(self.log)
        self.end = self.log[-1].end
        self.states: Numbers[State] = Numbers()
        self.items: Numbers[Item] = Numbers()
        self._rest: Numbers[Hashable] = Numbers()
        self._steps: dict[tuple[int, events.Event], tuple[int, tuple[actions.Action, ...]]] = {}

    def first(self) -> World:
        kafka = Kafka(0, (), 0, 0, frozenset(), ())
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
            scenario.timeouts,
            scenario.parks,
            scenario.chunks,
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
        """Every world that can come next. None: it has come to rest, and everything must be done."""
        if world.bridge is None:
            yield from self._recover(world)
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
            yield self._read(world, bridge)
            yield from self._read_with_half_of_the_next(world, bridge)
        for event in self._due(bridge):
            yield self._step(world, event)
        if world.chunks and bridge.caught_up and not bridge.unfinished:
            yield self._step(world._replace(chunks=world.chunks - 1), events.ChunkDue())
        if world.parks:
            yield from self._park(world._replace(parks=world.parks - 1), bridge)
        if world.queue:
            yield self._work(world)
        for n, chunk in enumerate(world.kafka.tail):
            if chunk.producer >= 0 and chunk.status == "open" and world.timeouts:
                tail = replaced(world.kafka.tail, n, chunk._replace(status="dead"))
                yield world._replace(kafka=world.kafka._replace(tail=tail), timeouts=world.timeouts - 1)
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
        if bridge.group is None:
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
            case "T" | "L" if bridge.skips(record.start):
                return self._step(read, events.Passed(record.end))
            case "M" if bridge.has(record.end):
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
        """A plain transaction's end and a large one's beginning go to the main producer together."""
        record, *behind = self.log[world.place : world.place + 2]
        if record.kind not in "TL" or not behind or behind[0].kind != "L" or bridge.skips(record.start):
            return
        rows = (*record.rows[1 if world.half else 0 :], *behind[0].rows[:1])
        read = self._queued(world._replace(place=world.place + 1, half=True), rows)
        yield self._step(read, events.PlainRead(1, len(record.rows), record.end, unfinished=True))

    def _prepare(self, world: World, record: Record) -> World:
        rule = "rule" if record.kind == "Q" else None
        if rule:
            world = world._replace(accepted=world.accepted | {record.identity})
        world = world._replace(spool=world.spool | {record.identity})
        return self._step(world, events.PrepareRead(record.identity, record.start, record.end, len(record.rows), rule))

    def _queued(self, world: World, rows: tuple[str, ...]) -> World:
        return world._replace(queue=(*world.queue, self.items.number(rows)))

    def _step(self, world: World, event: events.Event) -> World:
        assert world.bridge is not None
        key = (world.bridge, event)
        if key not in self._steps:
            state, given = step(self.states[world.bridge], event)
            self._steps[key] = (self.states.number(state), given)
        bridge, given = self._steps[key]
        if not given and bridge == world.bridge:
            return self._rows_on_their_way(world)
        queue = list(world.queue)
        for action in given:
            match action:
                case actions.Refuse(what):
                    raise Violation(f"refused: {what}")
                case actions.Report(write, flush):
                    self._check_report(world, write, flush)
                case _:
                    queue.append(self.items.number(action))
        return self._rows_on_their_way(world._replace(bridge=bridge, queue=tuple(queue)))

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

    # --- the worker

    def _rows_on_their_way(self, world: World) -> World:
        """Carry out at once what cannot be told from carrying it out later: all but what has an answer."""
        kafka, spool, queue = world.kafka, world.spool, world.queue
        while queue:
            match self.items[queue[0]]:
                case tuple() as rows:
                    kafka = self.sink.produce(kafka, rows)
                case actions.AppendStaged(identity):
                    check(identity in spool, "the spool no longer has the rows")
                    kafka, spool = self.sink.produce(kafka, self.sink.prepare[identity].rows), spool - {identity}
                case actions.NoteInDoubt(identity, state):
                    check(identity in spool, "the ledger is told of one that the spool has dropped")
                    kafka = kafka._replace(noted=(*kafka.noted, (identity, state)))
                case actions.Forget(identity):
                    spool -= {identity}
                case _:
                    break
            queue = queue[1:]
        if queue is world.queue:
            return world
        return world._replace(kafka=kafka, spool=spool, queue=queue)

    def _work(self, world: World) -> World:
        """Carry out the action at the head of the queue and take the answer; one that fails ends the run."""
        assert world.bridge is not None
        action = self.items[world.queue[0]]
        kafka = self.sink.carry_out(world.kafka, action, world.spool)
        if kafka is None:
            return ended(world, self.states[world.bridge].flush)
        world = world._replace(kafka=kafka, queue=world.queue[1:])
        match action:
            case actions.CommitMain(_, applied_lsn) | actions.CommitChunk(_, applied_lsn):
                return self._step(world, events.MainCommitted(applied_lsn))
            case actions.OpenPrepared(identity):
                return self._step(world._replace(accepted=world.accepted | {identity}), events.PreparedOpened(identity))
            case actions.CommitPrepared(identity, _, _, applied_lsn):
                return self._step(world, events.PreparedCommitted(identity, applied_lsn))
            case actions.AbortPrepared(identity):
                return self._step(world, events.PreparedAborted(identity))
            case _:
                raise AssertionError(action)

    # --- crashes and recovery

    def _crash(self, world: World, bridge: State) -> Iterator[World]:
        if world.crashes:
            flush = int(bridge.flush)
            for confirmed in {flush, max(0, flush - LENGTH), max(0, flush - 3 * LENGTH)}:
                yield ended(world._replace(crashes=world.crashes - 1), confirmed)

    def _recover(self, world: World) -> Iterator[World]:
        yield from self._zombie(world)
        kafka, stage = world.kafka, self.scenario.recovery[world.stage]
        on = world._replace(stage=world.stage + 1)
        if stage == "fence main":
            on = on._replace(kafka=fenced(kafka, -1)._replace(noted=()))
        elif stage == "fence pool":
            on = on._replace(kafka=fenced(kafka, *range(self.scenario.pool)), queue=())
        else:
            on = on._replace(saved=(kafka.applied_lsn, kafka.sequence, kafka.ledger))
        if on.stage == len(self.scenario.recovery):
            assert on.saved is not None
            applied_lsn, sequence, ledger = on.saved
            check(on.confirmed <= applied_lsn, "the slot is ahead of the progress")
            bridge = initial(
                applied_lsn=Lsn(applied_lsn),
                confirmed_lsn=Lsn(on.confirmed),
                sequence=sequence,
                pool=self.scenario.pool,
                in_doubt=ledger,
                policy=self.scenario.policy,
            )
            place = sum(record.start < on.confirmed for record in self.log)
            on = on._replace(
                bridge=self.states.number(bridge), stage=0, saved=None, place=place, queue=(), spool=frozenset()
            )
        yield on

    def _zombie(self, world: World) -> Iterator[World]:
        """The old worker goes on, until it meets a fence."""
        if not world.queue:
            return
        main_is_fenced = "fence main" in self.scenario.recovery[: world.stage]
        action = self.items[world.queue[0]]
        if main_is_fenced and not isinstance(
            action, actions.CommitPrepared | actions.AbortPrepared | actions.OpenPrepared
        ):
            return
        kafka = self.sink.carry_out(world.kafka, action, world.spool)
        if kafka is None:
            return
        world = world._replace(kafka=kafka, queue=world.queue[1:])
        yield world if main_is_fenced else self._rows_on_their_way(world)

    # --- at rest

    def _check_done(self, world: World, bridge: State) -> None:
        """Nothing more will happen by itself: everything must have ended, and PostgreSQL may forget all of it."""
        check(world.place == len(self.log), "stuck before the end of the log")
        check(world.kafka.committed == len(self.sink.expected), "committed in the source, and not in Kafka")
        check(not world.kafka.tail, "a Kafka transaction is left open")
        check(
            not bridge.prepared and not bridge.held and not bridge.in_flight and not bridge.group,
            "a prepared transaction has not ended",
        )
        check(not world.kafka.ledger, "the ledger has one in doubt that has ended")
        check(not world.spool, "the spool keeps rows of one that has ended")
        check(bridge.flush == bridge.write == self.end, "PostgreSQL keeps its log for nothing")


def ended(world: World, confirmed: int) -> World:
    """The run is over: all of its memory is gone, its worker goes on as a zombie with what is in its queue."""
    nothing: frozenset[PreparedIdentity] = frozenset()
    return world._replace(bridge=None, stage=0, confirmed=confirmed, place=0, half=False, accepted=nothing)
