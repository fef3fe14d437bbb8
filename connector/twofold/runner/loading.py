"""The backfill's part of the turn: begins loads, answers their readers, and releases a chunk when
the stream has passed it.

Used by the thread that reads the stream. A table is added to `Pins.in_backfill` before its load
begins, so every row that a load must know of passes the gate.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from typing import Literal, Protocol

from twofold.backfill.chunk import Chunk, ChunkResult, EncodingRequest, LoadCommand, LoadDone, SnapshotSeen
from twofold.backfill.chunk_rule import Snapshot
from twofold.backfill.load_pool import LoadPool
from twofold.backfill.load_progress import LoadProgress
from twofold.backfill.loader import Load
from twofold.bridge import State, events
from twofold.runner.joined_tables import JoinedTablesFound
from twofold.runner.observer import BackfillProgress
from twofold.runner.table_version import IN_BACKFILL
from twofold.runner.tables import Tables
from twofold.sink.backfill_commands import PendingCommand
from twofold_common.positions import PreparedIdentity
from twofold_common.table_names import table_argument

_log = logging.getLogger(__name__)

COMMANDS_CHECK_S = 0.25


class PreparedTransactions(Protocol):
    """What the executor knows and does for loads."""

    def prepared_with(self, topic: str) -> list[PreparedIdentity]:
        """Return the prepared transactions without an outcome that touch the table."""
        ...

    def forget(self, topic: str, snapshot: Snapshot) -> None:
        """Let the gate forget what this snapshot sees of a table in backfill."""
        ...


class CommandSource(Protocol):
    """Brings people's commands."""

    def read_new(self) -> dict[str, PendingCommand]:
        """Return the commands since the last call, by topic."""
        ...


class JoinedTablesSource(Protocol):
    """Looks for tables that have joined the publication."""

    def take_result(self) -> JoinedTablesFound:
        """Return the result since the last call, if there is one."""
        ...


class Loading:
    """The loads of one run, as the turn sees them."""

    def __init__(
        self,
        loads: LoadPool,
        tables: Tables,
        executor: PreparedTransactions,
        commands: CommandSource,
        joined_tables: JoinedTablesSource,
        *,
        reload_on_rewrite: bool = False,
        check_s: float = COMMANDS_CHECK_S,
    ) -> None:
        """`check_s`: how often commands and joined tables are looked at."""
        self._joined_tables = joined_tables
        self._reload_on_rewrite = reload_on_rewrite
        self._loads = loads
        self._tables = tables
        self._executor = executor
        self._commands = commands
        self._answered: list[LoadCommand] = []
        self._latest: dict[str, LoadCommand] = {}
        """Each table's last command to pause or to resume; earlier ones no longer count."""
        self._resumed: dict[str, LoadProgress] = {}
        self._waiting: list[LoadCommand] = []
        """The commands that are to be carried out, in their order."""
        self._cancelled: dict[str, Future[ChunkResult]] = {}
        self._start_keys: dict[str, tuple[bytes, ...]] = {}
        self._check_s = check_s
        self._next_check = 0.0
        self._begun: set[str] = set()
        for topic in tables.pins.in_backfill:
            if tables.pins[topic].backfill == "paused":
                self._begun.add(topic)

    @property
    def busy(self) -> bool:
        """Whether a table is being read: the turn must then not sleep for long."""
        return self._loads.busy

    def progress(self) -> tuple[BackfillProgress, ...]:
        """Return the progress of each table."""
        reading = tuple(
            _shown(load.name, "waiting for locks" if load.holders else "reading", load.progress, load.estimate)
            for load in self._loads.all()
        )
        paused = (self._tables.pins[topic] for topic in self._begun - self._loads.topics())
        return reading + tuple(
            _shown(f"{pin.schema}.{pin.table}", "paused", LoadProgress.from_bytes(pin.bound), 0)
            for pin in paused
            if pin.backfill == "paused"
        )

    def turn(self) -> Iterator[events.Event]:
        """Begin loads and answer requests; yield the bridge's events."""
        if (now := time.monotonic()) >= self._next_check:
            self._next_check = now + self._check_s
            for topic, what in self._commands.read_new().items():
                self._handle_command(topic, what)
            self._handle_joined_tables(self._joined_tables.take_result())
        for topic in self._tables.pins.take_recreated():
            _log.info("backfill of %s: the table was dropped and created again", topic)
            self._start(topic)
        while self._answered:
            self._command_answered(self._answered.pop())
        for topic in [topic for topic, answer in self._cancelled.items() if answer.done()]:
            self._cancel_answered(topic, self._cancelled.pop(topic).result())
        for topic in [topic for topic in self._tables.pins.in_backfill if topic not in self._begun]:
            self._begun.add(topic)
            for identity in self._executor.prepared_with(topic):
                yield events.ParkDue(identity, IN_BACKFILL)
            pin = self._tables.pins[topic]
            place = self._resumed.pop(topic, None) or LoadProgress.from_bytes(pin.bound)
            self._loads.begin(Load(topic, pin.schema, pin.table, place, resumed=place.after is not None))
        for offer in self._loads.offers():
            match offer:
                case EncodingRequest(relation, asked):
                    asked.set_result(self._tables.copying(relation))
                case SnapshotSeen(topic, snapshot):
                    self._executor.forget(topic, snapshot)
                case LoadDone(topic):
                    self._loaded(topic)
                case _:
                    raise AssertionError(offer)

    def _handle_joined_tables(self, found: JoinedTablesFound) -> None:
        """Give new tables their topics; reload a rewritten table, or tell a person."""
        self._tables.announce(found.relations)
        reloads = self._reload_on_rewrite
        for topic, what in self._tables.pins.check_storage(found.relations, found.stored, reloads=reloads):
            pin = self._tables.pins[topic]
            name = f"{pin.schema}.{pin.table}"
            if reloads:
                _log.warning("%s: %s; it is reloaded because source.reload_on_rewrite is on", name, what)
                self._start(topic)
            else:
                command = f"twofold backfill start {table_argument(pin.schema, pin.table)}"
                _log.warning("%s: %s; if that changed values in rows, run: %s", name, what, command)

    def _handle_command(self, topic: str, command: PendingCommand) -> None:
        """Handle a person's command about a table's load.

        One that changes nothing is only answered.
        """
        what, keys = command.name, command.keys
        _log.info("backfill of %s: %s, as asked for", topic, what)
        self._latest.pop(topic, None)
        known = topic in self._tables.pins
        loading = topic in self._tables.pins.in_backfill and topic not in self._cancelled
        match what:
            case "start" if known:
                self._start(topic)
                self._start_keys[topic] = keys
            case "pause" | "resume" if loading:
                stopped = self._loads.stop(topic)
                self._begun.add(topic)
                reload = stopped is not None and stopped.progress.reload
                asked = self._latest[topic] = LoadCommand(topic, what, _now_us(), keys, reload)
                asked.answer.add_done_callback(lambda _: self._answered.append(asked))
                self._waiting.append(asked)
            case "cancel" if loading:
                self._loads.stop(topic)
                self._begun.add(topic)
                cancel = LoadCommand(topic, "cancel", _now_us(), keys)
                # In backfill until then: rows that come meanwhile stay behind the gate's.
                self._cancelled[topic] = cancel.answer
                self._waiting.append(cancel)
            case _ if known:
                self._waiting.append(LoadCommand(topic, "cancel", _now_us(), keys))  # only to be answered
            case _:
                _log.warning("backfill of %s: the table does not exist", topic)

    def _start(self, topic: str) -> None:
        self._latest.pop(topic, None)
        self._loads.stop(topic)
        self._cancelled.pop(topic, None)
        self._tables.pins.reload(topic)
        self._begun.discard(topic)

    def _command_answered(self, asked: LoadCommand) -> None:
        """Continue a load after its resume, unless a later command says otherwise."""
        result = asked.answer.result()
        if self._latest.get(asked.topic) is not asked:
            return
        if result.state == "ready":  # it had ended before the command came
            self._loaded(asked.topic)
        elif asked.name == "resume":
            self._resumed[asked.topic] = result.progress
            self._begun.discard(asked.topic)

    def _cancel_answered(self, topic: str, result: ChunkResult) -> None:
        if result.state == "ready":
            self._loaded(topic)
            return
        pin = self._tables.pins[topic]
        _log.warning(
            "backfill of %s.%s: not cancelled, because rows that an earlier process held would be missing; only its end brings them (or ALTER PUBLICATION ... DROP TABLE)",
            pin.schema,
            pin.table,
        )
        if result.state != "paused":
            self._resumed[topic] = result.progress
            self._begun.discard(topic)

    def _loaded(self, topic: str) -> None:
        self._tables.pins.loaded(topic)
        self._begun.discard(topic)

    def due(self, state: State) -> Chunk | LoadCommand | None:
        """Return a command or a chunk that may be committed now.

        If a chunk's table has changed since, it is read again.
        """
        if state.unfinished or not state.caught_up:
            return None
        if self._waiting:
            return self._waiting.pop(0)
        while chunk := self._loads.due(state.read_lsn):
            if chunk.encoding is None or self._tables.is_current(chunk.encoding):
                if chunk.empties:
                    self._tables.emptied(chunk.topic)
                    chunk = replace(chunk, answers=self._start_keys.pop(chunk.topic, ()))
                if chunk.encoding is None:
                    self._tables.pins.gone(chunk.topic)
                return chunk
            chunk.drop()
            chunk.answer.set_result(None)
        return None


def _shown(
    table: str, state: Literal["waiting for locks", "reading", "paused"], place: LoadProgress, estimate: int
) -> BackfillProgress:
    return BackfillProgress(table, state, place.rows, estimate, place.per_second, place.left_s(estimate))


def _now_us() -> int:
    return time.time_ns() // 1000
