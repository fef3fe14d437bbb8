"""Executes the bridge's actions: makes each action a job of the worker, with its rows and facts.

The executor keeps what the bridge does not need for deciding: the waiting rows of prepared
transactions, the times, and the content of the batch's commit record. All of that is lost on kill
-9, and PostgreSQL sends it again.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from twofold.bridge import Event, actions, events
from twofold.errors import RESET_REPAIR, Refused
from twofold.kafka.publisher import Publisher, TransactionRecords
from twofold.kafka.record_sizes import RecordTooLarge
from twofold.kafka.row_batch import RowBatch
from twofold.lives.chunk_rule import Snapshot
from twofold.lives.exchanged import CommandExecuted
from twofold.loads.chunk import Chunk, DueCommand, DueOfLoad, ReloadTruncate
from twofold.loads.load_merger import LoadMerger, Published
from twofold.run.worker import Pending, Worker
from twofold.stream.bookkeeping_records import ConnectorOrigin, FrontierOrigin, Ledger, outcome_bytes
from twofold.stream.skipping import offer_record
from twofold.stream.source_transaction import CHUNK_BYTES, SourceTransaction
from twofold.tables.ddl_descriptions import DdlMessages
from twofold.tables.table_version import TableVersion
from twofold.tables.tables import Tables
from twofold_avro.records import Commit, Frontier, Pin, PreparedOutcome
from twofold_common.positions import Lsn, PreparedIdentity
from twofold_common.table_names import table_argument

Kind = Literal["batch", "prepared", "backfill", "reload"]


@dataclass(frozen=True, slots=True)
class ReportedPositions:
    """The positions to report to PostgreSQL."""

    write: Lsn
    flush: Lsn


class ActionExecutor:
    """Executes one run's actions.

    The thread that reads uses the executor; the jobs run on the worker's thread.
    """

    def __init__(
        self,
        *,
        worker: Worker,
        publisher: Publisher,
        merger: LoadMerger,
        tables: Tables,
        origin: ConnectorOrigin,
        reported: ReportedPositions,
        ledger: Ledger,
        tend: Callable[[], None],
        frontiers: FrontierOrigin | None = None,
    ) -> None:
        self._worker = worker
        self._publisher = publisher
        self._merger = merger
        self._tables = tables
        self._origin = origin
        self._tend = tend
        self._frontiers = frontiers
        self._frontier: Frontier | None = None
        """The frontier for the main producer's next commit."""
        self.on_published: Callable[[Commit | None, Mapping[str, Pin]], None] = lambda *_: None
        """Called on the worker's thread after each Kafka transaction that has committed."""
        self._due: DueOfLoad | None = None
        self._executed: queue.SimpleQueue[tuple[str, CommandExecuted]] = queue.SimpleQueue()
        self._prepared: dict[PreparedIdentity, SourceTransaction] = {}
        self._begun: dict[PreparedIdentity, float] = {}
        self._outcomes: list[PreparedOutcome] = []
        self._ledger = ledger
        self._committed_at_us = 0
        self._leaving: list[tuple[SourceTransaction, bool]] = []
        """Transactions that leave the spool, with whether each is published or forgotten."""
        self._leaving_bytes = 0
        self.positions = reported
        self.batch_records = 0
        self.batch_bytes = 0
        self.batch_outcome_bytes = 0
        """The approximate bytes of the outcomes in the batch's commit record."""

    def stage(self, prepared: SourceTransaction) -> None:
        """Keep a prepared transaction's rows until the bridge forgets it."""
        self._prepared[prepared.identity] = prepared

    def produce(self, batch: RowBatch) -> None:
        """Produce rows for the batch."""
        self.batch_records += batch.records
        self.batch_bytes += batch.bytes
        self._submit(lambda: self._merger.produce(batch))

    def register_committed(self, identity: PreparedIdentity) -> None:
        """Register the schemas that a prepared transaction's tables lack, now that it is committed.

        No action is being executed then, so that the run can go on with its commits while this call
        waits.
        """
        if prepared := self._prepared.get(identity):
            prepared.register()
            if not prepared.records:  # no other action brings it
                self._note_prepared(prepared)

    def offer_skip(self, refusal: RecordTooLarge) -> Refused:
        """Return the refusal with the command that skips the row."""
        return offer_record(refusal, self.pins.get(refusal.topic), self._merger.envelopes.read_place)

    def begin(self) -> None:
        """Make this thread the owner of the tables."""
        self._tables.owner.bind()

    def stage_due(self, due: DueOfLoad) -> None:
        """Keep a load's due chunk, truncate or command for the CommitChunk that follows."""
        self._due = due

    def executed_commands(self) -> Iterator[tuple[str, CommandExecuted]]:
        """Yield the commands that the worker has executed since the last call, by topic."""
        with suppress(queue.Empty):
            while True:
                yield self._executed.get_nowait()

    def forget(self, topic: str, snapshot: Snapshot) -> None:
        """Let the merger forget the changes of a table in backfill that this snapshot sees."""
        self._submit(lambda: self._merger.forget(topic, snapshot))

    def prepared_with(self, topic: str) -> list[PreparedIdentity]:
        """Return the prepared transactions without an outcome that touch the table."""
        return [identity for identity, prepared in self._prepared.items() if topic in prepared.topics]

    def keeps(self, identity: PreparedIdentity) -> bool:
        """Return whether the bridge knows of the prepared transaction, which has not ended."""
        return identity in self._prepared

    def begun(self, identity: PreparedIdentity) -> float:
        """Return when an opened transaction's Kafka transaction began, by the monotonic clock.

        Kafka's timeout counts from there, however long opening took. Asked once.
        """
        return self._begun.pop(identity)

    def delivered(self) -> set[tuple[int, str]]:
        """Return the prepared transactions without an outcome that the stream has brought.

        Any thread may ask.
        """
        return {(identity.xid, identity.gid) for identity in tuple(self._prepared)}

    @property
    def stream_id(self) -> str:
        return self._origin.stream_id

    @property
    def pins(self) -> Mapping[str, Pin]:
        """The pins, by topic."""
        return self._tables.pins.all

    @property
    def prepared(self) -> Iterable[SourceTransaction]:
        """The prepared transactions whose rows are kept."""
        return self._prepared.values()

    def produce_waited(self, transaction: SourceTransaction) -> None:
        """Produce rows for the batch that leave the spool.

        A backlog has thousands of small transactions: they go to the worker together, at the latest
        before any other job.
        """
        transaction.register()
        self.batch_records += transaction.records
        self.batch_bytes += transaction.spooled_bytes
        self._leaving.append((transaction, True))
        self._leaving_bytes += transaction.spooled_bytes
        if self._leaving_bytes > CHUNK_BYTES:
            self._hand_over()

    def _hand_over(self) -> None:
        """Make one job of the rows that leave the spool."""
        leaving, self._leaving, self._leaving_bytes = self._leaving, [], 0

        def work() -> None:
            gathered = RowBatch()
            for transaction, published in leaving:
                if published:
                    for batch in transaction.batches():
                        gathered.add(batch)
                        if gathered.bytes > CHUNK_BYTES:
                            self._merger.produce(gathered)
                            gathered = RowBatch()
                transaction.drop()
            if gathered.topics:
                self._merger.produce(gathered)

        self._queue(work)

    def resolve(self, outcomes: tuple[PreparedOutcome, ...]) -> None:
        """Name these prepared transactions in the batch's commit record."""
        self._outcomes += outcomes
        self.batch_outcome_bytes += sum(map(outcome_bytes, outcomes))

    def note_committed(self, tables: Iterable[TableVersion], ddl: DdlMessages) -> None:
        """Pin what committed transactions tell that join the batch: the tables that they changed,
        and the descriptions of DDL messages. The next commit writes the pins.
        """
        self._tables.pins.note_ddl(ddl)
        self._tables.note_changed(tables, {})

    def _note_prepared(self, prepared: SourceTransaction) -> None:
        """Pin what a committed prepared transaction tells."""
        self._tables.pins.note_ddl(prepared.ddl)
        self._tables.note_changed(prepared.tables, prepared.relations)

    def joins(self, committed_at_us: int) -> None:
        """Note that an outcome of this time joins the batch."""
        self._committed_at_us = max(self._committed_at_us, committed_at_us)

    def execute(self, action: actions.Action, at_us: int) -> None:  # noqa: C901  (one flat dispatch)
        """Execute an action, or hand it to the worker.

        `at_us` is the source's time of the event that caused the action.
        """
        match action:
            case actions.Report(write, flush):
                self.positions = ReportedPositions(write, flush)
            case actions.AppendStaged(identity, commit_lsn):
                self._append_staged(self._prepared.pop(identity), commit_lsn, at_us)
            case actions.NoteInDoubt(identity, state):
                self._ledger.note(identity, state, self._prepared.get(identity))
            case actions.WriteFrontier():
                assert self._frontiers is not None
                self._frontier = self._frontiers.frontier(action)
            case actions.CommitMain():
                self._commit_main(action)
            case actions.CommitChunk(sequence, applied_lsn):
                self._commit_chunk(sequence, applied_lsn)
            case actions.OpenPrepared(identity, slot):
                opening = partial(self._open_prepared, slot, self._prepared[identity])
                opened = Pending(partial(self._publisher.has_opened, slot), events.PreparedOpened(identity))
                self._submit(opening, opened)
            case actions.CommitOpenPrepared():
                self._commit_prepared(action, at_us)
            case actions.AbortPrepared(identity, slot):
                self._submit(lambda: self._publisher.abort(slot), events.PreparedAborted(identity))
            case actions.Forget(identity):
                if forgotten := self._prepared.pop(identity, None):
                    self._leaving.append((forgotten, False))
            case actions.Refuse():
                raise self._refusal(action)

    def _refusal(self, refuse: actions.Refuse) -> Refused:
        """Return the refusal. Of a lost transaction name the tables, as the ledger has them, and
        the topics of events and messages, which no load brings.
        """
        topics, known = self._ledger.topics(refuse.lost) if refuse.lost else (), self._tables.pins
        pins = [known[topic] for topic in topics if topic in known]
        tables = " ".join(table_argument(pin.schema, pin.table) for pin in pins)
        at_stake = refuse.at_stake
        repair = refuse.repair.replace("{tables}", tables or "<every table that it may have touched>")
        if others := [*filter(self._tables.names.is_loaded_from_none, topics)]:
            at_stake = f"{at_stake}; no load brings what it wrote to {', '.join(others)}"
            repair = f"write that again; then {repair if len(others) < len(topics) else RESET_REPAIR}"
        return Refused(refuse.what, at_stake=at_stake, repair=repair)

    def _submit(self, work: Callable[[], object], answer: Event | Pending | None = None) -> None:
        if self._leaving:
            self._hand_over()
        self._queue(work, answer)

    def _queue(self, work: Callable[[], object], answer: Event | Pending | None = None) -> None:
        to_watch = self._tables.lives.take_for_merger()

        def job() -> Event | Pending | None:
            for topic, watch in to_watch:
                self._merger.watch(topic, watch)
            work()
            return answer

        self._worker.submit(job, meanwhile=self._tend)

    def _open_prepared(self, slot: int, prepared: SourceTransaction) -> None:
        self._begun[prepared.identity] = time.monotonic()
        self._publisher.open(slot, prepared.batches())

    def _append_staged(self, prepared: SourceTransaction, commit_lsn: Lsn, at_us: int) -> None:
        self.joins(at_us)
        self._note_prepared(prepared)
        self.resolve((prepared.outcome(commit_lsn, at_us),))
        self.produce_waited(prepared)

    def _commit_main(self, action: actions.CommitMain) -> None:
        records = self._records(
            "batch",
            action.sequence,
            action.applied_lsn,
            at_us=self._committed_at_us,
            transactions=action.transactions,
            prepared=tuple(self._outcomes),
        )
        records = replace(
            records,
            commit=records.commit if action.rows else None,
            ledger=self._ledger.take_entries(action.sequence if action.rows else None),
            frontier=self._frontier,
        )
        self._outcomes, self._frontier = [], None
        self.batch_records = self.batch_bytes = self.batch_outcome_bytes = self._committed_at_us = 0
        self._submit(
            lambda: self._report_published(self._merger.commit(records)), events.MainCommitted(action.applied_lsn)
        )

    def _commit_chunk(self, sequence: int, applied_lsn: Lsn) -> None:
        due, self._due = self._due, None
        assert due is not None
        # Not when it was staged: the batch that closes before it would tell of a truncate that a
        # process may not live to publish.
        if isinstance(due, ReloadTruncate):
            self._tables.emptied(due.topic)
        if not isinstance(due, DueCommand) and due.encoding is None:
            self._tables.pins.gone(due.topic)
        if isinstance(due, DueCommand) and due.order.reload and due.order.command.name == "cancel":
            self._tables.pins.only_name(due.topic)  # else the next start would begin the reload again
        kind: Kind = "reload" if isinstance(due, ReloadTruncate) else "backfill"
        records = self._records(kind, sequence, applied_lsn, at_us=due.at_us)
        self._submit(lambda: self._report_published(self._publish(due, records)), events.MainCommitted(applied_lsn))

    def _publish(self, due: DueOfLoad, records: TransactionRecords) -> Published:
        """Publish a load's chunk or truncate, or execute its command: on the worker's thread."""
        match due:
            case Chunk():
                return self._merger.publish_chunk(due, records)
            case ReloadTruncate():
                return self._merger.publish_truncate(due, records)
            case DueCommand(topic, order):
                published, done = self._merger.execute_command(topic, order, records)
                self._executed.put((topic, done))
                return published

    def _commit_prepared(self, action: actions.CommitOpenPrepared, at_us: int) -> None:
        prepared = self._prepared[action.identity]
        self._note_prepared(prepared)  # not before: the batch closes first
        records = self._records(
            "prepared",
            action.sequence,
            action.applied_lsn,
            at_us=at_us,
            transactions=1,
            prepared=(prepared.outcome(action.commit_lsn, at_us),),
        )
        if action.in_ledger:
            records = replace(records, ledger=self._ledger.committed(prepared, action.sequence))
        self._submit(
            lambda: self._report_published(self._merger.commit_prepared(action.slot, records)),
            events.PreparedCommitted(action.identity, action.applied_lsn),
        )

    def _report_published(self, published: Published) -> None:
        self.on_published(published.commit, published.pins)

    def _records(
        self,
        kind: Kind,
        sequence: int,
        applied_lsn: Lsn,
        *,
        at_us: int,
        transactions: int = 0,
        prepared: tuple[PreparedOutcome, ...] = (),
    ) -> TransactionRecords:
        """Return a Kafka transaction's own records, with the pins that are to be written."""
        stream_id = self._origin.stream_id
        commit = Commit(
            sequence, kind, applied_lsn, at_us, transactions, rows=0, prepared=prepared, stream_id=stream_id
        )
        return TransactionRecords(
            commit, self._origin.progress(applied_lsn, sequence), self._tables.pins.take_unwritten()
        )
