"""The bridge with one rule broken at a time.

Each must be caught by the model: that is how we know what every rule is for, and that the model
bites.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from model import gathering
from model.kafka import MAIN, End, Initialise, Sink, fenced, producer_of
from model.logs import LENGTH, RECOVERY, Scenario, scenario
from model.recovery import Recovery
from model.run import Model
from model.scenarios import BY_NAME
from model.world import World, ended
from twofold.bridge import State, batch, prepared
from twofold.bridge.actions import Forget
from twofold.bridge.events import NO_PREPARE, MessageRead, PlainRead
from twofold_common.positions import Lsn

stepping = importlib.import_module("twofold.bridge.step")  # the package has a function of that name


@dataclass(frozen=True)
class Mutant:
    """`broken` takes the place of `where.attribute`; or, without that, recovery's order is
    changed.
    """

    name: str
    scenario: Scenario
    where: Any = None
    attribute: str = ""
    broken: Any = None
    recovery: type[Recovery] = Recovery

    @contextmanager
    def applied(self) -> Iterator[Model]:
        with patch.object(self.where, self.attribute, self.broken) if self.where else nullcontext():
            yield Model(self.scenario, self.recovery)


def _without_group(function: Callable[..., State]) -> Callable[..., State]:
    """What the function does happens as if nothing were gathered; the batch comes after it."""

    def out_of_order(state: State, *rest: Any) -> State:
        return function(state._replace(batch=None), *rest)._replace(batch=state.batch)

    return out_of_order


def _decide_on_the_prepare(state: State, event: Any, out: Any) -> State:
    if not state.is_applied(event.prepare_lsn):
        return _stage(state, event, out)
    out.append(Forget(event.identity))
    return batch.read_to(state, event.end_lsn)


def _park_without_abort(state: State, identity: Any, why: str, out: Any) -> State:
    return _park(state, identity, why, [])


def _forget_the_ledger(state: State, identity: Any, how: Any, out: Any) -> State:
    return state._replace(ledger=state.ledger.without(identity))


def _follow_at_any_time(state: State) -> State:
    return batch.join(state, state.read_lsn)


def _join_too_far(state: State, end_lsn: Any, **rest: Any) -> State:
    return _join(state, end_lsn + LENGTH, **rest)


def _end_taken_for_start(state: State, event: Any, out: Any) -> State:
    if isinstance(event, MessageRead):
        return batch.join(state, Lsn(event.end_lsn + 1), rows=1)
    return _apply(state, event, out)


def _apply_only_what_is_whole(state: State, event: Any, out: Any) -> State:
    return _apply(state, replace(event, unfinished=False) if isinstance(event, PlainRead) else event, out)


def _written_is_read(state: State) -> Any:
    return min(state.read_lsn, batch.oldest_unacknowledged(state))


def _flush_applied(state: State) -> Any:
    return max(state.flush, min(state.applied_lsn, batch.oldest_unresolved(state), batch.oldest_uncommitted(state)))


def _hold_whatever_kafka_has(state: State, record: Any) -> bool:
    return record.kind in "PE" and record.identity not in state.ledger


def _hold_whatever_the_ledger_has(state: State, record: Any) -> bool:
    return record.kind in "PE" and not state.is_applied(record.start)


def _announced_only(state: State) -> Any:
    return state.prepared.oldest.prepare_lsn if state.prepared.oldest else NO_PREPARE


def _unacknowledged_of_the_announced(state: State) -> Any:
    return _oldest_unacknowledged(state._replace(unannounced=NO_PREPARE))


def _without_floor(state: State, event: Any, out: Any) -> State:
    return _apply(state, replace(event, oldest_prepare=NO_PREPARE) if isinstance(event, PlainRead) else event, out)


def _release_nothing(state: State, identity: Any) -> State:
    return state


def _one_record_too_far(state: State) -> Any:
    oldest = state.prepared.oldest
    return oldest.prepare_lsn + LENGTH if oldest else NO_PREPARE


def _sequence_for_all(state: State, out: Any) -> State:
    return _close(state, out)._replace(sequence=state.sequence + 1)


def _go_on(model: Model, world: World, flush: int) -> World:
    """What is behind the action that failed is carried out all the same."""
    if not world.queue:
        return ended(world, flush)
    answered = model.answered(world._replace(queue=world.queue[1:]), model.worker.head(world))
    return model.worker.rows_on_their_way(answered)


def _no_end(sink: Sink, end: End, *, takeover: bool = False) -> bool:
    return takeover


def _only_main(sink: Sink, end: End, *, takeover: bool = False) -> bool:
    return end.producer == MAIN


def _only_the_pool(sink: Sink, end: End, *, takeover: bool = False) -> bool:
    return takeover or end.producer != MAIN


def _only_commits(sink: Sink, end: End, *, takeover: bool = False) -> bool:
    return end.commits


def _only_in_a_run(sink: Sink, end: End, *, takeover: bool = False) -> bool:
    return not takeover


class InitialisingZombie(Recovery):
    """In doubt about an end, the old worker initialises the id by itself, without the slot.

    It does so after its successor has read the progress, and writes on under that id, which it has
    taken back.
    """

    def zombie(self, world: World) -> Iterator[World]:
        head = self.worker.head(world)
        if isinstance(head, Initialise):
            yield from self._with_its_own_epoch(world, head)
            return
        for following in super().zombie(world):
            yield following
            for end in following.kafka.late - world.kafka.late:
                initialise = self.worker.items.number(Initialise(end.producer, done=False))
                yield following._replace(queue=(initialise, *world.queue[1:]))

    def left_to_a_zombie(self, world: World) -> tuple[int, ...]:
        return world.queue if isinstance(self.worker.head(world), Initialise) else ()

    def begun(self, world: World) -> World:
        head = self.worker.head(world)
        if world.stage == len(self.scenario.recovery) and isinstance(head, Initialise) and head.done:
            kafka = fenced(world.kafka, head.producer)
            world = world._replace(kafka=kafka._replace(raised=kafka.raised | {head.producer}))
        return super().begun(world)

    def _with_its_own_epoch(self, world: World, head: Initialise) -> Iterator[World]:
        first, *rest = world.queue
        if not head.done and world.saved:
            taken = self.worker.items.number(head._replace(done=True))
            yield world._replace(kafka=fenced(world.kafka, head.producer), queue=(taken, *rest))
        elif head.done and rest and producer_of(self.worker.items[rest[0]]) == head.producer:
            going_on = self.worker.rows_on_their_way(world._replace(queue=tuple(rest)))
            if going_on.queue == tuple(rest):
                going_on, _ = next(self.worker.carry_out(going_on), (going_on, None))
            yield going_on._replace(queue=(first, *going_on.queue))


_oldest_unacknowledged = batch.oldest_unacknowledged
_stage, _park, _join, _close = prepared.stage, prepared.park, batch.join, batch.close
_apply: Callable[[State, Any, Any], State] = stepping.apply

LATE = replace(BY_NAME["one slot again and again"], cuts=1, timeouts=0, parks=0, second_line=False)

MUTANTS = (
    Mutant("hold the position one record too far", BY_NAME["one"], batch, "oldest_unresolved", _one_record_too_far),
    Mutant("skip with <=", BY_NAME["one"], State, "is_applied", lambda state, start: start <= state.resume_lsn),
    Mutant(
        "forget how far this session has read",
        replace(BY_NAME["one"], crashes=2),
        batch,
        "flush_position",
        _flush_applied,
    ),
    Mutant(
        "an outcome that was merely read is resolved",
        BY_NAME["one"],
        batch,
        "oldest_uncommitted",
        lambda _: NO_PREPARE,
    ),
    Mutant("read the progress before the fence", replace(BY_NAME["one"], recovery=("read progress", *RECOVERY[:-1]))),
    Mutant(
        "read the progress between the fences",
        replace(BY_NAME["one"], recovery=("fence main", "read progress", "fence pool", "take over")),
    ),
    Mutant("commit out of order", BY_NAME["one"], prepared, "_commit_open", _without_group(prepared._commit_open)),
    Mutant(
        "open before the main producer has committed",
        BY_NAME["one"],
        prepared,
        "open_one",
        _without_group(prepared.open_one),
    ),
    Mutant("decide on the prepare instead of its outcome", BY_NAME["one"], prepared, "stage", _decide_on_the_prepare),
    Mutant(
        "open before the stream has caught up", BY_NAME["one"], prepared, "may_open", lambda state: not state.unfinished
    ),
    Mutant(
        "open in the middle of a transaction", BY_NAME["large"], prepared, "may_open", lambda state: state.caught_up
    ),
    Mutant(
        "close in the middle of a transaction", BY_NAME["large"], batch, "may_close", lambda state: not state.unanswered
    ),
    Mutant(
        "close between a transaction's end and the half of the next that came with it",
        BY_NAME["large ones, one after the other"],
        stepping,
        "apply",
        _apply_only_what_is_whole,
    ),
    Mutant("park without aborting", BY_NAME["one"], prepared, "park", _park_without_abort),
    Mutant("say nothing to the ledger in the end", BY_NAME["one"], prepared, "_resolved", _forget_the_ledger),
    Mutant("progress beyond what is in the batch", BY_NAME["one"], batch, "join", _join_too_far),
    Mutant(
        "let progress follow the stream at any time", BY_NAME["quiet"], batch, "advance_progress", _follow_at_any_time
    ),
    Mutant(
        "repeat a message at the boundary",
        BY_NAME["quiet"],
        State,
        "is_applied_upto",
        lambda state, end: end < state.resume_lsn,
    ),
    Mutant("take a message's end for its start", BY_NAME["quiet"], stepping, "apply", _end_taken_for_start),
    Mutant("never follow the keepalives", BY_NAME["quiet"], batch, "advance_progress", lambda state: state),
    Mutant("take a number for progress alone", BY_NAME["quiet"], batch, "close", _sequence_for_all),
    Mutant("keep a slot for good", BY_NAME["one"], prepared, "release", _release_nothing),
    Mutant("acknowledge what was read", BY_NAME["synchronous"], batch, "write_position", _written_is_read),
    Mutant(
        "acknowledge a prepare that Kafka has not taken",
        BY_NAME["synchronous"],
        batch,
        "oldest_unacknowledged",
        lambda _: NO_PREPARE,
    ),
    Mutant("hold one that Kafka may have", BY_NAME["held back"], gathering, "may_hold", _hold_whatever_kafka_has),
    Mutant("hold one that the ledger has", BY_NAME["held back"], gathering, "may_hold", _hold_whatever_the_ledger_has),
    Mutant("report beyond one that is held", BY_NAME["held back"], batch, "oldest_unresolved", _announced_only),
    Mutant("report beyond what a run resolves", BY_NAME["held back"], stepping, "apply", _without_floor),
    Mutant(
        "acknowledge a prepare that is held",
        BY_NAME["held back, synchronous"],
        batch,
        "oldest_unacknowledged",
        _unacknowledged_of_the_announced,
    ),
    Mutant("send rows before those on their way are acknowledged", BY_NAME["one"], Sink, "must_wait", lambda *_: False),
    Mutant("go on behind a commit that has failed", BY_NAME["one"], Model, "failed", _go_on),
    Mutant("commit a wrong forecast", BY_NAME["foretold"], Sink, "verifies", lambda _: False),
    Mutant(
        "keep the epoch after the abort of a wrong forecast", BY_NAME["foretold"], Sink, "ends_the_epoch", _only_commits
    ),
    Mutant("keep the epoch after an end that may have been sent twice", LATE, Sink, "ends_the_epoch", _no_end),
    Mutant("the same, of the pool's producers", LATE, Sink, "ends_the_epoch", _only_main),
    Mutant("the same, of the main producer", LATE, Sink, "ends_the_epoch", _only_the_pool),
    Mutant("the same, after an abort", LATE, Sink, "ends_the_epoch", _only_commits),
    Mutant("the same, after recovery's own transaction", LATE, Sink, "ends_the_epoch", _only_in_a_run),
    Mutant(
        "look whether the rows are there, in place of the rule",
        replace(LATE, second_line=True),
        Sink,
        "ends_the_epoch",
        _no_end,
    ),
    Mutant(
        "initialise a doubted producer again in place, without the slot",
        scenario(
            "two in doubt",
            "P1a P2b T3c R2 K1",
            crashes=1,
            cuts=1,
            parks=0,
            second_line=False,
            recovery=(*RECOVERY, "stream"),
        ),
        recovery=InitialisingZombie,
    ),
)
