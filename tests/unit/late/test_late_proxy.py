"""What the proxy does to a request that it withholds, and to the connections around it."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import pytest

from chaos.proxy import Proxy
from fixtures.connector import wait_until
from late.frames import Api
from late.rules import Cut, Moment, Rule
from twofold.stack.process import choose_port
from unit.late.late_broker import Broker, add_partitions, end_txn, receive, send


class Ground(NamedTuple):
    broker: Broker
    proxy: Proxy
    fronts: list[int]


@pytest.fixture
def ground() -> Iterator[Ground]:
    """Two fronts of one broker: a producer's coordinator may move."""
    broker = Broker()
    broker.start()
    fronts = [choose_port(None, "a front") for _ in range(2)]
    proxy = Proxy(dict.fromkeys(fronts, broker.port), fronts)
    proxy.set(fronts[0], "pass")
    yield Ground(broker, proxy, fronts)
    proxy.close()
    broker.listening.close()


def connect(front: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", front), timeout=5)


def asks(connection: socket.socket, body: bytes) -> bool:
    """Whether the request is answered, and as the one that it is."""
    send(connection, body)
    return receive(connection)[:4] == body[4:8]


END = Rule(name="end", api=Api.END_TXN, ids=r"\.main$", most=1)


@pytest.mark.parametrize("cut", [Cut.FIN, Cut.RST])
def test_an_end_arrives_inside_the_next_transaction(ground: Ground, cut: Cut) -> None:
    ground.proxy.withhold(replace(END, cut=cut))
    with connect(ground.fronts[0]) as old, connect(ground.fronts[1]) as new:
        assert asks(old, add_partitions(1))
        with pytest.raises(EOFError if cut is Cut.FIN else ConnectionResetError):
            asks(old, end_txn(2, True))
        assert asks(new, end_txn(1, True))
        assert ground.proxy.waiting() == 1
        assert asks(new, add_partitions(2))
    assert ground.broker.seen == [(1, 1), (2, 1), (2, 2), (1, 2)]
    assert ground.proxy.counts()["end"] == {"held": 1, "given_up": 0, "late": 1, "accepted": 1, "error 0": 1}


def test_one_that_is_held_silently_is_answered_late_and_what_comes_behind_it_waits(ground: Ground) -> None:
    ground.proxy.withhold(replace(END, cut=Cut.HOLD, moment=Moment.COMMAND))
    with connect(ground.fronts[0]) as client:
        send(client, end_txn(1, True))
        wait_until(ground.proxy.waiting)
        send(client, add_partitions(2))
        assert ground.broker.seen == []
        assert ground.proxy.release("end") == 1
        assert [receive(client)[:4], receive(client)[:4]] == [b"\0\0\0\1", b"\0\0\0\2"]
    assert ground.broker.seen == [(1, 1), (1, 2)]
    assert ground.proxy.counts()["end"]["accepted"] == 0, "it was in its own transaction"


def test_an_answer_is_lost_and_the_request_is_not(ground: Ground) -> None:
    ground.proxy.withhold(replace(END, cut=Cut.LOST))
    with connect(ground.fronts[0]) as client, pytest.raises(ConnectionResetError):
        asks(client, end_txn(1, True))
    assert ground.broker.seen == [(1, 1)]
    assert ground.proxy.counts()["end"] == {"lost": 1}


@pytest.mark.parametrize(
    ("moment", "behind", "expected"),
    [
        (Moment.BEFORE_RECORD, add_partitions(5, "shop.commits"), [4, 1, 5]),
        (Moment.BEFORE_END, end_txn(5, True), [4, 1, 5]),
    ],
)
def test_it_arrives_before_a_request(ground: Ground, moment: Moment, behind: bytes, expected: list[int]) -> None:
    ground.proxy.withhold(replace(END, moment=moment))
    with connect(ground.fronts[0]) as old, connect(ground.fronts[0]) as new:
        send(old, end_txn(1, False))
        wait_until(ground.proxy.waiting)
        assert asks(new, end_txn(3, False))
        assert asks(new, add_partitions(4))
        assert asks(new, behind)
    assert [correlation for _, correlation in ground.broker.seen[1:]] == expected


def test_it_arrives_when_the_next_transaction_is_idle(ground: Ground) -> None:
    ground.proxy.withhold(replace(END, moment=Moment.IDLE, seconds=0.1))
    with connect(ground.fronts[0]) as old, connect(ground.fronts[0]) as new:
        send(old, end_txn(1, False))
        wait_until(ground.proxy.waiting)
        assert asks(new, end_txn(3, False))
        assert asks(new, add_partitions(4))
        assert asks(new, add_partitions(5))
        wait_until(lambda: ground.proxy.counts()["end"].get("late"))
    assert [correlation for _, correlation in ground.broker.seen] == [3, 4, 5, 1]


def test_a_moment_that_does_not_come_is_given_up(ground: Ground) -> None:
    ground.proxy.withhold(replace(END, give_up=0.1))
    with connect(ground.fronts[0]) as client:
        send(client, end_txn(1, True))
        wait_until(lambda: ground.proxy.counts().get("end", {}).get("late"))
    assert ground.proxy.counts()["end"]["given_up"] == 1


def test_rules_choose(ground: Ground) -> None:
    ground.proxy.withhold(
        Rule(name="abort", api=Api.END_TXN, commit=False, moment=Moment.COMMAND),
        Rule(name="rows", api=Api.ADD_PARTITIONS, topic="^rows$", every=2, moment=Moment.COMMAND),
    )
    with connect(ground.fronts[0]) as client:
        assert asks(client, end_txn(1, True))
        assert asks(client, add_partitions(2, "other"))
        assert asks(client, add_partitions(3))
        send(client, add_partitions(4))
        wait_until(ground.proxy.waiting)
    with connect(ground.fronts[0]) as client:
        assert asks(client, end_txn(5, False)), "one request of an id at a time"
        send(client, end_txn(6, False, "another"))
        wait_until(lambda: ground.proxy.waiting() == 2)
    assert {name: counts["held"] for name, counts in ground.proxy.counts().items()} == {"rows": 1, "abort": 1}


def test_a_broker_that_closed_the_old_connection_never_gets_it(ground: Ground) -> None:
    ground.proxy.withhold(replace(END, moment=Moment.COMMAND))
    with connect(ground.fronts[0]) as client:
        send(client, end_txn(1, True))
        wait_until(ground.proxy.waiting)
        ground.proxy.set(ground.fronts[0], "cut")
        wait_until(lambda: ground.proxy.release("end") == 0 or ground.proxy.counts()["end"].get("gone"))
    assert ground.broker.seen == []


def test_frames_pass_as_the_mode_says(ground: Ground) -> None:
    with connect(ground.fronts[0]) as client:
        assert asks(client, end_txn(1, True))
        ground.proxy.set(ground.fronts[0], "freeze")
        client.settimeout(0.3)
        with pytest.raises(TimeoutError):
            asks(client, end_txn(2, True))
        ground.proxy.set(ground.fronts[0], "pass")
        client.settimeout(5)
        assert receive(client)[:4] == b"\0\0\0\2"
        ground.proxy.set(ground.fronts[0], "delay", seconds=0.1)
        begun = time.monotonic()
        assert asks(client, end_txn(3, True))
        assert time.monotonic() - begun >= 0.2
