"""`twofold` in a process of its own, with a clock at the edges of its functions: `bench.latency
--trace` starts it.

    python -m bench.traced TRACE -c FILE run

Notes when a transaction's end passes each edge, one transaction in a hundred, and when each Kafka
transaction does. The product knows nothing of this: the functions are wrapped by their names
(`EDGES`). Stamps stay in memory, and are written into the file TRACE at the end.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from bench.trace import Stamps, Trace
from twofold import cli
from twofold.bridge import actions, events
from twofold.kafka.publisher import TransactionRecords
from twofold.source import messages as m

EVERY: Final = 100
"""One transaction in so many is traced, by its xid."""
STATISTICS_MS: Final = 1_000
"""How often librdkafka counts the requests of a main producer."""
_CAUSED_BY_OUTCOMES: Final = {"batch", "prepared"}
"""The kinds of commit records that have outcomes; a load's have none."""

Clock = Callable[[], int]
Given = Mapping[str, Any]
"""The arguments of a call by their names."""


class Recorder:
    """Keeps the stamps of one process.

    The thread that reads and the worker's thread each write stamps of their own.
    """

    def __init__(self, clock: Clock = time.monotonic_ns, every: int = EVERY) -> None:
        self.trace = Trace()
        self._clock = clock
        self._every = every
        self._read_at = 0
        self._xid = 0
        """Of the plain transaction whose Begin was decoded last."""
        self._decoded: dict[int, Stamps] = {}
        """The traced outcomes that the bridge has not heard of, by the position of the commit."""
        self._main: Stamps = {}
        """Of the main producer's next Kafka transaction."""
        self._ending: Stamps = {}
        """Of the Kafka transaction that the worker ends."""

    # --- the thread that reads

    def after_read(self, _: Given, received: Any) -> None:
        if received:
            self._read_at = self._clock()

    def after_decode(self, _: Given, message: m.Message) -> None:
        match message:
            case m.Begin(xid=xid):
                self._xid = xid
            case m.Commit(commit_lsn=position):
                self._note_outcome(position, self._xid)
            case m.CommitPrepared(identity=identity, commit_lsn=position):
                self._note_outcome(position, identity.xid)
            case _:
                pass

    def _note_outcome(self, position: int, xid: int) -> None:
        if xid % self._every == 0:
            stamps = {"read": self._read_at, "decoded": self._clock()}
            self.trace.outcomes[position] = xid, stamps
            self._decoded[position] = stamps

    def before_step(self, given: Given, _: Any) -> None:
        match given["event"]:
            case events.PlainRead(end_lsn=end) | events.CommitPreparedRead(end_lsn=end):
                for position in [each for each in self._decoded if each < end]:
                    self._decoded.pop(position)["bridge"] = self._clock()
            case events.MainCommitted(applied_lsn) | events.PreparedCommitted(applied_lsn=applied_lsn):
                self._of(applied_lsn)["answered"] = self._clock()
            case _:
                pass

    def before_execute(self, given: Given, _: Any) -> None:
        match given["action"]:
            case actions.CommitMain(applied_lsn=end) | actions.CommitOpenPrepared(applied_lsn=end):
                self._of(end)["decided"] = self._clock()
            case _:
                pass

    def _of(self, applied_lsn: int) -> Stamps:
        return self.trace.ends.setdefault(applied_lsn, {})

    # --- the worker's thread

    def before_rows(self, _: Given, __: Any) -> None:
        self._main.setdefault("rows", self._clock())

    def after_rows(self, _: Given, __: Any) -> None:
        self._main["rows_given"] = self._clock()

    def before_commit_main(self, given: Given, _: Any) -> None:
        self._begin_end(given, self._main)
        self._main = {}

    def before_commit_prepared(self, given: Given, _: Any) -> None:
        self._begin_end(given, {})

    def _begin_end(self, given: Given, rows: Stamps) -> None:
        records: TransactionRecords = given["records"]
        has_outcomes = records.commit is not None and records.commit.kind in _CAUSED_BY_OUTCOMES
        self._ending = self._of(records.progress.applied_lsn) if has_outcomes else {}
        self._ending |= rows
        self._ending["begun"] = self._clock()

    def after_commit_main(self, _: Given, __: Any) -> None:
        self._main = {}  # after a wrong forecast the rows were handed over again

    def after_foretell(self, _: Given, foretold: Any) -> None:
        self._ending["asked_marker"] = self._clock()
        self._ending["foretold"] = int(foretold is not None)

    def before_describe(self, _: Given, __: Any) -> None:
        self._ending["rows_acknowledged"] = self._clock()

    def after_describe(self, _: Given, __: Any) -> None:
        self._ending["described"] = self._clock()

    def before_end(self, given: Given, _: Any) -> None:
        self._ending["flushed"] = self._clock()
        self._ending["partitions"] = len(given["rows"])
        self._ending["records"] = sum(written.count for written in given["rows"])

    def after_check(self, _: Given, __: Any) -> None:
        self._ending["asked_open"] = self._clock()

    def after_commit(self, _: Given, __: Any) -> None:
        self._ending["ended"] = self._clock()

    def after_settings(self, given: Given, options: dict[str, Any]) -> None:
        """Let librdkafka count the requests of the main producers."""
        name: str = given["transactional_id"]
        if ".prepared." not in name:
            options["statistics.interval.ms"] = STATISTICS_MS
            options["stats_cb"] = functools.partial(self.count_requests, name)

    def count_requests(self, name: str, statistics: str) -> None:
        """Note the requests of a producer since its first statistics, by name."""
        found = requests_in(json.loads(statistics))
        first, _ = self.trace.requests.get(name, (found, found))
        self.trace.requests[name] = first, found


def requests_in(statistics: Mapping[str, Any]) -> dict[str, int]:
    """Return how many requests of each name librdkafka has sent to all brokers."""
    counted: dict[str, int] = {}
    for broker in statistics["brokers"].values():
        for name, number in broker.get("req", {}).items():
            if number:
                counted[name] = counted.get(name, 0) + number
    return counted


EDGES: Final = (
    ("after", "twofold.source.session:ReplicationSession.read", "after_read"),
    ("after", "twofold.stream.collector:decode", "after_decode"),
    ("before", "twofold.run.run:Run._step_bridge", "before_step"),
    ("before", "twofold.run.executor:ActionExecutor.execute", "before_execute"),
    ("before", "twofold.kafka.publisher:Publisher.produce", "before_rows"),
    ("after", "twofold.kafka.publisher:Publisher.produce", "after_rows"),
    ("before", "twofold.kafka.publisher:Publisher.commit_main", "before_commit_main"),
    ("after", "twofold.kafka.publisher:Publisher.commit_main", "after_commit_main"),
    ("before", "twofold.kafka.publisher:Publisher.commit_prepared", "before_commit_prepared"),
    ("after", "twofold.kafka.publisher:Publisher._foretell", "after_foretell"),
    ("before", "twofold.kafka.publisher:Publisher._describe", "before_describe"),
    ("after", "twofold.kafka.publisher:Publisher._describe", "after_describe"),
    ("before", "twofold.kafka.publisher:Publisher._end", "before_end"),
    ("after", "twofold.kafka.open_check:OpenCheck.assert_open", "after_check"),
    ("after", "twofold.kafka.producer:TransactionalProducer.commit", "after_commit"),
    ("after", "twofold.kafka.client:KafkaSettings.producer", "after_settings"),
)
"""Before or after the call, the function, and what the recorder does."""


def find(edge: str) -> tuple[Any, str]:
    """Return what has the function, a module or a class, and the function's name there."""
    module, _, path = edge.partition(":")
    *owners, name = path.split(".")
    return functools.reduce(getattr, owners, importlib.import_module(module)), name


def wrap(inner: Callable[..., Any], note: Callable[[Given, Any], None], *, before: bool) -> Callable[..., Any]:
    """Return the function with a note before it, or after it where it has not raised."""
    names = list(inspect.signature(inner).parameters)

    @functools.wraps(inner)
    def noted(*given: Any, **named: Any) -> Any:
        if before:
            note({**dict(zip(names, given, strict=False)), **named}, None)
            return inner(*given, **named)
        found = inner(*given, **named)
        note({**dict(zip(names, given, strict=False)), **named}, found)
        return found

    return noted


def wrap_edges(recorder: Recorder, put: Callable[[Any, str, Any], None] = setattr) -> None:
    for when, edge, note in EDGES:
        owner, name = find(edge)
        put(owner, name, wrap(getattr(owner, name), getattr(recorder, note), before=when == "before"))


def main() -> None:
    place, *arguments = sys.argv[1:]
    recorder = Recorder()
    wrap_edges(recorder)
    try:
        cli.main(arguments)
    finally:
        recorder.trace.write(Path(place))


if __name__ == "__main__":
    main()
