"""What is withheld now, of all fronts: who is chosen, when it is sent, and what the broker
answered to it.

Its counts have a line for each rule, by its name:

    held       requests withheld
    late       delivered late, with an answer of the broker
    accepted   of these: answered without an error while a later transaction of the id was open
    error N    of these: answered with the broker's error code N, 0 is none
    given_up   of these: delivered because their moment did not come
    gone       never delivered: the broker had closed the connection
    silent     delivered, and not answered within 10 s
    lost       answers lost (`Cut.LOST`), each of a request that the broker has answered
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import IO, Any, Final

from late.frames import Request
from late.rules import Moment, Producer, Rule, due_at_answer, due_at_request

ANSWER_S: Final = 10.0
GIVEN_UP: Final = "given up"


@dataclass(eq=False, slots=True)
class Held:
    """One withheld request."""

    rule: Rule
    request: Request
    generation: int
    send: Callable[[], bool]
    """Send it to the broker on its old connection; False if there is none any more."""
    answer: asyncio.Future[tuple[int, ...] | None]
    """The error codes in the broker's answer; None: it closed the connection."""
    going: bool = False
    over: asyncio.Event = field(default_factory=asyncio.Event)
    timers: list[asyncio.TimerHandle] = field(default_factory=list)


@dataclass(slots=True)
class _State:
    producer: Producer = field(default_factory=Producer)
    held: Held | None = None
    passing: asyncio.Event = field(default_factory=asyncio.Event)
    """Closed while its late request is on its way to the broker."""


class Withheld:
    """Shared by all fronts of a proxy."""

    def __init__(self, events: IO[str] | None = None) -> None:
        self.reaped = 0
        """Connections that a broker closed."""
        self._events = events
        self._rules: list[Rule] = []
        self._fitting: Counter[str] = Counter()
        self._taken: Counter[str] = Counter()
        self._states: defaultdict[str, _State] = defaultdict(_opened)
        self._counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._tasks: set[asyncio.Task[None]] = set()

    def replace_rules(self, rules: Iterable[Rule]) -> None:
        """What is withheld stays so. A rule's counts go on under its name; `most` counts again."""
        self._rules = list(rules)
        self._fitting.clear()
        self._taken.clear()

    def counts(self) -> dict[str, dict[str, int]]:
        return {name: dict(counter) for name, counter in self._counts.items()}

    @property
    def waiting(self) -> int:
        """Requests that are withheld now."""
        return sum(state.held is not None for state in self._states.values())

    async def release(self, name: str) -> int:
        """Deliver all that the rule withholds; returns when it is answered."""
        chosen = [each.held for each in self._states.values() if each.held and each.held.rule.name == name]
        await asyncio.gather(*(self._deliver(held, "command") for held in chosen))
        return len(chosen)

    async def requested(self, request: Request) -> Rule | None:
        """Of a client's request, before it is passed on: the rule that withholds it."""
        state = self._states[request.transactional_id]
        await state.passing.wait()
        held = state.held
        if held is not None and self._is_later(held, state) and due_at_request(held.rule, request):
            await self._deliver(held, f"before its {request.kind}")
            await state.passing.wait()
        rule = self._choose(request, state)
        if rule is None:
            self.note("request", request)
        return rule

    async def answered(self, request: Request, errors: tuple[int, ...]) -> None:
        """Of an answer, before the client has it."""
        state = self._states[request.transactional_id]
        state.producer.answered(request, errors)
        self.note("answer", request, errors=sorted(set(errors)))
        held = state.held
        if held is None or held.going or any(errors) or not self._is_later(held, state):
            return
        if due_at_answer(held.rule, request, state.producer):
            await self._deliver(held, f"behind its {request.kind}")
        elif held.rule.moment is Moment.IDLE:
            self._wait_for_idle(held, state)

    def hold(self, rule: Rule, request: Request, send: Callable[[], bool]) -> Held:
        state = self._states[request.transactional_id]
        answer: asyncio.Future[tuple[int, ...] | None] = asyncio.get_running_loop().create_future()
        state.held = held = Held(rule, request, state.producer.generation, send, answer)
        self._counts[rule.name]["held"] += 1
        self.note("HELD", request, rule=rule.name)
        seconds = rule.seconds if rule.moment is Moment.AFTER else rule.give_up
        why = "its time is over" if rule.moment is Moment.AFTER else GIVEN_UP
        self._later(held, seconds, why)
        return held

    def lost(self, rule: Rule, request: Request) -> None:
        self._counts[rule.name]["lost"] += 1
        self.note("ANSWER LOST", request, rule=rule.name)

    def note(self, what: str, request: Request, **more: Any) -> None:
        """A line of the events file."""
        if self._events is None:
            return
        where = [f"{topic}-{partition}" for topic, partition in request.partitions[:8]]
        line = {"at": round(time.time(), 4), "what": what, "id": request.transactional_id, "kind": request.kind}
        self._events.write(json.dumps({**line, "epoch": request.epoch, "partitions": where, **more}) + "\n")

    def _choose(self, request: Request, state: _State) -> Rule | None:
        """The first rule that fits and whose turn it is.

        One request of an id is withheld at a time.
        """
        if state.held is not None:
            return None
        now = time.monotonic()
        for rule in self._rules:
            if (
                not rule.fits(request, state.producer)
                or self._taken[rule.name] >= rule.most
                or now - state.producer.held_at < rule.gap
            ):
                continue
            self._fitting[rule.name] += 1
            if self._fitting[rule.name] % rule.every == 0:
                self._taken[rule.name] += 1
                state.producer.held_at = now
                return rule
        return None

    @staticmethod
    def _is_later(held: Held, state: _State) -> bool:
        return state.producer.generation > held.generation

    def _later(self, held: Held, seconds: float, why: str) -> None:
        loop = asyncio.get_running_loop()
        held.timers.append(loop.call_later(seconds, lambda: self._start(held, why)))

    def _start(self, held: Held, why: str) -> None:
        task = asyncio.ensure_future(self._deliver(held, why))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _wait_for_idle(self, held: Held, state: _State) -> None:
        for timer in held.timers[1:]:
            timer.cancel()
        if state.producer.open:
            self._later(held, held.rule.seconds, "it is idle")

    async def _deliver(self, held: Held, why: str) -> None:
        """Its id's other requests wait until the broker has answered."""
        if held.going:
            return
        held.going = True
        for timer in held.timers:
            timer.cancel()
        state, counter = self._states[held.request.transactional_id], self._counts[held.rule.name]
        state.passing.clear()
        inside = state.producer.open and self._is_later(held, state)
        self.note("LATE", held.request, why=why, inside=inside, epoch_now=state.producer.epoch)
        counter["given_up"] += why == GIVEN_UP
        try:
            errors = await asyncio.wait_for(held.answer, ANSWER_S) if held.send() else None
        except TimeoutError:
            counter["silent"] += 1
            return
        finally:
            state.held = None
            state.passing.set()
            held.over.set()
        if errors is None:
            counter["gone"] += 1
            return
        counter["late"] += 1
        counter["accepted"] += inside and not any(errors)
        for error in set(errors):
            counter[f"error {error}"] += 1
        self.note("LATE ANSWER", held.request, errors=sorted(set(errors)))


def _opened() -> _State:
    state = _State()
    state.passing.set()
    return state
