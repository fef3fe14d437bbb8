"""A small world of several sources around the product's own rules: the bridge that writes
frontiers, and the choice of the greatest global cut.

A coordinator prepares the branches of global transactions in any order, and ends them in any order.
Each source has a log that its connector reads at its own pace, a Kafka with commit records, and
crashes: the worker of a crashed connector goes on as a zombie until its successor fences it. What
is not confirmed comes again. People change the patterns of gids; a connector has them when it is
started again. Tables are loaded, and more join (`group_loads`). The mirror reads
frontiers, then commit records, and may read less than there is.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from model.group_loads import ChunkRead, CommitRecord, Tables
from model.logs import LENGTH, Violation, check
from twofold.bridge import State, actions, events, frontier, initial, step
from twofold.bridge.events import NO_PREPARE
from twofold_common import gids, global_cut
from twofold_common.gids import parser
from twofold_common.global_cut import CommittedBranch, Frontier, Load, Member
from twofold_common.global_loads import Loads
from twofold_common.positions import NO_LSN, Lsn, PreparedIdentity

POOL = 2
PATTERNS = ((r"(?P<global>g\d+)/(?P<branch>\d+)",), (r"g(?P<global>\d+)/(?P<branch>\d+)",))
"""Two ways to name the same global transactions."""


class Entry(NamedTuple):
    """A record of a source's log.

    Kinds: T plain, P prepare, E prepare of one without rows, U of one that wrote a table that is
    not published yet, N of one that is not in the stream, H prepare before two_phase_at, K commit
    prepared, R rollback prepared.
    """

    kind: str
    identity: PreparedIdentity
    start: Lsn

    @property
    def end(self) -> Lsn:
        return Lsn(self.start + LENGTH)


PLAIN = PreparedIdentity(0, "")


@dataclass
class Kafka:
    """What survives a connector."""

    commits: list[CommitRecord] = field(default_factory=list)
    applied_lsn: Lsn = NO_LSN
    frontiers: list[Frontier] = field(default_factory=list)
    epoch: int = 0
    stream_id: str = "first"


class Worker:
    """The queue of one connector, and its main producer's open transaction."""

    def __init__(self, source: Source, epoch: int) -> None:
        self.source, self.epoch, self.patterns = source, epoch, source.world.patterns
        self.queue: deque[actions.Action | str | ChunkRead] = deque()
        """With rows that go to the main producer: the gid of their branch, if they are of one."""
        self.branches: list[str] = []
        self.chunk: ChunkRead | None = None
        self.frontier: Frontier | None = None

    def work(self) -> events.Event | None:  # noqa: C901  (one flat dispatch)
        """Carry out the next action; return its answer."""
        action, kafka = self.queue.popleft(), self.source.kafka
        match action:
            case str(gid):
                self.branches += [gid] if gid else []
            case ChunkRead():
                self.chunk = action
            case actions.CommitChunk(sequence, applied_lsn):
                if self.fenced:
                    return None
                kafka.commits.append(self.source.record_chunk(self.chunk))
                check(sequence == len(kafka.commits), "the sequence is not dense")
                return events.MainCommitted(applied_lsn)
            case actions.AppendStaged(identity):
                self.branches.append(identity.gid)
            case actions.WriteFrontier(sequence, _, seen, in_doubt):
                named = ((each.gid, parser(self.patterns)(each.gid).global_id or "") for each in in_doubt)
                doubts = {name: (gid,) for gid, name in named}
                numbers = {each.prefix: each.sequence for each in seen}
                streams = {each.prefix: each.stream_id for each in seen}
                self.frontier = Frontier(sequence, numbers, doubts, streams=streams, gid_patterns=self.patterns)
                self.source.world.frontier_given_out(self)
            case actions.CommitMain(sequence, applied_lsn, _, rows):
                branches, self.branches = tuple(self.branches), []
                written, self.frontier = self.frontier, None
                if self.fenced:
                    return None
                check(applied_lsn >= kafka.applied_lsn, "progress moved back")
                if rows:
                    kafka.commits.append(CommitRecord(branches, patterns=self.patterns))
                check(sequence == len(kafka.commits), "the sequence is not dense")
                kafka.applied_lsn = applied_lsn
                if written is not None:
                    kafka.frontiers.append(written)
                return events.MainCommitted(applied_lsn)
            case actions.OpenPrepared(identity):
                return events.PreparedOpened(identity)
            case actions.CommitOpenPrepared(identity, _, sequence, applied_lsn):
                if self.fenced:
                    return None
                kafka.commits.append(CommitRecord((identity.gid,), patterns=self.patterns))
                check(sequence == len(kafka.commits), "the sequence is not dense")
                kafka.applied_lsn = applied_lsn
                return events.PreparedCommitted(identity, applied_lsn)
            case actions.AbortPrepared(identity):
                return events.PreparedAborted(identity)
            case _:
                pass
        return None

    @property
    def fenced(self) -> bool:
        return self.epoch != self.source.kafka.epoch


class Source:
    """A database, its Kafka topics and its connector."""

    def __init__(self, world: GroupWorld, name: str) -> None:
        self.world, self.name = world, name
        self.log: list[Entry] = []
        self.prepared: dict[str, PreparedIdentity] = {}
        """What pg_prepared_xacts lists, by gid."""
        self.early: set[str] = set()
        """Prepared before the slot's two_phase_at."""
        self.untraced: set[str] = set()
        """They only read: the stream has nothing of them."""
        self.kafka = Kafka()
        self.state: State | None = None
        self.worker = Worker(self, 0)
        self.zombie: Worker | None = None
        self.confirmed = NO_LSN
        self.place = 0
        self.held: dict[PreparedIdentity, Entry] = {}
        """Read, and not announced to the bridge."""
        self.told = NO_PREPARE
        self.answers: dict[str, object] = {}
        self.reached: dict[str, int] | None = None
        """How far the members were visible when the last frontier of this run was asked for."""
        self.started = False
        """The slot has its two_phase_at: what was prepared before comes whole at its outcome."""
        self.tables = Tables()
        self.chunk: tuple[ChunkRead, Lsn] | None = None
        """Read, with the end of the WAL, and not handed over."""
        self.handed_over = False

    @property
    def end_lsn(self) -> Lsn:
        return Lsn(len(self.log) * LENGTH)

    @property
    def visible(self) -> events.MemberSeen:
        """How far its commit records are visible."""
        return events.MemberSeen(self.name, len(self.kafka.commits), self.kafka.stream_id)

    def append(self, kind: str, gid: str = "") -> None:
        """Write a record, as the database does."""
        if kind == "P" and not self.started:
            kind = "H"
            self.early.add(gid)
        if kind == "N":
            self.untraced.add(gid)
        if kind == "U":
            self.tables.add_unpublished(gid)
        if kind in "PEUNH":
            self.prepared[gid] = PreparedIdentity(len(self.log) + 1, gid)
        identity = self.prepared[gid] if gid else PLAIN
        self.log.append(Entry(kind, identity, self.end_lsn))
        if kind == "K":
            self.tables.committed.add(gid)
        if kind in "KR":
            del self.prepared[gid]

    def recover(self, confirmed: Lsn) -> None:
        """Fence, read the progress, begin; for the first time where the log ends."""
        if not self.started:
            self.started, confirmed = True, self.end_lsn
            self.tables.begin(self.world.random.random())
            self.kafka.applied_lsn = self.confirmed = confirmed
        self.kafka.epoch += 1
        self.worker = Worker(self, self.kafka.epoch)
        self.answers, self.held, self.told = {}, {}, NO_PREPARE
        self.reached, self.chunk, self.handed_over = None, None, False
        self.place = next((n for n, each in enumerate(self.log) if each.start >= confirmed), len(self.log))
        self.state = initial(
            applied_lsn=self.kafka.applied_lsn, confirmed_lsn=confirmed, sequence=len(self.kafka.commits), pool=POOL
        )

    def crash(self, back: int) -> None:
        assert self.state is not None
        self.confirmed = Lsn(max(0, self.state.flush - back * LENGTH))
        self.state, self.zombie = None, self.worker

    def take(self, event: events.Event) -> None:
        assert self.state is not None
        self.state, given = step(self.state, event)
        for action in given:
            check(not isinstance(action, actions.Refuse), f"refused: {action}")
            if not isinstance(action, actions.Report):
                self.worker.queue.append(action)

    def read(self) -> None:
        """Read the next record of the log, as the stream brings it."""
        state = self.state
        if state is None or state.must_wait or self.place == len(self.log):
            return
        entry = self.log[self.place]
        self.place += 1
        match entry.kind:
            case "P" if not state.is_applied(entry.start) and self.world.random.random() < 0.5:
                self.held[entry.identity] = entry
                self._tell_unannounced()
            case "K" if entry.identity in self.held:
                held = self.held.pop(entry.identity)
                self.worker.queue.append(entry.identity.gid)
                self.take(events.PlainRead(1, 1, entry.end, oldest_prepare=held.start, committed=1))
                self._tell_unannounced()
            case "R" if entry.identity in self.held:
                held = self.held.pop(entry.identity)
                self.take(events.PlainRead(0, 0, entry.end, oldest_prepare=held.start, rolled_back=1))
                self._tell_unannounced()
            case "T" if state.is_applied(entry.start):
                self.take(events.Passed(entry.end))
            case "T":
                self.worker.queue.append("")
                self.take(events.PlainRead(1, 1, entry.end))
            case "P" | "E" | "U":
                self.take(events.PrepareRead(entry.identity, entry.start, entry.end, int(entry.kind == "P")))
            case "K" | "R" if entry.identity.gid in self.untraced:
                self.take(events.Passed(entry.end))
            case "K":
                if entry.identity.gid in self.early:
                    early = next(each for each in self.log if each.identity == entry.identity)
                    self.take(events.PrepareRead(early.identity, early.start, early.end, 1))
                self.take(events.CommitPreparedRead(entry.identity, entry.start, entry.end))
            case "R":
                self.take(events.RollbackPreparedRead(entry.identity, entry.end))
            case _:  # one before two_phase_at, or one that only read: nothing comes
                self.take(events.Passed(entry.end))

    def announce(self) -> None:
        """Announce the oldest that is held."""
        if self.held and self.state is not None:
            entry = self.held.pop(next(iter(self.held)))
            self.take(events.PrepareRead(entry.identity, entry.start, entry.end, 1))
            self._tell_unannounced()

    def _tell_unannounced(self) -> None:
        oldest = next((each.start for each in self.held.values()), NO_PREPARE)
        if oldest != self.told:
            self.told = oldest
            self.take(events.Unannounced(oldest))

    def work(self) -> None:
        if self.worker.queue and self.state is not None and (answer := self.worker.work()):
            self.take(answer)

    def load(self) -> None:
        """Read the table that is due; then hand it over, when the stream has passed its end."""
        state = self.state
        if state is None:
            return
        if self.chunk is None:
            table = self.tables.due(self.kafka.commits)
            if not self.handed_over and table is not None and self.tables.may_read(table, {*self.prepared}, self.early):
                self.chunk = self.tables.read(table), self.end_lsn
        elif state.caught_up and state.read_lsn >= self.chunk[1] and not state.must_wait:
            self.worker.queue.append(self.chunk[0])
            self.chunk, self.handed_over = None, True
            self.take(events.ChunkDue())

    def needs_frontier(self) -> bool:
        if self.state is None:
            return False
        find_last = len if self.world.has_leisure else _last_that_matters
        last = {each.name: find_last(each.kafka.commits) for each in self.world.sources}
        return frontier.is_needed(last, self.reached, self.state.named, {*self.prepared.values()})

    def record_chunk(self, chunk: ChunkRead | None) -> CommitRecord:
        """Return the commit record of a chunk, which has the whole of a table."""
        return CommitRecord((), chunk)

    def ask(self) -> None:
        """Answer the next question of a frontier; behind the last, it is asked for."""
        if self.state is None:
            return
        left = [question for question in frontier.ORDER if question not in self.answers]
        if left:
            self.answers[left[0]] = self._answer(left[0])
        elif self.state.asked is None:
            answers, self.answers = self.answers, {}
            self.take(events.FrontierAsked(**answers))  # type: ignore[arg-type]

    def _answer(self, question: str) -> object:
        match question:
            case "seen":
                self.reached = {each.name: len(each.kafka.commits) for each in self.world.sources}
                others = (each for each in self.world.sources if each is not self)
                return tuple(each.visible for each in others)
            case "listed":
                return frozenset(self.prepared.values())
            case _:
                return self.end_lsn


def _last_that_matters(records: Sequence[CommitRecord]) -> int:
    """The last commit record that has a branch or ends a load; 0 if none does."""
    return max((n for n, each in enumerate(records, 1) if each.gids or each.load), default=0)


def global_id(gid: str) -> str:
    return gid.partition("/")[0]


class GroupWorld:
    """One random history."""

    has_leisure = False
    """At the end a frontier is needed behind plain transactions too. Nobody waits for that one
    where members do not change.
    """
    has_quick_coordinators = True
    """Some prepare and end branches while a frontier is asked for, or while a connector is down."""
    outside_transactions = False
    """A frontier is readable as soon as it is given out, even that of a fenced connector."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._step_random = random.Random(f"{seed} steps")
        """Of its own, so that most histories are the same with steps and without."""
        self._takes_steps = False
        self._has_new_patterns = seed % 4 == 3
        """Patterns change. It costs restarts, which other rare histories have no room for."""
        self._pattern_random = random.Random(f"{seed} patterns")
        self.patterns = PATTERNS[0]
        """Those of every configuration file, since people changed them last."""
        self.sources: list[Source] = []
        self.sources += (self.make_source(f"s{n}") for n in range(self.random.choice([2, 2, 3, 4])))
        self.branches: dict[str, list[tuple[Source, str]]] = {}
        """Of every global transaction, what has rows."""
        self.rolled_back: set[str] = set()
        self._phases: dict[str, list[tuple[Source, str, str]]] = {}
        self._cut = {each.name: 0 for each in self.sources}
        self._pace = self.random.choice([0.03, 0.06, 0.12, 0.24])
        """How much the coordinator does, beside the connectors."""
        self._read_last = {each.name: 0 for each in self.sources}
        """How many frontiers a reader has read of each: it never reads an older one."""
        self._loads = Loads()
        self.cuts = 0
        self.loads_shown = 0

    def make_source(self, name: str) -> Source:
        return Source(self, name)

    def frontier_given_out(self, worker: Worker) -> None:
        if self.outside_transactions and worker.frontier is not None:
            worker.source.kafka.frontiers.append(worker.frontier)

    def run(self) -> None:
        """Any steps in any order, then whatever is left; every cut is checked."""
        for _ in range(self.random.randint(0, 60)):
            self._any_transaction(self.random.random())
        for _ in range(self.random.randint(100, 800)):
            self.any_step()
        self.finish()

    def any_step(self) -> None:
        self._maybe_change_patterns()
        rnd, at = self.random, self.random.random()
        source = rnd.choice(self.sources)
        if at < self._pace:
            self._any_transaction(at / self._pace)
        elif at < 0.42:
            source.read()
        elif at < 0.59:
            source.work()
        elif at < 0.66:
            source.load()
        elif at < 0.80:
            source.ask()
            if self.has_quick_coordinators and source.answers and rnd.random() < 0.1:
                self._hurry(source)
        elif at < 0.90:
            self._event(source)
        elif at < 0.91 or source.state is None:
            self._crash(source)
        elif at < 0.93:
            if source.zombie and source.zombie.queue:
                source.zombie.work()
        elif at < 0.96:
            self._catch_up(source)
        else:
            self._look(partly=True)

    def _catch_up(self, source: Source) -> None:
        """Many steps at once: an idle source, and its frontier."""
        self._drain(source)
        source.load()
        if self.random.random() < 0.7:
            self._write_frontier(source)

    def _write_frontier(self, source: Source) -> None:
        for _ in range(len(frontier.ORDER) + 1):
            source.ask()
        self._drain(source)

    def finish(self) -> None:
        """End every global transaction; then all is shown, by the frontiers that are needed."""
        self._stop_those_with_old_patterns()
        for g in list(self._phases):
            while g in self._phases:
                self._advance(g)
        for _ in range(10):
            for source in self.sources:
                if source.state is None:
                    source.recover(source.confirmed)
                self._drain(source)
            for source in self.sources:
                for _ in range(8):
                    source.load()
                    self._drain(source)
            for source in self.sources:
                if source.needs_frontier() or source.answers:
                    self._write_frontier(source)
        self._look(partly=False)
        self._check_all_shown()

    def _check_all_shown(self) -> None:
        for source in self.sources:
            check(self._cut[source.name] == len(source.kafka.commits), "held back, and nothing is in doubt")

    def _stop_those_with_old_patterns(self) -> None:
        for source in self.sources:
            if source.state is not None and source.worker.patterns != self.patterns:
                source.crash(0)

    def _maybe_change_patterns(self) -> None:
        """Change them now and then, mostly while a load waits. Start some of the connectors again,
        or all, which then bring what there is.
        """
        rnd = self._pattern_random
        if not self._has_new_patterns or rnd.random() > (0.05 if self._loads.find_reasons() else 0.005):
            return
        restarted = rnd.choice([0.3, 1.0])
        self.patterns = PATTERNS[self.patterns == PATTERNS[0]]
        for source in self.sources:
            if source.state is not None and rnd.random() < restarted:
                source.crash(0)
            if source.state is None and restarted == 1:
                source.recover(source.confirmed)
                self._drain(source)
                self._write_frontier(source)

    def _drain(self, source: Source) -> None:
        if source.state is None:
            return
        while source.place < len(source.log) or source.worker.queue:
            source.read()
            while source.held:
                source.announce()
            source.take(events.Drained())
            while source.worker.queue:
                source.work()

    def _any_transaction(self, at: float) -> None:
        """Begin a global transaction, a plain one, or do what comes next in one."""
        if at < 0.2:
            self._begin()
        elif at < 0.34:
            self.random.choice(self.sources).append("T")
        elif at < 0.4:
            source = self.random.choice(self.sources)
            source.tables.joined += source.started  # ALTER PUBLICATION ... ADD TABLE
        elif self._phases:
            self._advance(self.random.choice(list(self._phases)))

    def _begin(self) -> None:
        rnd, g = self.random, f"g{len(self.branches)}"
        places = rnd.sample(self.sources, rnd.randint(1, len(self.sources)))
        if rnd.random() < 0.15:
            places.append(places[0])  # two branches in one source
        phase = [(source, rnd.choice("PPPPPPPEUUUUN"), f"{g}/{n}") for n, source in enumerate(places)]
        self._phases[g] = phase
        self.branches[g] = [(source, gid) for source, kind, gid in phase if kind not in "EN"]

    def _hurry(self, source: Source) -> None:
        """Prepare two branches in one source and end one of them, faster than its connector sees
        any of that.
        """
        g = f"g{len(self.branches)}"
        gids = [f"{g}/{n}" for n in range(2)]
        self._phases[g] = [(source, "P", gid) for gid in gids]
        self.branches[g] = [(source, gid) for gid in gids]
        for _ in range(3):
            self._advance(g)

    def _advance(self, g: str) -> None:
        """Prepare a branch or end one; behind the last prepare, decide."""
        phase = self._phases[g]
        source, kind, gid = phase.pop(self.random.randrange(len(phase)))
        source.append(kind, gid)
        if phase:
            return
        if kind in "KR":
            del self._phases[g]
            return
        outcome = "K" if self.random.random() < 0.85 else "R"
        if outcome == "R":
            self.rolled_back.add(g)
        gids = [(each, gid) for each in self.sources for gid in each.prepared if global_id(gid) == g]
        phase.extend((each, outcome, gid) for each, gid in gids)

    def _event(self, source: Source) -> None:
        """What time and a busy socket bring."""
        state, rnd = source.state, self.random
        if state is None:
            return
        if rnd.random() < 0.3:
            source.announce()
            return
        prepared = [each.identity for each in state.prepared]
        choice: list[events.Event] = [events.Drained(), events.TurnFull(), events.IdleDue()]
        choice += map(events.OpenDue, prepared)
        choice += (events.ParkDue(each.identity, "held") for each in state.prepared if each.rows)
        source.take(rnd.choice(choice))

    def _crash(self, source: Source) -> None:
        if source.state is not None:
            source.crash(self.random.choice([0, 0, 1, 3]))
            if self.has_quick_coordinators and self.random.random() < 0.3:
                self._hurry(source)
        else:
            source.recover(source.confirmed)

    def _look(self, *, partly: bool) -> None:
        """Read frontiers, then commit records; choose a cut, and check it."""
        self._takes_steps = partly and self._step_random.random() < 0.3
        chosen = self._choose(self._read_members(partly=partly))
        for source in self.sources:
            check(self._cut[source.name] <= chosen[source.name], "a cut moved back")
        self.cuts += chosen != self._cut
        self._note_loads(self._cut, chosen)
        self._cut = chosen
        self._check_whole(chosen)

    def _read_members(self, *, partly: bool) -> dict[str, Member]:
        rnd, members = self.random, {}
        read = {}
        for source in self.sources:
            mine = source.kafka.frontiers
            back = rnd.choice([1, 1, 1, 2, 3]) if partly else 1
            last = self._read_last[source.name] = max(self._read_last[source.name], len(mine) - back + 1)
            read[source.name] = mine[last - 1] if last > 0 else None
        for source in self.sources:
            seen, there = read[source.name], len(source.kafka.commits)
            cut = self._cut[source.name]
            least = min(there, max(cut, seen.sequence if seen else 0))
            known = rnd.randint(least, there) if partly else there
            members[source.name] = make_member(source, cut, known, seen)
        return members

    def _choose(self, members: dict[str, Member]) -> dict[str, int]:
        """Choose as the mirror does."""
        loads = self._loads.follow(members)
        whole = global_cut.greatest_cut(members, loads)
        return self._choose_step(members, loads, whole) if self._takes_steps else whole

    def _note_loads(self, before: Mapping[str, int], now: Mapping[str, int]) -> None:
        for source in self.sources:
            records = source.kafka.commits[before.get(source.name, 0) : now.get(source.name, 0)]
            self.loads_shown += sum(each.load is not None for each in records)

    def _choose_step(self, members: dict[str, Member], loads: list[Load], whole: dict[str, int]) -> dict[str, int]:
        """Choose as the mirror does for a sink whose one transaction has a few commit records."""

        def find_limits(factor: int) -> dict[str, int]:
            return {name: each.cut + self._step_random.randint(1, 3) * factor for name, each in members.items()}

        step = global_cut.greatest_step(members, loads, whole, find_limits)
        stays = {name: each.cut for name, each in members.items()}
        check(step != stays or whole == stays, "a step stays where the cut is")
        check(all(step[name] <= cut for name, cut in whole.items()), "a step goes further than the cut")
        return step

    def _check_whole(self, cut: Mapping[str, int]) -> None:
        """No transaction has a part of its branches in the tables of the cut."""
        self._check_records({name: self._source(name).kafka.commits[:shown] for name, shown in cut.items()})

    def _source(self, name: str) -> Source:
        return next(each for each in self.sources if each.name == name)

    def _check_records(self, found: Mapping[str, Sequence[CommitRecord]]) -> None:
        """The same for these commit records."""
        records = {each.name: found.get(each.name, ()) for each in self.sources}
        shown = {(each.name, gid) for each in self.sources for gid in each.tables.shown(records[each.name])}
        for g in {global_id(gid) for _, gid in shown}:
            check(g not in self.rolled_back, f"the cut shows {g}, which is rolled back")
            for source, gid in self.branches[g]:
                is_due = source.name in found and source.tables.must_show(gid, records[source.name])
                check(
                    (source.name, gid) in shown or not is_due,
                    f"{ {name: len(each) for name, each in found.items()} } shows {g} and not its branch {gid} in {source.name}",
                )


def make_member(source: Source, cut: int, known: int, seen: Frontier | None) -> Member:
    """What a reader of these commit records knows of a source."""
    if seen is not None:
        seen = seen.keep_streams({each.name: each.kafka.stream_id for each in source.world.sources})
    new = [(n, source.kafka.commits[n - 1]) for n in range(cut + 1, known + 1)]
    patterns = seen.gid_patterns if seen else ()
    named = (
        (n, gids.find_global_id(gid, parser(each.patterns)(gid).global_id, patterns))
        for n, each in new
        for gid in each.gids
    )
    branches = (CommittedBranch(n, name) for n, name in named if name is not None)
    return Member(cut, known, tuple(branches), seen, tuple(n for n, each in new if each.load))


def first_violation(world: type[GroupWorld], seeds: Iterable[int]) -> str | None:
    """Run the histories of such a world; return the first broken promise, or None."""
    for seed in seeds:
        try:
            world(seed).run()
        except Violation as broken:
            return f"history {seed}: {broken}"
    return None
