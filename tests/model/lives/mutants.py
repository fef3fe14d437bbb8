"""Lives with one rule broken at a time: the model must catch each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from model.lives.model import LivesModel
from model.lives.scenarios import BY_NAME
from model.lives.source import Scenario
from twofold.bridge import prepared
from twofold.kafka import names
from twofold.lives import load_life, topic_life
from twofold.lives.chunk_rule import ChangeMemory, DroppedRows, Snapshot
from twofold.lives.load_life import LoadLife, LoadPhase
from twofold.lives.load_progress import LoadProgress
from twofold.lives.topic_life import ReleaseDelayed, TopicLife


@dataclass(frozen=True)
class LivesMutant:
    """`broken` takes the place of `where.attribute`."""

    name: str
    scenario: Scenario
    changes: tuple[tuple[Any, str, Any], ...]

    @contextmanager
    def applied(self) -> Iterator[LivesModel]:
        (where, attribute, broken), *rest = self.changes
        with patch.object(where, attribute, broken):
            if not rest:
                yield LivesModel(self.scenario)
                return
            with replace(self, changes=tuple(rest)).applied() as model:
                yield model


_step_topic, _judge, _start = (
    topic_life.step_topic,
    ChangeMemory.judge,
    load_life._start,
)
_execute_command, _publish, _empty, _continue = (
    topic_life._execute_command,
    topic_life._publish,
    topic_life._empty,
    load_life._continue,
)
_blocking = load_life.blocking


def _drop_nothing(memory: ChangeMemory, snapshot: Snapshot) -> DroppedRows:
    return DroppedRows(everything=False, keys=frozenset(), again=_judge(memory, snapshot).again)


def _by_xmax(snapshot: Snapshot, xid: int) -> bool:
    return xid < snapshot.xmax


def _unread_nothing(drop: DroppedRows, rows: Any, among: Any) -> frozenset[bytes]:
    return frozenset()


def _unread_among_rows(drop: DroppedRows, rows: Any, among: frozenset[bytes]) -> frozenset[bytes]:
    return drop.again & frozenset(rows)


def _without(*events: type) -> Callable[..., Any]:
    def step(life: TopicLife, event: Any) -> Any:
        return (life, ()) if isinstance(event, events) else _step_topic(life, event)

    return step


def _for_all(holders: Any, at_beginning: Any, *, resumed: bool, delivered: Any) -> frozenset[str]:
    """A prepared transaction that the stream has brought is not waited for, in a first session
    either.
    """
    return _blocking(holders, at_beginning, resumed=True, delivered=delivered)


def _delayed_forgotten(step: Callable[..., Any]) -> Callable[..., Any]:
    """Delayed rows are never released."""

    def broken(life: TopicLife, event: Any) -> Any:
        after, actions = step(life, event)
        return after, tuple(each for each in actions if not isinstance(each, ReleaseDelayed))

    return broken


def _all_delayed(life: TopicLife, event: Any) -> Any:
    after, actions = _publish(life, event)
    return after, tuple(ReleaseDelayed() if isinstance(each, ReleaseDelayed) else each for each in actions)


def _never_lost(state: Any, bound: bytes | None, executed: int, *, keyless: bool) -> TopicLife:
    return replace(_begin(state, bound, executed, keyless=keyless), lost=False)


def _answer_any(life: LoadLife, done: Any) -> Any:
    """What an earlier command has come to counts, whatever was given since."""
    command = life.command and replace(life.command, number=done.number)
    return _continue(replace(life, command=command, sent=True), done)


def _in_one_record(_: str) -> str:
    return "load"


def _number_lost(life: TopicLife, due: Any) -> Any:
    after, actions = _execute_command(life, due)
    return replace(after, executed=life.executed), actions


def _start_without_truncate(life: LoadLife, command: Any) -> Any:
    started, actions = _start(life, command)
    return replace(started, progress=LoadProgress(), empties=False), actions


def _forget_the_truncate(life: TopicLife, due: Any) -> Any:
    return _execute_command(life, replace(due, reload=False))


def _start_on(life: LoadLife, command: Any) -> Any:
    """The thread of the load before reads on, and the new one does not begin."""
    started, _ = _start(life, command)
    return (replace(started, phase=life.phase) if life.phase is LoadPhase.READING else started), ()


def _park_nothing(state: Any, *_: Any) -> Any:
    return state


def _no_reason(model: LivesModel, connector: Any, number: int) -> None:
    return None


_begin = topic_life.begin

AHEAD = BY_NAME["one chunk is read while the other is published"]
JOINS = BY_NAME["a table joins with a prepared transaction"]
CANCELLED_ALONE = replace(BY_NAME["no key, cancelled"], commands=(("n", "cancel"),))
RELOAD, NO_KEY = BY_NAME["a reload, paused and resumed"], BY_NAME["no key"]
PARKED = BY_NAME["a prepared transaction and nothing behind it"]
STARTED = replace(RELOAD, ready="", commands=(("a", "start"),), crashes=0)

MUTANTS = (
    LivesMutant("chunks take the place of changes", AHEAD, ((ChangeMemory, "judge", _drop_nothing),)),
    LivesMutant("visibility by the greatest xid alone", AHEAD, ((Snapshot, "sees", _by_xmax),)),
    LivesMutant("no key is read again", AHEAD, ((DroppedRows, "unread", _unread_nothing),)),
    LivesMutant("a key that is read again and not visible yet is done", AHEAD, ((DroppedRows, "unread", _unread_among_rows),)),
    LivesMutant("a row's new key is not read again", AHEAD, ((topic_life, "step_topic", _without(topic_life.KeysMoved)),)),
    LivesMutant("a load begins before its barrier", AHEAD, ((load_life, "blocking", lambda *_, **__: frozenset()),)),
    LivesMutant("the same, of a table that joins", JOINS, ((load_life, "blocking", lambda *_, **__: frozenset()),)),
    LivesMutant("a first session does not wait for what the stream has brought", JOINS, ((load_life, "blocking", _for_all),)),
    LivesMutant("prepared transactions are opened", PARKED, ((LivesModel, "park_reason", _no_reason), (prepared, "park", _park_nothing))),
    LivesMutant("those that are open stay open when a load begins", replace(RELOAD, writes={1: "a2"}, script="B1 P1 K1", commands=(("a", "start"),)), ((prepared, "park", _park_nothing),)),
    LivesMutant("an answer to an overtaken command counts", RELOAD, ((load_life, "_continue", _answer_any),)),
    LivesMutant("a kill loses the start that a pause overtook", RELOAD, ((names, "record_of", _in_one_record),)),
    LivesMutant("a pin does not have what was carried out", RELOAD, ((topic_life, "_execute_command", _number_lost),)),
    LivesMutant("a start leaves the load before it alone", STARTED, ((load_life, "_start", _start_on),)),
    LivesMutant("a reload begins without its truncate", STARTED, ((load_life, "_start", _start_without_truncate),)),
    LivesMutant("a pause forgets that the truncate is to come", replace(RELOAD, crashes=0), ((topic_life, "_execute_command", _forget_the_truncate),)),
    LivesMutant("what is delayed is lost", NO_KEY, ((topic_life, "_publish", _delayed_forgotten(_publish)),)),
    LivesMutant("what is delayed is lost when a load is cancelled", CANCELLED_ALONE, ((topic_life, "_execute_command", _delayed_forgotten(_execute_command)),)),
    LivesMutant("what a snapshot has is published once more", NO_KEY, ((topic_life, "_publish", _all_delayed),)),
    LivesMutant("a later session cancels as if it had the delayed rows", CANCELLED_ALONE, ((topic_life, "begin", _never_lost),)),
)  # fmt: skip
