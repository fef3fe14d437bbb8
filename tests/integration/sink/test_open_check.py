"""The second line: what somebody else has ended is not declared. Here the rule for ends that may
have been sent twice is taken out, so that a late one meets a later transaction.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import pytest

from chaos.proxy import Proxy
from integration.sink.sink_ground import Ground, commit, eventually, progress
from late.frames import Api
from late.rules import Moment, Rule
from late.servers import FrontedKafka
from twofold.errors import EndedElsewhere
from twofold.kafka import late_ends
from twofold.kafka.open_check import OpenCheck
from twofold.kafka.publisher import TransactionRecords
from twofold_avro.records import Range


@pytest.fixture
def proxied(make_ground: Callable[..., Ground], fronted_kafka: FrontedKafka, prefix: str) -> tuple[Ground, Proxy]:
    """A ground behind a proxy that can make requests late."""
    return make_ground(fronted_kafka.bootstrap, prefix), fronted_kafka.proxy


@contextmanager
def one_end_is_late(proxy: Proxy, ids: str) -> Iterator[None]:
    """The first end inside is sent twice; outside it is still on its way, until `release`."""
    proxy.withhold(Rule(name="late", api=Api.END_TXN, ids=ids, most=1, moment=Moment.COMMAND, give_up=120))
    yield
    assert proxy.waiting() == 1


def test_of_a_prepared_transaction(proxied: tuple[Ground, Proxy], monkeypatch: pytest.MonkeyPatch) -> None:
    """A late abort: without the question its commit record would speak of rows that nobody sees."""
    ground, proxy = proxied
    monkeypatch.setattr(late_ends, "SENT_ONCE_S", math.inf)
    publisher = ground.take_over().publisher
    for sequence, asked in enumerate((False, True), start=1):
        ground.open(publisher, 0, ground.rows("rolled back"))
        with one_end_is_late(proxy, r"prepared\.00$"):
            publisher.abort(0)
        ground.open(publisher, 0, ground.rows(f"{asked}"))
        assert proxy.release("late") == 1
        with monkeypatch.context() as patch:
            if not asked:
                patch.setattr(OpenCheck, "assert_open", lambda *_: None)
                publisher.commit_prepared(0, TransactionRecords(commit(sequence, "prepared"), progress(sequence)))
                continue
        with pytest.raises(EndedElsewhere, match="somebody else ended the transaction of"):
            publisher.commit_prepared(0, TransactionRecords(commit(sequence, "prepared"), progress(sequence)))
    publisher.close()
    assert ground.committed() == []
    last = ground.take_over().recovered.last_commit
    assert last is not None
    assert last.sequence == 1  # the one that was not asked about: lost


def test_of_a_batch(proxied: tuple[Ground, Proxy], monkeypatch: pytest.MonkeyPatch) -> None:
    """A late commit: its rows are visible before their commit record, which is not written."""
    ground, proxy = proxied
    monkeypatch.setattr(late_ends, "SENT_ONCE_S", math.inf)
    publisher = ground.take_over().publisher
    publisher.produce(ground.rows("1"))
    with one_end_is_late(proxy, r"\.main$"):
        publisher.commit_main(TransactionRecords(commit(1), progress(1)))
    publisher.produce(ground.rows("2"))
    publisher.commit_main(TransactionRecords(commit(2), progress(2)))
    publisher.produce(ground.rows("3"))
    publisher._main.flush()
    assert proxy.release("late") == 1
    with pytest.raises(EndedElsewhere):
        publisher.commit_main(TransactionRecords(commit(3), progress(3)))
    publisher.close()
    eventually(lambda: ground.committed() == ["1", "2", "3"])
    last = ground.take_over().recovered.last_commit
    assert last is not None
    assert last.sequence == 2


def test_a_lost_connection_is_no_answer(proxied: tuple[Ground, Proxy]) -> None:
    """Brokers close idle connections, at the moment of a question too: it is asked again."""
    ground, proxy = proxied
    publisher = ground.take_over().publisher
    publisher.produce(ground.rows("1"))
    publisher._main.flush()
    (written,) = publisher._main.deliveries.ranges()
    front = int(ground.settings.client["bootstrap.servers"].rpartition(":")[2])
    asked = threading.Semaphore(0)

    def cut() -> None:
        """Once at each question, some sooner and some later: on a busy machine a connection may
        take longer than any pause.
        """
        for n in range(40):
            asked.acquire()
            time.sleep(n % 8 / 1000)
            proxy.set(front, "cut")
            proxy.set(front, "pass")

    with ThreadPoolExecutor(1) as pool, closing(OpenCheck(ground.settings, ground.watch)) as check:
        cutting = pool.submit(cut)
        try:
            for _ in range(40):
                asked.release()
                check.assert_open("main", written)
        finally:
            asked.release(40)
        cutting.result()
    publisher.commit_main(TransactionRecords(commit(1), progress(1)))


def test_an_older_transaction_hides_it_and_it_is_not_asked(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int]] = []
    ask = OpenCheck.assert_open

    def note(check: OpenCheck, transactional_id: str, written: Range) -> None:
        asked.append((transactional_id.removeprefix(ground.names.prefix), written.partition))
        ask(check, transactional_id, written)

    monkeypatch.setattr(OpenCheck, "assert_open", note)
    publisher = ground.take_over().publisher
    ground.open(publisher, 0, ground.rows("0a"))
    ground.open(publisher, 1, ground.rows("1a"))
    publisher.produce(ground.rows("a"))
    publisher.commit_main(TransactionRecords(commit(1), progress(1)))
    publisher.produce(ground.rows("a", "b"))
    publisher.commit_main(TransactionRecords(commit(2), progress(2)))
    publisher.commit_prepared(0, TransactionRecords(commit(3, "prepared"), progress(3)))
    publisher.commit_prepared(1, TransactionRecords(commit(4, "prepared"), progress(4)))
    assert asked == [(".main.2", 1), (".prepared.00", 0), (".prepared.01", 0)]
    eventually(lambda: len(ground.committed()) == 5)
