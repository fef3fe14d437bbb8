"""The only broker stands still for longer than its own controller waits for it, and goes on: for a
moment it says of itself that there is no broker.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from fixtures.connector import Maker, Running, frozen, wait_until
from twofold.stack import KafkaCluster

CONNECTORS = 2


def is_recovering(run: Running) -> bool:
    return "the run has ended" in run.said()


def test_a_broker_that_was_frozen_ends_no_connector(connector: Maker, own_kafka: Callable[..., KafkaCluster]) -> None:
    kafka = own_kafka()
    here = [connector(kafka_server=kafka, kafka={"call_timeout": 5.0}) for _ in range(CONNECTORS)]
    runs = [each.start() for each in here]
    with frozen(kafka.nodes[0].pid):
        for each, run in zip(here, runs, strict=True):
            each.sql("INSERT INTO account VALUES (1, 1, 'a')")
            wait_until(partial(is_recovering, run))
        away = here[0].twofold("status")
    assert away.returncode == 4, away.stdout + away.stderr
    assert f"slot {here[0].prefix}, WAL reserved" in away.stdout, "PostgreSQL's half"
    assert f"in Kafka    not known: Kafka at {kafka.bootstrap} does not answer" in away.stdout
    for each, run in zip(here, runs, strict=True):
        each.check()
        run.stop()
