"""Kafka as the model has it: one partition, transactions by producer, fences; and the sink's worker that writes into it. Promises about what is in Kafka are checked here."""

from __future__ import annotations

from typing import NamedTuple

from model.logs import Record, check
from twofold.bridge import actions
from twofold.positions import PreparedIdentity


class Chunk(NamedTuple):
    """A transaction's rows in the partition. Producer -1 is main, others are slots; a dead one was aborted by Kafka and nobody has noticed."""

    producer: int
    rows: tuple[str, ...]
    status: str  # open, committed, dead


class Kafka(NamedTuple):
    """What survives the connector."""

    committed: int  # source transactions, in commit order
    tail: tuple[Chunk, ...]  # from the first open chunk on
    applied_lsn: int
    sequence: int
    ledger: frozenset[PreparedIdentity]  # unresolved
    noted: tuple[tuple[PreparedIdentity, str], ...]  # in main's open transaction


Item = tuple[str, ...] | actions.Action  # rows for the main producer, or an action


class Sink:
    """Carries out actions on a Kafka, knowing what the log says."""

    def __init__(self, log: tuple[Record, ...]) -> None:
        prepares = {r.name: r for r in log if r.kind in "PQEH"}
        self.prepare = {r.identity: r for r in prepares.values()}
        outcomes = [(r, prepares[r.name] if r.kind == "K" else r) for r in log if r.kind in "TLMK"]
        self.expected = [(outcome.start, content.rows) for outcome, content in outcomes if content.rows]
        self.outcome = {r.identity: r for r in log if r.kind in "KR"}

    def carry_out(self, kafka: Kafka, action: Item, spool: frozenset[PreparedIdentity]) -> Kafka | None:
        match action:
            case actions.CommitMain(sequence, applied_lsn, _, rows):
                chunk = find(kafka, -1)
                check(
                    rows == (len(chunk.rows) if chunk else 0),
                    "the commit record's rows are not those that were written",
                )
                return self._commit(kafka, chunk, applied_lsn, sequence, kafka.noted)._replace(noted=())
            case actions.CommitChunk(sequence, applied_lsn):
                check(find(kafka, -1) is None, "a chunk's commit would carry rows of the group")
                check(applied_lsn == kafka.applied_lsn, "a chunk moves the position")
                check(sequence == kafka.sequence + 1, "the sequence is not dense")
                return kafka._replace(sequence=sequence)
            case actions.OpenPrepared(identity, slot):
                check(identity in spool, "the spool no longer has the rows")
                check(find(kafka, -1) is None, "opened before the main producer has committed: rows interleave")
                check(find(kafka, slot) is None, "two transactions of one id")
                check(self.outcome[identity].end > kafka.applied_lsn, "opened one whose outcome is in Kafka")
                return kafka._replace(tail=(*kafka.tail, Chunk(slot, self.prepare[identity].rows, "open")))
            case actions.CommitPrepared(identity, slot, sequence, applied_lsn, _, in_ledger):
                chunk = find(kafka, slot)
                if chunk is None or chunk.status == "dead":
                    return None
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
        chunk = find(kafka, -1)
        if chunk is None:
            return kafka._replace(tail=(*kafka.tail, Chunk(-1, rows, "open")))
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
            left = chunk.rows
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
        return settled(Kafka(committed, tail, applied_lsn, sequence, ledger, kafka.noted))


def replaced(tail: tuple[Chunk, ...], place: int, chunk: Chunk) -> tuple[Chunk, ...]:
    return (*tail[:place], chunk, *tail[place + 1 :])


def find(kafka: Kafka, producer: int) -> Chunk | None:
    return next((c for c in kafka.tail if c.producer == producer and c.status != "committed"), None)


def settled(kafka: Kafka) -> Kafka:
    """Without the committed chunks before the first open one: they are counted."""
    tail = kafka.tail
    while tail and tail[0].status == "committed":
        tail = tail[1:]
    return kafka._replace(tail=tail)


def fenced(kafka: Kafka, *producers: int) -> Kafka:
    return settled(
        kafka._replace(tail=tuple(c for c in kafka.tail if c.status == "committed" or c.producer not in producers))
    )
