"""The sink's worker as the model has it: one queue, and the answers."""

from __future__ import annotations

from collections.abc import Iterator

from model.kafka import MAIN, Chunk, End, Initialise, Item, Sink, end_of, find, on_their_way, settled
from model.logs import check
from model.world import Numbers, World
from twofold.bridge import actions


class Worker:
    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.items: Numbers[Item] = Numbers()

    def head(self, world: World) -> Item | None:
        return self.items[world.queue[0]] if world.queue else None

    def rows_on_their_way(self, world: World) -> World:
        """Carry out at once what cannot be told from carrying it out later: all but what has an
        answer.
        """
        kafka, spool, queue = world.kafka, world.spool, world.queue
        while queue and not self.sink.must_wait(kafka, self.items[queue[0]]):
            match self.items[queue[0]]:
                case Initialise():
                    break
                case tuple() as rows:
                    kafka = self.sink.produce(kafka, rows)
                case actions.AppendStaged(identity):
                    check(identity in spool, "the spool no longer has the rows")
                    kafka, spool = self.sink.produce(kafka, self.sink.prepare[identity].rows), spool - {identity}
                case actions.NoteInDoubt(identity, state):
                    check(identity in spool, "the ledger is told of one that the spool has dropped")
                    kafka = kafka._replace(noted=(*kafka.noted, (identity, state)))
                case actions.Forget(identity):
                    spool -= {identity}
                case _:
                    break
            queue = queue[1:]
        if queue is world.queue:
            return world
        return world._replace(kafka=kafka, spool=spool, queue=queue)

    def is_waiting(self, world: World) -> bool:
        """Whether the action at the head of the queue waits for rows that are on their way."""
        return self.sink.must_wait(world.kafka, self.items[world.queue[0]])

    def acknowledge(self, world: World) -> Iterator[tuple[World | None, Chunk]]:
        """Rows that are on their way are acknowledged, at any moment; None if that fails."""
        for chunk in on_their_way(world.kafka):
            kafka = self.sink.acknowledge(world.kafka, chunk)
            yield None if kafka is None else world._replace(kafka=kafka), chunk

    def foretell_wrong_ranges(self, world: World) -> Iterator[tuple[World, End | None]]:
        """The batch's commit record has travelled with its rows, and its ranges are not theirs.

        The transaction is aborted, and the worker writes the rows again; nothing foretells where
        they lie then. With an end as `carry_out` says.
        """
        action, chunk = self.items[world.queue[0]], find(world.kafka, MAIN)
        if not isinstance(action, actions.CommitMain) or not world.forecasts or chunk is None:
            return
        if MAIN in world.kafka.raised or chunk.status != "open":
            return
        check(self.sink.verifies(), "a commit record names offsets that are not its rows'")
        kafka = settled(world.kafka._replace(tail=tuple(c for c in world.kafka.tail if c is not chunk)))
        queue = (self.items.number(chunk.rows), *world.queue)
        aborted = world._replace(kafka=kafka, queue=queue, forecasts=world.forecasts - 1)
        yield aborted, None
        end = End(MAIN, commits=False)
        if world.cuts:
            yield cut(aborted, end), end

    def carry_out(self, world: World) -> Iterator[tuple[World, End | None]]:
        """What can come of the action at the head of the queue; nothing if it fails.

        With an end: the connection was cut under it, it was sent again and done, and the first one
        may come at any later moment.
        """
        action = self.items[world.queue[0]]
        kafka = self.sink.carry_out(world.kafka, action, world.spool)
        if kafka is None:
            return
        world = world._replace(kafka=kafka, queue=world.queue[1:])
        yield world, None
        end = end_of(action)
        if end and world.cuts:
            yield cut(world, end), end


def cut(world: World, end: End) -> World:
    return world._replace(kafka=world.kafka._replace(late=world.kafka.late | {end}), cuts=world.cuts - 1)
