"""What happens after a run has ended: the old worker goes on until it is fenced, late requests
come, and recovery takes its steps.
"""

from __future__ import annotations

from collections.abc import Iterator

from model.kafka import MAIN, End, arrives, fenced, producer_of
from model.logs import Scenario, check
from model.worker import Worker, cut
from model.world import Numbers, World
from twofold.bridge import State, initial
from twofold_common.positions import Lsn


class Recovery:
    def __init__(self, scenario: Scenario, worker: Worker, states: Numbers[State]) -> None:
        self.scenario = scenario
        self.worker = worker
        self.states = states

    def after(self, world: World) -> Iterator[World]:
        yield from self.zombie(world)
        for end in world.kafka.late:
            yield world._replace(kafka=arrives(world.kafka, end))
        on = world._replace(stage=world.stage + 1)
        match self.scenario.recovery[world.stage]:
            case "fence main":
                yield self.begun(on._replace(kafka=fenced(world.kafka, MAIN)._replace(noted=())))
            case "fence pool":
                kafka = fenced(world.kafka, *range(self.scenario.pool))
                yield self.begun(on._replace(kafka=kafka, queue=self.left_to_a_zombie(world)))
            case "take over":
                yield from self._take_over(world, on)
            case "read progress":
                kafka = world.kafka
                yield self.begun(on._replace(saved=(kafka.applied_lsn, kafka.sequence, kafka.ledger)))
            case _:
                yield self.begun(on)

    def zombie(self, world: World) -> Iterator[World]:
        """The old worker goes on, until it meets a fence."""
        main_is_fenced = "fence main" in self.scenario.recovery[: world.stage]
        action = self.worker.head(world)
        if action is None or (main_is_fenced and producer_of(action) == MAIN):
            return
        for acknowledged, _ in self.worker.acknowledge(world):
            if acknowledged:
                yield acknowledged if main_is_fenced else self.worker.rows_on_their_way(acknowledged)
        if self.worker.is_waiting(world):
            return
        for following, end in (*self.worker.foretell_wrong_ranges(world), *self.worker.carry_out(world)):
            if end and self.worker.sink.ends_the_epoch(end):
                yield following._replace(queue=())
            else:
                yield following if main_is_fenced else self.worker.rows_on_their_way(following)

    def left_to_a_zombie(self, world: World) -> tuple[int, ...]:
        """What it may still do when all its producers are fenced."""
        return ()

    def _take_over(self, world: World, on: World) -> Iterator[World]:
        """Recovery's own transaction, through the main producer.

        If its end may have been sent twice, the id is initialised once more before the progress is
        read.
        """
        if MAIN in world.kafka.raised:
            yield world._replace(stage=0)
            return
        yield self.begun(on)
        end = End(MAIN, commits=True)
        if world.cuts:
            kept = not self.worker.sink.ends_the_epoch(end, takeover=True)
            doubted = cut(on, end)
            yield self.begun(doubted if kept else doubted._replace(kafka=fenced(doubted.kafka, MAIN)))

    def begun(self, world: World) -> World:
        """The run begins, if that was the last step."""
        if world.stage < len(self.scenario.recovery):
            return world
        assert world.saved is not None
        applied_lsn, sequence, ledger = world.saved
        check(world.confirmed <= applied_lsn, "the slot is ahead of the progress")
        bridge = initial(
            applied_lsn=Lsn(applied_lsn),
            confirmed_lsn=Lsn(world.confirmed),
            sequence=sequence,
            pool=self.scenario.pool,
            in_doubt=ledger,
            policy=self.scenario.policy,
        )
        place = sum(record.start < world.confirmed for record in self.scenario.log)
        return world._replace(
            bridge=self.states.number(bridge), stage=0, saved=None, place=place, queue=(), spool=frozenset()
        )
