"""The worker as the model of lives has it: one queue, the merger, Kafka's transactions.

`topic_life` and `ChangeMemory`, which are the product's, decide.
"""

from __future__ import annotations

from typing import NamedTuple

from model.lives.source import FIRST_XID, Script
from model.lives.world import (
    COMMITTED,
    MAIN,
    Chunk,
    Connector,
    Kafka,
    Load,
    Row,
    TablePin,
    Topic,
    Watched,
    World,
    freeze,
    settled,
    thaw,
)
from model.logs import check
from twofold.bridge import actions
from twofold.lives import topic_life
from twofold.lives.exchanged import NO_COMMAND, CommandExecuted, ExecuteCommand, WatchTopic
from twofold.lives.load_progress import LoadProgress


class ToWatch(NamedTuple):
    table: int
    watch: WatchTopic


class Produce(NamedTuple):
    """Rows for the main producer, each with its table."""

    rows: tuple[tuple[int, Row], ...]


class Commit(NamedTuple):
    """An action of the bridge that commits, with the pins of new tables; of a chunk what is due."""

    action: actions.CommitMain | actions.CommitChunk | actions.CommitOpenPrepared
    pins: frozenset[int] = frozenset()
    table: int = -1
    due: Chunk | ExecuteCommand | None = None
    serial: int = -1
    start: int = NO_COMMAND
    """The command that a truncate carries out."""


class Merger:
    def __init__(self, script: Script, keyless: str) -> None:
        self.script = script
        self.met: set[type] = set()
        """The kinds of events and actions of both halves that have occurred."""
        self.keyless = tuple(table in keyless for table in script.tables)

    # --- rows

    def produced(self, kafka: Kafka, producer: int, rows: tuple[tuple[int, Row], ...]) -> Kafka:
        topics = list(kafka.topics)
        for table, row in rows:
            topics[table] = topics[table]._replace(tail=(*topics[table].tail, (producer, row)))
        return kafka._replace(topics=tuple(topics))

    def ended(self, kafka: Kafka, producer: int, *, commits: bool) -> Kafka:
        """The producer's transaction ends."""
        topics = []
        for table, topic in enumerate(kafka.topics):
            tail = tuple(
                (COMMITTED if owner == producer else owner, row)
                for owner, row in topic.tail
                if commits or owner != producer
            )
            topics.append(settled(Topic(topic.folded, tail), keyless=self.keyless[table]))
        return kafka._replace(topics=tuple(topics))

    def note(
        self, merger: tuple[Watched, ...], rows: tuple[tuple[int, Row], ...]
    ) -> tuple[list[Watched], list[tuple[int, Row]]]:
        """Remember what is published, as the product does; return the rows that are not delayed."""
        watched, passing = list(merger), []
        for table, row in rows:
            mine = watched[table]
            if not mine.life.in_backfill:
                passing.append((table, row))
                continue
            if mine.life.keyless:
                mine = mine._replace(delayed=(*mine.delayed, row))
                watched[table] = mine if mine.life.has_delayed else self.stepped(mine, topic_life.RowsDelayed())[0]
                continue
            passing.append((table, row))
            memory, key = thaw(mine.changes), row.key.encode()
            if row.truncates:
                memory.truncated(row.xid)
            else:
                memory.changed(row.xid, key, partial=row.left_out is not None)
            if row.left_out not in {None, row.key}:
                mine, _ = self.stepped(mine, topic_life.KeysMoved(frozenset({key})))
            watched[table] = mine._replace(changes=() if mine.life.state == "paused" else freeze(memory))
        return watched, passing

    def stepped(
        self, watched: Watched, event: topic_life.TopicEvent
    ) -> tuple[Watched, tuple[topic_life.TopicAction, ...]]:
        life, given = topic_life.step_topic(watched.life, event)
        self.met |= {type(event), *map(type, given)}
        return watched._replace(life=life, stale=watched.stale or life != watched.life), given

    # --- the queue

    def rows_on_their_way(self, world: World) -> World:
        """Carry out at once what cannot be told from carrying it out later: all that does not
        commit.
        """
        connector, kafka = world.connector, world.kafka
        assert connector is not None
        queue, merger, noted = connector.queue, connector.merger, connector.noted
        while queue and not isinstance(queue[0], Commit | actions.OpenPrepared | actions.AbortPrepared):
            match queue[0]:
                case ToWatch(table, watch):
                    watched, _ = self.stepped(merger[table], watch)
                    merger = (*merger[:table], watched, *merger[table + 1 :])
                case Produce(rows):
                    noticed, passing = self.note(merger, rows)
                    merger, kafka = tuple(noticed), self.produced(kafka, MAIN, tuple(passing))
                case actions.NoteInDoubt(identity, state):
                    noted = (*noted, (identity, str(state)))
                case other:
                    raise AssertionError(other)
            queue = queue[1:]
        if queue is connector.queue:
            return world
        return world._replace(kafka=kafka, connector=connector._replace(queue=queue, merger=merger, noted=noted))

    def carry_out(self, world: World) -> tuple[World, object]:
        """Carry out the head of the queue, which commits, opens or aborts; return it as well."""
        connector = world.connector
        assert connector is not None
        head, on = connector.queue[0], connector._replace(queue=connector.queue[1:])
        kafka = world.kafka
        match head:
            case actions.OpenPrepared(identity, slot):
                rows = self.rows_of(identity.xid)
                return world._replace(kafka=self.produced(kafka, slot, rows), connector=on), head
            case actions.AbortPrepared(_, slot):
                return world._replace(kafka=self.ended(kafka, slot, commits=False), connector=on), head
            case Commit():
                return self._commit(world._replace(connector=on), on, head), head
            case _:
                raise AssertionError(head)

    def rows_of(self, xid: int) -> tuple[tuple[int, Row], ...]:
        """Return a transaction's rows as the stream brings them."""
        number = xid - FIRST_XID
        rows = []
        for table, key, deletes, left_out in self.script.sent(number):
            version, big = None if deletes else number, None if deletes or left_out else number
            rows.append((self.script.tables.index(table), Row(key, xid, version, big, left_out)))
        return tuple(rows)

    def _commit(self, world: World, connector: Connector, commit: Commit) -> World:
        kafka, merger = world.kafka, list(connector.merger)
        answers, loads = connector.answers, connector.loads
        producer, noted = MAIN, connector.noted
        match commit.action:
            case actions.CommitMain(_, applied_lsn):
                pass
            case actions.CommitChunk(_, applied_lsn):
                kafka, merger[commit.table] = self._publish(kafka, merger[commit.table], commit)
            case actions.CommitOpenPrepared(identity, producer, _, applied_lsn, _, in_ledger):
                noted = ((identity, "committed"),) if in_ledger else ()
        check(applied_lsn >= kafka.applied_lsn, "progress moved back")
        kafka = self.ended(kafka, producer, commits=True)
        pins = list(kafka.pins)
        for table, watched in enumerate(merger):
            if watched.stale or table in commit.pins:
                life = watched.life
                progress = life.progress if life.in_backfill else LoadProgress()
                pins[table] = TablePin(life.state, progress, life.executed)
                merger[table] = watched._replace(stale=False)
        done = {identity for identity, state in noted if state in {"committed", "rolled_back"}}
        kafka = kafka._replace(
            pins=tuple(pins),
            owed=kafka.owed - {commit.table}
            if isinstance(commit.due, Chunk) and commit.due.kind == "truncate"
            else kafka.owed,
            applied_lsn=applied_lsn,
            ledger=(kafka.ledger | {identity for identity, _ in noted}) - done,
        )
        if isinstance(commit.due, ExecuteCommand):
            life = merger[commit.table].life
            answers = (*answers, (commit.table, CommandExecuted(commit.due.command.number, life.state, life.progress)))
        elif commit.due is not None:
            loads = _told(loads, commit, merger[commit.table].life)
        kept = () if producer == MAIN else connector.noted
        connector = connector._replace(merger=tuple(merger), answers=answers, loads=loads, noted=kept)
        return world._replace(kafka=kafka, connector=connector)

    def _publish(self, kafka: Kafka, watched: Watched, commit: Commit) -> tuple[Kafka, Watched]:
        """Publish what is due of a load, as the product's merger does."""
        table, due = commit.table, commit.due
        memory = thaw(watched.changes)
        match due:
            case ExecuteCommand():
                watched, given = self.stepped(watched, due)
            case Chunk(kind="truncate"):
                watched, given = self.stepped(watched, topic_life.TruncateDue(commit.start))
            case Chunk():
                changes = memory.judge(due.snapshot)
                unread = changes.unread([key.encode() for key, *_ in due.rows], due.among)
                passed = topic_life.ChunkPassed(
                    due.snapshot,
                    due.kind,  # type: ignore[arg-type]
                    changes,
                    due.last,
                    (),
                    due.among,
                    unread,
                    due.scanned,
                )
                watched, given = self.stepped(watched, passed)
            case _:
                raise AssertionError(due)
        rows: list[Row] = []
        for action in given:
            match action:
                case topic_life.ForgetChanges(seen_by):
                    memory = thaw(()) if seen_by is None else memory
                    if seen_by is not None:
                        memory.forget(seen_by)
                case topic_life.PublishTruncate():
                    rows.append(Row("*", 0, None))
                case topic_life.PublishRows(dropped):
                    assert isinstance(due, Chunk)
                    rows += [Row(k, 0, v, b) for k, v, b in due.rows if k.encode() not in dropped]
                case topic_life.PublishWhole():
                    assert isinstance(due, Chunk)
                    rows += [Row(k, 0, v, b) for k, v, b in due.rows]
                case topic_life.ReleaseDelayed(unseen_by):
                    rows += [row for row in watched.delayed if unseen_by is None or not unseen_by.sees(row.xid)]
                    watched = watched._replace(delayed=())
        watched = watched._replace(changes=freeze(memory))
        return self.produced(kafka, MAIN, tuple((table, row) for row in rows)), watched


def _told(loads: tuple[Load | None, ...], commit: Commit, life: topic_life.TopicLife) -> tuple[Load | None, ...]:
    """The load hears of its chunk, unless it was stopped."""
    load = loads[commit.table]
    if load is None or load.serial != commit.serial:
        return loads
    load = load._replace(progress=life.progress, offered=load.ahead, ahead=None, given=False)
    load = load._replace(done=life.state == "ready")
    return (*loads[: commit.table], load, *loads[commit.table + 1 :])
