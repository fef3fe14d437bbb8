"""The backfill's part of the turn: begins loads, answers their readers, and releases a chunk when
the stream has passed it.

Used by the thread that reads the stream. `lives.load_life` decides about each table's load; this
module applies the events and executes the actions.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Literal

from twofold.bridge import State, events
from twofold.descriptions.staleness import NeedsReload
from twofold.kafka.backfill_commands import BackfillCommands, TopicCommand
from twofold.lives import load_life
from twofold.lives.exchanged import ExecuteCommand, LoadCommand
from twofold.lives.load_progress import LoadProgress
from twofold.loads.chunk import Chunk, DueCommand, DueOfLoad, EncodingRequest, LoadDone, ReloadTruncate, SnapshotSeen
from twofold.loads.load_pool import LoadPool
from twofold.loads.loader import Load
from twofold.run.executor import ActionExecutor
from twofold.run.observer import BackfillProgress
from twofold.source.messages import Relation
from twofold.source.table_descriptions import DescribedTables, JoinedTables
from twofold.tables.table_version import IN_BACKFILL
from twofold.tables.tables import Tables
from twofold_common.table_names import reload_command

_log = logging.getLogger(__name__)

COMMANDS_CHECK_S = 0.25


class Loading:
    """The loads of one run, as the turn sees them."""

    def __init__(
        self,
        loads: LoadPool,
        tables: Tables,
        executor: ActionExecutor,
        commands: BackfillCommands,
        joined_tables: JoinedTables,
        *,
        reload_up_to: int = 0,
        check_s: float = COMMANDS_CHECK_S,
    ) -> None:
        """`reload_up_to`: a stale table with at most so many rows is reloaded by itself.

        `check_s`: how often commands and joined tables are looked at.
        """
        self._joined_tables = joined_tables
        self._looked: DescribedTables | None = None
        """The tables that were found at a position that the stream has not passed yet."""
        self._rows: Mapping[int, int] | None = None
        """The approximate number of rows of each table; None before the first look."""
        self._published: Mapping[int, Relation] = {}
        self._reload_up_to = reload_up_to
        self._loads = loads
        self._tables = tables
        self._lives = tables.lives
        self._executor = executor
        self._commands = commands
        self._check_s = check_s
        self._next_check = 0.0

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
        return reading + tuple(
            _shown(self._name(topic), "paused", progress, 0) for topic, progress in self._lives.paused()
        )

    def turn(self) -> Iterator[events.Event]:
        """Begin loads and answer requests; yield the bridge's events."""
        if (now := time.monotonic()) >= self._next_check:
            self._next_check = now + self._check_s
            for command in self._commands.read_new():
                self._handle_command(command)
            if (found := self._joined_tables.take_result()) is not None:
                self._tables.announce(found.relations)
                self._rows, self._published = found.rows, {each.oid: each for each in found.relations}
                self._looked = self._looked or found
            self._reload_stale()
        for topic, done in self._executor.executed_commands():
            self._apply(topic, done)
        for topic in self._lives.in_need():
            if self._lives[topic].recreated:
                _log.info("backfill of %s: the table was dropped and created again", topic)
                self._apply(topic, load_life.ReloadDue())
            for identity in self._executor.prepared_with(topic):
                yield events.ParkDue(identity, IN_BACKFILL)
            self._apply(topic, load_life.ReadingDue())
        for offer in self._loads.offers():
            match offer:
                case EncodingRequest(relation, asked):
                    asked.set_result(self._tables.copying(relation))
                case SnapshotSeen(topic, snapshot):
                    self._executor.forget(topic, snapshot)
                case LoadDone(topic):
                    self._apply(topic, load_life.LoadEnded())
                case _:
                    raise AssertionError(offer)

    def _reload_stale(self) -> None:
        """Reload stale tables, or name them for a person."""
        if self._rows is None:
            return
        for stale in self._tables.pins.take_stale():
            pin, name = self._tables.pins[stale.topic], self._name(stale.topic)
            if isinstance(stale.lacking, NeedsReload) and stale.relation not in self._published:
                self._tables.pins.put_back(stale)  # a message told of it before a look found it
            elif isinstance(stale.lacking, NeedsReload) and self._reloads(stale.topic, stale.relation):
                _log.warning("%s is stale: %s; it is reloaded (source.reload_up_to)", name, stale.lacking.reason)
                self._tables.pins.reload(stale.topic)
                self._apply(stale.topic, load_life.ReloadDue())
            else:
                command = reload_command(pin.schema, pin.table)
                _log.warning("%s may be stale: %s; to be sure, run: %s", name, stale.lacking.reason, command)
                self._tables.pins.only_name(stale.topic)

    def _reloads(self, topic: str, oid: int) -> bool:
        """Whether a stale topic of this table is reloaded by itself."""
        relation, rows = self._published[oid], (self._rows or {}).get(oid, 0)
        if self._lives[topic].is_paused:
            return False
        return 0 < self._reload_up_to >= rows and self._tables.is_loadable(relation)

    def _handle_command(self, given: TopicCommand) -> None:
        """Hand a person's command to the life of its table."""
        number, topic, name = given
        _log.info("backfill of %s: %s, as asked for", topic, name)
        if topic not in self._tables.pins:
            _log.warning("backfill of %s: the table does not exist", topic)
            return
        self._apply(topic, load_life.CommandGiven(LoadCommand(number, name)))

    def _apply(self, topic: str, event: load_life.LoadEvent) -> None:
        """Apply an event to the table's life, and execute the actions that follow at once."""
        for action in self._lives.apply(topic, event):
            match action:
                case load_life.BeginReading(progress):
                    pin = self._tables.pins[topic]
                    resumed = progress.after is not None
                    self._loads.begin(Load(topic, pin.schema, pin.table, progress, resumed=resumed))
                case load_life.StopReading():
                    self._loads.stop(topic)
                case load_life.ReportDelayedRows():
                    _log.warning(
                        "backfill of %s: not cancelled, because rows that an earlier process delayed would be missing; only its end brings them (or ALTER PUBLICATION ... DROP TABLE)",
                        self._name(topic),
                    )
                case _:
                    raise AssertionError(action)

    def due(self, state: State) -> DueOfLoad | None:
        """Return a command, a truncate or a chunk that may be committed now.

        If a chunk's table has changed since, it is read again.
        """
        if state.unfinished or not state.caught_up:
            return None
        if self._looked is not None and state.read_lsn >= self._looked.end_lsn:
            self._tables.note_descriptions(self._looked)
            self._looked = None
        for topic in self._lives.commanded():
            for order in self._lives.apply(topic, load_life.CommandDue()):
                assert isinstance(order, ExecuteCommand)
                return DueCommand(topic, order, time.time_ns() // 1000)
        while offered := self._loads.due(state.read_lsn):
            if offered.encoding is None or self._tables.is_current(offered.encoding):
                return self._give_out(offered)
            offered.drop()
            offered.answer.set_result(None)
        return None

    def _give_out(self, offered: Chunk | ReloadTruncate) -> Chunk | ReloadTruncate:
        if isinstance(offered, ReloadTruncate):
            for action in self._lives.apply(offered.topic, load_life.TopicEmptied()):
                assert isinstance(action, load_life.ExecuteStart)
                offered = replace(offered, command=action.number)
        return offered

    def _name(self, topic: str) -> str:
        pin = self._tables.pins[topic]
        return f"{pin.schema}.{pin.table}"


def _shown(
    table: str, state: Literal["waiting for locks", "reading", "paused"], place: LoadProgress, estimate: int
) -> BackfillProgress:
    return BackfillProgress(table, state, place.rows, estimate, place.per_second, place.left_s(estimate))
