"""Kafka as the model has it: one partition, transactions by producer, fences, requests that come
late; and the sink's worker that writes into it. Promises about what is in Kafka are checked here.
"""

from __future__ import annotations

from typing import NamedTuple

from model.logs import Record, check
from twofold.bridge import actions
from twofold_common.positions import PreparedIdentity

MAIN = -1
"""The main producer; others are slots of the pool."""


class Chunk(NamedTuple):
    """A transaction's rows in the partition.

    Kafka aborted a dead one and raised the producer's epoch: its next call fails. A late request
    aborted a void one: nothing tells its producer.
    """

    producer: int
    rows: tuple[str, ...]
    status: str  # open, committed, dead, void
    acknowledged: bool = True  # False: a prepared transaction's rows are on their way


class End(NamedTuple):
    """An EndTxn."""

    producer: int
    commits: bool


class Kafka(NamedTuple):
    """What survives the connector."""

    committed: int  # source transactions, in commit order
    tail: tuple[Chunk, ...]  # from the first open chunk on
    applied_lsn: int
    sequence: int
    ledger: frozenset[PreparedIdentity]  # unresolved
    noted: tuple[tuple[PreparedIdentity, str], ...]  # in main's open transaction
    late: frozenset[End]  # sent on a connection that was cut, and not yet processed
    raised: frozenset[int]  # producers without an open chunk whose epoch Kafka has raised


class Initialise(NamedTuple):
    """Only a broken rule has it in the queue: the worker takes the producer's epoch by itself, and
    after that has it.
    """

    producer: int
    done: bool


Item = tuple[str, ...] | actions.Action | Initialise  # rows for the main producer, or an action


class Sink:
    """Carries out actions on a Kafka, knowing what the log says."""

    def __init__(self, log: tuple[Record, ...], second_line: bool) -> None:
        prepares = {r.name: r for r in log if r.kind in "PQEH"}
        self.prepare = {r.identity: r for r in prepares.values()}
        outcomes = [(r, prepares[r.name] if r.kind == "K" else r) for r in log if r.kind in "TLMK"]
        self.expected = [(outcome.start, content.rows) for outcome, content in outcomes if content.rows]
        self.outcome = {r.identity: r for r in log if r.kind in "KR"}
        self.second_line = second_line

    def ends_the_epoch(self, end: End, *, takeover: bool = False) -> bool:
        """The rule: whether nothing more happens under this epoch after an end that may have been
        sent twice.
        """
        return True

    def verifies(self) -> bool:
        """The rule: foretold ranges are compared with the delivery reports before the end."""
        return True

    def must_wait(self, kafka: Kafka, item: Item) -> bool:
        """The rule: rows that are on their way are acknowledged before others follow them in the
        partition, and before their own transaction ends.
        """
        for chunk in on_their_way(kafka):
            match item:
                case tuple() | actions.AppendStaged() | actions.OpenPrepared():
                    return True
                case actions.CommitOpenPrepared(_, slot) | actions.AbortPrepared(_, slot) if slot == chunk.producer:
                    return True
                case _:
                    pass
        return False

    def acknowledge(self, kafka: Kafka, chunk: Chunk) -> Kafka | None:
        """What Kafka is when the rows are acknowledged. None: the flush fails."""
        if chunk.status == "dead":
            return None
        return kafka._replace(tail=replaced(kafka.tail, kafka.tail.index(chunk), chunk._replace(acknowledged=True)))

    def carry_out(self, kafka: Kafka, action: Item, spool: frozenset[PreparedIdentity]) -> Kafka | None:
        """What Kafka is after it. None: the call fails."""
        if producer_of(action) in kafka.raised:
            return None
        match action:
            case actions.CommitMain(sequence, applied_lsn, _, rows):
                chunk = find(kafka, MAIN)
                check(
                    rows == (len(chunk.rows) if chunk else 0),
                    "the commit record's rows are not those that were written",
                )
                return self._commit(kafka, chunk, applied_lsn, sequence, kafka.noted)._replace(noted=())
            case actions.CommitChunk(sequence, applied_lsn):
                check(find(kafka, MAIN) is None, "a chunk's commit would carry rows of the batch")
                check(applied_lsn == kafka.applied_lsn, "a chunk moves the position")
                check(sequence == kafka.sequence + 1, "the sequence is not dense")
                return kafka._replace(sequence=sequence)
            case actions.OpenPrepared(identity, slot):
                check(identity in spool, "the spool no longer has the rows")
                check(find(kafka, MAIN) is None, "opened before the main producer has committed: rows interleave")
                check(find(kafka, slot) is None, "two transactions of one id")
                check(self.outcome[identity].end > kafka.applied_lsn, "opened one whose outcome is in Kafka")
                check(not on_their_way(kafka), "rows follow others that are not acknowledged: they interleave")
                return kafka._replace(
                    tail=(*kafka.tail, Chunk(slot, self.prepare[identity].rows, "open", acknowledged=False))
                )
            case actions.CommitOpenPrepared(identity, slot, sequence, applied_lsn, _, in_ledger):
                chunk = find(kafka, slot)
                if chunk is None or chunk.status == "dead" or (self.second_line and seen_to_be_void(kafka, chunk)):
                    return None
                check(chunk.acknowledged, "a commit record names rows that are not acknowledged")
                return self._commit(
                    kafka, chunk, applied_lsn, sequence, ((identity, "committed"),) if in_ledger else ()
                )
            case actions.AbortPrepared(_, slot):
                return settled(
                    kafka._replace(tail=tuple(c for c in kafka.tail if c.producer != slot or c.status == "committed"))
                )
            case _:
                raise AssertionError(action)

    def produce(self, kafka: Kafka, rows: tuple[str, ...]) -> Kafka:
        if MAIN in kafka.raised:  # the commit will fail
            return kafka
        check(not on_their_way(kafka), "rows follow others that are not acknowledged: they interleave")
        chunk = find(kafka, MAIN)
        if chunk is None:
            return kafka._replace(tail=(*kafka.tail, Chunk(MAIN, rows, "open")))
        check(kafka.tail[-1] is chunk, "rows of two producers interleave")
        return kafka._replace(tail=(*kafka.tail[:-1], chunk._replace(rows=chunk.rows + rows)))

    def _commit(
        self,
        kafka: Kafka,
        chunk: Chunk | None,
        applied_lsn: int,
        sequence: int,
        notes: tuple[tuple[PreparedIdentity, str], ...],
    ) -> Kafka:
        committed, tail = kafka.committed, kafka.tail
        if chunk:
            left = chunk.rows if chunk.status == "open" else ()
            while left:
                check(committed < len(self.expected), f"{left} were never committed in the source, or are here twice")
                rows = self.expected[committed][1]
                check(
                    left[: len(rows)] == rows,
                    f"{left} committed where {rows} are next: lost, doubled, torn, rolled back or out of order",
                )
                left, committed = left[len(rows) :], committed + 1
            place = tail.index(chunk)
            for other in tail[place + 1 :]:
                keys = {row[-1] for row in other.rows} & {row[-1] for row in chunk.rows}
                check(
                    other.status != "committed" or not keys,
                    f"of key {keys} the order of offsets is not the order of commits",
                )
            tail = replaced(tail, place, chunk._replace(status="committed"))
        check(applied_lsn >= kafka.applied_lsn, "progress moved back")
        check(sequence == kafka.sequence + (chunk is not None), "the sequence is not dense")
        behind = sum(start < applied_lsn for start, _ in self.expected)
        check(behind == committed, f"progress {applied_lsn} says {behind} transactions and {committed} are there")
        done = {identity for identity, state in notes if state in {"committed", "rolled_back"}}
        ledger = (kafka.ledger | {identity for identity, _ in notes}) - done
        return settled(
            kafka._replace(committed=committed, tail=tail, applied_lsn=applied_lsn, sequence=sequence, ledger=ledger)
        )


def producer_of(item: Item) -> int:
    match item:
        case actions.OpenPrepared(_, slot) | actions.CommitOpenPrepared(_, slot) | actions.AbortPrepared(_, slot):
            return slot
        case _:
            return MAIN


def end_of(action: Item) -> End | None:
    """The EndTxn with which the action ends."""
    match action:
        case actions.CommitMain() | actions.CommitChunk() | actions.CommitOpenPrepared():
            return End(producer_of(action), commits=True)
        case actions.AbortPrepared(_, slot):
            return End(slot, commits=False)
        case _:
            return None


def arrives(kafka: Kafka, end: End) -> Kafka:
    """A late end is processed: it ends whatever the producer has open by now, under the same
    epoch.
    """
    kafka = kafka._replace(late=kafka.late - {end})
    chunk = find(kafka, end.producer)
    if chunk is None or chunk.status != "open":
        return kafka
    check(not end.commits, f"a late end makes {chunk.rows} visible: they are in no commit record")
    return kafka._replace(tail=replaced(kafka.tail, kafka.tail.index(chunk), chunk._replace(status="void")))


def seen_to_be_void(kafka: Kafka, chunk: Chunk) -> bool:
    """Whether the partition's last stable offset tells that the rows were aborted.

    An older transaction that is open hides it.

    A late end between this question and our own is all or nothing, so it is as one before the
    question or as one after our end.
    """
    return chunk.status == "void" and kafka.tail[0] is chunk


def raised(kafka: Kafka, producer: int) -> Kafka:
    """Kafka raises the epoch by itself.

    The time of the producer's transaction is over, which may be an empty one that a late
    AddPartitions began; or an InitProducerId of its own comes late.
    """
    kafka = kafka._replace(late=unprocessed(kafka, producer))
    chunk = find(kafka, producer)
    if producer == MAIN or chunk is None:
        return fenced(kafka, producer)._replace(raised=kafka.raised | {producer})
    return kafka._replace(tail=replaced(kafka.tail, kafka.tail.index(chunk), chunk._replace(status="dead")))


def fenced(kafka: Kafka, *producers: int) -> Kafka:
    """The producers are initialised: what they have open is aborted, and what they had sent is
    void.
    """
    tail = tuple(c for c in kafka.tail if c.status == "committed" or c.producer not in producers)
    return settled(
        kafka._replace(tail=tail, late=unprocessed(kafka, *producers), raised=kafka.raised.difference(producers))
    )


def unprocessed(kafka: Kafka, *voided: int) -> frozenset[End]:
    return frozenset(end for end in kafka.late if end.producer not in voided)


def replaced(tail: tuple[Chunk, ...], place: int, chunk: Chunk) -> tuple[Chunk, ...]:
    return (*tail[:place], chunk, *tail[place + 1 :])


def find(kafka: Kafka, producer: int) -> Chunk | None:
    return next((c for c in kafka.tail if c.producer == producer and c.status != "committed"), None)


def on_their_way(kafka: Kafka) -> list[Chunk]:
    """The rows that were sent and are not acknowledged."""
    return [chunk for chunk in kafka.tail if not chunk.acknowledged]


def settled(kafka: Kafka) -> Kafka:
    """Without the committed chunks before the first open one: they are counted."""
    tail = kafka.tail
    while tail and tail[0].status == "committed":
        tail = tail[1:]
    return kafka._replace(tail=tail)
