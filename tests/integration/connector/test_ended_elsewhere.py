"""Real late ends of Kafka's transactions, with the rule against them taken out: the audit finds
what they do, and recovery refuses what it can see before it sends anything again.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from chaos.proxy import Proxy
from fixtures.backfill import ready
from fixtures.connector import Installation, Maker, wait_until
from helpers.connector.topics import UNCOMMITTED
from integration.connector.test_audit import audit, of
from late.frames import Api
from late.rules import Moment, Rule
from late.servers import FrontedKafka
from twofold.errors import Refused
from twofold.kafka import late_ends
from twofold.kafka.open_check import OpenCheck
from twofold.kafka.producer import TransactionalProducer
from twofold.kafka.publisher import Publisher
from twofold.run.supervisor import supervise


@pytest.fixture
def proxied(
    connector: Maker, fronted_kafka: FrontedKafka, monkeypatch: pytest.MonkeyPatch
) -> tuple[Installation, Proxy]:
    """A connector without the rule, and the proxy before its broker."""
    monkeypatch.setattr(late_ends, "SENT_ONCE_S", math.inf)
    here = connector(kafka_server=fronted_kafka, prepared={"pool": 1, "hold": 40})
    here.sql("INSERT INTO account SELECT n, 0, 'a row' FROM generate_series(1, 20) n")
    return here, fronted_kafka.proxy


@contextmanager
def carrying(here: Installation) -> Iterator[Future[None]]:
    """`twofold run` on a thread; the future has its refusal."""
    stop = threading.Event()
    with ThreadPoolExecutor(1) as executor:
        run = executor.submit(supervise, here.config, stop)
        try:
            yield run
        finally:
            stop.set()


def late_end(proxy: Proxy, ids: str, *, commit: bool) -> None:
    """The next such end is sent twice, and the first of the two waits for `release`."""
    proxy.withhold(
        Rule(name="late", api=Api.END_TXN, ids=ids, commit=commit, most=1, moment=Moment.COMMAND, give_up=300)
    )


def prepared_and_open(here: Installation, gid: str, key: int) -> None:
    here.prepare(gid, f"INSERT INTO account VALUES ({key}, 0, '{gid}')")
    tail = here.tail("account", isolation=UNCOMMITTED)
    tail.wait_for(lambda s: s.value is not None and s.value["source"]["gid"] == gid, 60)


def ended_late(here: Installation, proxy: Proxy, *, commit: bool) -> None:
    """A prepared transaction's end is on its way, was sent again, and has been answered: the
    producer is free.
    """
    prepared_and_open(here, "first", 100)
    late_end(proxy, r"prepared\.00$", commit=commit)
    here.sql("COMMIT PREPARED 'first'" if commit else "ROLLBACK PREPARED 'first'")
    wait_until(lambda: proxy.waiting() == 1)
    here.caught_up()


def test_a_late_abort_loses_a_prepared_transaction_and_the_audit_finds_it(
    proxied: tuple[Installation, Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second line is out as well."""
    monkeypatch.setattr(OpenCheck, "assert_open", lambda *_: None)
    here, proxy = proxied
    with carrying(here) as run:
        ended_late(here, proxy, commit=False)
        prepared_and_open(here, "lost", 101)
        assert proxy.release("late") == 1
        here.sql("COMMIT PREPARED 'lost'")
        here.caught_up()
        assert not run.done()
    status, found = audit(here)
    assert status == 5
    (damage,) = of(found, "account")["damages"]
    assert (damage["damage"]["kind"], damage["damage"]["visible"], damage["damage"]["declared"]) == ("short", 0, 1)
    assert not [s for s in here.read("account") if s.value and s.value["after"] and s.value["after"]["id"] == 101]


def test_a_late_commit_shows_what_is_rolled_back_and_recovery_refuses(proxied: tuple[Installation, Proxy]) -> None:
    here, proxy = proxied
    with carrying(here) as run:
        ended_late(here, proxy, commit=True)
        prepared_and_open(here, "dirty", 101)
        assert proxy.release("late") == 1
        here.sql("ROLLBACK PREPARED 'dirty'")
        _refused(run)
    status, found = audit(here)
    assert status == 5
    assert [each["damage"]["kind"] for each in of(found, "account")["damages"]] == ["unexpected"]


def test_a_late_commit_in_the_middle_of_a_group_is_refused_before_it_is_sent_again(
    proxied: tuple[Installation, Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the command that the refusal names repairs it."""
    here, proxy = proxied
    describe: Callable[..., Any] = Publisher._describe
    released: list[str] = []

    def release_first(self: Publisher, producer: TransactionalProducer, *rest: Any) -> Any:
        """Behind the rows, and before their commit record is written."""
        if producer.transactional_id.endswith(".main") and not released and proxy.waiting():
            producer.flush()
            released.append(producer.transactional_id)
            assert proxy.release("late") == 1
        return describe(self, producer, *rest)

    monkeypatch.setattr(Publisher, "_describe", release_first)
    with carrying(here) as run:
        here.caught_up()
        late_end(proxy, r"\.main$", commit=True)
        for key in range(200, 210):
            before = len(here.records("commits"))
            here.sql(f"INSERT INTO account VALUES ({key}, 0, 'visible before it is committed')")
            wait_until(partial(_carried_or, released, here, before))
            if released:
                break
        _refused(run)
    assert [each["damage"]["kind"] for each in of(audit(here)[1], "account")["damages"]] == ["unexpected"]
    assert isinstance(here.refusal(), Refused)
    here.twofold("backfill", "start", "public.account", ok=True)
    here.start()
    wait_until(lambda: of(audit(here)[1], "account")["reload"], 90, "the reload")
    ready(here, 60)
    assert audit(here)[0] == 0


def _carried_or(released: list[str], here: Installation, before: int) -> bool:
    """Whether there is a commit record more, or the late end was delivered."""
    return bool(released) or len(here.records("commits")) > before


def _refused(run: Future[None]) -> None:
    with pytest.raises(Refused, match="someone else has ended a Kafka transaction") as refused:
        run.result(90)
    assert refused.value.repair == "twofold backfill start public.account; then restart the connector"
