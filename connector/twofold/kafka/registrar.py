"""The registrar: registers schemas and makes topics, and keeps the replication session alive while
the registry or a broker answers.

During a run the registrar's own thread asks the servers. The thread that reads waits for the answer
and calls `meanwhile` for what cannot wait: the session is tended, commits go on. So a registry that
takes minutes costs no walsender timeout. The values that pass between the two threads are
immutable: shapes, pins, schemas' texts, ids.

A server that does not answer is asked again for `PATIENCE_S`, with one line in the log. That is
safe: registering a schema twice registers it once, and a topic that exists is only checked.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from typing import TypeVar

from twofold.errors import Refused, TwofoldError, Unreachable
from twofold.kafka.schema_registry import Registry, SubjectSchema, value_subject
from twofold.kafka.subjects import RequireRules, Subjects
from twofold.kafka.topic_rules import KnownTopic, RequiredTopic
from twofold.kafka.topics import Topics
from twofold.thread_owner import ThreadOwner
from twofold_avro.records import Pin
from twofold_avro.schemas import canonical, fixed
from twofold_avro.shapes import TableShape

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

PATIENCE_S = 300.0
"""How long a run waits for a registry or broker before another instance may try."""
_AHEAD = 4
"""The number of questions that are asked ahead at once."""
_SLICE_S = 0.05
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 3.0


class Registrar:
    """The registry and the topics of one run, for the thread that reads."""

    def __init__(
        self, registry: Registry, topics: Topics, prefix: str, require_rules: RequireRules = lambda *_: None
    ) -> None:
        self._registry = registry
        self._topics = topics
        self._subjects = Subjects(registry, prefix, require_rules)
        self._meanwhile: Callable[[], None] | None = None
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._owner = ThreadOwner("the registrar")
        self._closed = False
        self._unasked: dict[str, Pin] = {}
        """The tables whose schemas are still to be asked for ahead, by topic."""
        self._unasked_lock = threading.Lock()

    def begin(self, meanwhile: Callable[[], None]) -> None:
        """Ask on a thread of the registrar's own from now on.

        The calling thread is the only caller then. `meanwhile` is called now and then while that
        thread waits; an exception of `meanwhile` ends the wait.
        """
        self._owner.bind()
        self._meanwhile = meanwhile
        threading.Thread(target=self._work, name="registrar", daemon=True).start()

    def close(self) -> None:
        """Take no more calls. A call that still waits for its answer is abandoned."""
        self._closed = True
        self._calls.put(None)

    # --- schemas

    def ask_ahead(self, pins: Iterable[tuple[str, Pin]]) -> None:
        """Ask for the schemas of these tables, several at once and without waiting, so that they
        are known at the tables' first rows.

        An error ends the questions without harm: the question at the first row meets it again.
        """
        self._unasked = dict(pins)

        def work() -> None:
            try:
                with contextlib.suppress(TwofoldError, ValueError):  # no JSON
                    while not self._closed and (table := self._take_unasked()):
                        self._subjects.ask_ahead(*table)
            finally:
                with self._unasked_lock:
                    self._unasked = {}

        for number in range(min(_AHEAD, len(self._unasked))):
            threading.Thread(target=work, name=f"schemas-{number}", daemon=True).start()

    def _take_unasked(self) -> tuple[str, Pin] | None:
        with self._unasked_lock:
            topic = next(iter(self._unasked), None)
            return (topic, self._unasked.pop(topic)) if topic is not None else None

    @property
    def is_asking_ahead(self) -> bool:
        return bool(self._unasked)

    def ask_first(self, oids: Iterable[int]) -> None:
        """Ask for the schemas of these tables before those of others: their rows come next."""
        if not (wanted := {*oids}):
            return
        with self._unasked_lock:
            first = {topic: pin for topic, pin in self._unasked.items() if pin.oid in wanted}
            self._unasked = {**first, **self._unasked}

    def key(self, shape: TableShape) -> str | None:
        """Return the message key's schema; None without a key. No server is asked."""
        return self._subjects.key(shape)

    def like_before(self, shape: TableShape, topic: str, pin: Pin | None) -> TableShape:
        return self._ask(lambda: self._subjects.like_before(shape, topic, pin))

    def require_former_rules(self, shape: TableShape, topic: str, pin: Pin) -> None:
        self._ask(lambda: self._subjects.require_former_rules(shape, topic, pin))

    def known_envelope(self, shape: TableShape, topic: str) -> int | None:
        return self._ask(lambda: self._subjects.known_envelope(shape, topic))

    def is_like_pinned(self, shape: TableShape, topic: str, pin: Pin) -> bool:
        return self._ask(lambda: self._subjects.is_like_pinned(shape, topic, pin))

    def register_key(self, key: str | None, topic: str) -> int | None:
        return self._ask(lambda: self._subjects.register_key(key, topic))

    def register_envelope(self, shape: TableShape, topic: str, pin: Pin | None) -> int:
        return self._ask(lambda: self._subjects.register_envelope(shape, topic, pin))

    @contextlib.contextmanager
    def knowing_versions(self, topics: Iterable[str]) -> Iterator[None]:
        """Know the subjects of these new topics within the context: all are asked for at its
        beginning, several at once.
        """
        asked = tuple(topics)
        if asked:
            self._ask(lambda: self._subjects.read_versions(asked))
        try:
            yield
        finally:
            self._subjects.forget_versions()

    def withdraw_key(self, shape: TableShape, topic: str) -> None:
        self._ask(lambda: self._subjects.withdraw_key(shape, topic))

    def register_message(self, topic: str) -> int:
        """Return the id of the messages' schema."""
        return self._ask(lambda: self._registry.register(value_subject(topic), canonical(fixed("message"))))

    def latest_schema(self, topic: str) -> SubjectSchema | None:
        """Return the newest schema of a topic's values; None without one."""
        return self._ask(lambda: self._registry.latest(value_subject(topic)))

    # --- topics

    def ensure(self, wanted: Iterable[RequiredTopic]) -> dict[str, KnownTopic]:
        """Create the missing topics and check the existing ones; return each as it is."""
        asked = tuple(wanted)
        return self._ask(lambda: self._topics.ensure(asked))

    def announce(
        self, wanted: Iterable[RequiredTopic], tables: Sequence[tuple[TableShape, str]]
    ) -> tuple[dict[str, KnownTopic], list[int]]:
        """Create and check these topics, and meanwhile register the schemas of these tables and
        topics, several at once; return each topic as it is, and the envelopes' ids. The keys' ids
        are known after that.
        """
        asked, ids = tuple(wanted), list[int]()

        def register() -> None:
            ids[:] = self._subjects.register_all(tables)

        return self._ask(lambda: self._topics.ensure(asked, register)), ids

    def missing(self, names: Iterable[str]) -> set[str]:
        asked = frozenset(names)
        return self._ask(lambda: self._topics.missing(asked))

    def mismatched(self, wanted: Iterable[RequiredTopic]) -> list[tuple[str, Refused]]:
        asked = tuple(wanted)
        return self._ask(lambda: self._topics.mismatched(asked))

    # --- waiting

    def _ask(self, call: Callable[[], _T]) -> _T:
        if self._meanwhile is None:
            return call()
        assert self._owner.check()
        deadline, pause_s = time.monotonic() + PATIENCE_S, _FIRST_PAUSE_S
        first = True
        while True:
            try:
                return self._answer(call, self._meanwhile)
            except Unreachable as error:
                if time.monotonic() > deadline or self._closed:
                    raise
                if first:
                    _log.warning("the stream waits up to %.0f s, because %s", PATIENCE_S, error)
                    first = False
            self._pause(pause_s, self._meanwhile)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _answer(self, call: Callable[[], _T], meanwhile: Callable[[], None]) -> _T:
        done: Future[_T] = Future()

        def work() -> None:
            try:
                done.set_result(call())
            except BaseException as error:
                done.set_exception(error)

        self._calls.put(work)
        while not wait((done,), _SLICE_S).done:
            meanwhile()
        return done.result()

    def _pause(self, pause_s: float, meanwhile: Callable[[], None]) -> None:
        until = time.monotonic() + pause_s
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, _SLICE_S))
            meanwhile()

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
