"""The broker goes away in the middle: what was committed and what was not is known afterwards, by
one reading behind the fence.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from integration.sink.sink_ground import Ground, commit, eventually, progress
from twofold.errors import RunEnded, TwofoldError, Unreachable
from twofold.kafka.publisher import TransactionRecords

MakeGround = Callable[..., Ground]


def agree(ground: Ground, rows: list[str]) -> int:
    """Recover, and compare what is visible with what the progress says.

    Returns the sequence number.
    """
    recovered = ground.take_over().recovered
    done = recovered.progress.sequence if recovered.progress else 0
    assert (recovered.last_commit.sequence if recovered.last_commit else 0) == done
    eventually(lambda: ground.committed() == (sorted(rows) if done else []))
    return done


@pytest.fixture
def broker(own_kafka: Callable[..., Any]) -> Any:
    return own_kafka()


def test_a_commit_whose_answer_never_came_is_resolved_by_the_progress(
    make_ground: MakeGround, broker: Any, prefix: str
) -> None:
    ground = make_ground(broker.bootstrap, prefix, call_timeout_s=3)
    publisher = ground.take_over().publisher
    publisher.produce(ground.rows("a", "b"))
    publisher._main.flush()
    main = publisher._main
    flush = main.flush

    def flush_and_stop_the_broker() -> None:
        flush()
        os.kill(broker.nodes[0].pid, signal.SIGSTOP)

    main.flush = flush_and_stop_the_broker  # type: ignore[method-assign]
    with pytest.raises((Unreachable, RunEnded)):
        publisher.commit_main(TransactionRecords(commit(1), progress(1)))
    with pytest.raises(RunEnded, match="destroyed"):
        main.begin()
    publisher.close()
    os.kill(broker.nodes[0].pid, signal.SIGCONT)
    ground.options["call_timeout_s"] = 60
    agree(ground, ["a", "b"])


@pytest.mark.slow
def test_killed_and_restarted_with_transactions_open(make_ground: MakeGround, broker: Any, prefix: str) -> None:
    ground = make_ground(broker.bootstrap, prefix, call_timeout_s=60)
    publisher = ground.take_over().publisher
    ground.open(publisher, 0, ground.rows("prepared"))
    publisher.produce(ground.rows("flushed"))
    publisher._main.flush()
    publisher.produce(ground.rows("queued"))
    broker.kill()
    broker.restart()
    rows: list[str] = []
    try:
        publisher.commit_main(TransactionRecords(commit(1), progress(1)))
        rows = ["flushed", "queued"]
        publisher.commit_prepared(0, TransactionRecords(commit(2, "prepared"), progress(2)))
        rows = ["flushed", "queued", "prepared"]
    except TwofoldError:
        pass  # either is right, as long as what is visible and what the progress says agree
    publisher.close()
    done = ground.take_over().recovered.progress
    assert (done.sequence if done else 0) == (0, 0, 1, 2)[len(rows)]
    eventually(lambda: ground.committed() == sorted(rows))


def test_a_broker_that_stays_away_ends_each_call_within_its_bound(
    make_ground: MakeGround, broker: Any, prefix: str
) -> None:
    ground = make_ground(broker.bootstrap, prefix, call_timeout_s=2)
    publisher = ground.take_over().publisher
    topics = ground.topics()
    broker.kill()
    publisher.produce(ground.rows("a"))
    with pytest.raises(Unreachable, match=r"kafka\.bootstrap"):
        publisher.commit_main(TransactionRecords(commit(1), progress(1)))
    publisher.close()
    with pytest.raises(Unreachable):
        ground.take_over()
    with pytest.raises(Unreachable):
        topics.ensure(ground.wanted())
