"""The sink's values: batches, names, settings, and the sorting of errors. No broker."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from twofold.errors import (
    AccessDenied,
    EndedElsewhere,
    Fenced,
    RunEnded,
    SetupError,
    TwofoldError,
    Unreachable,
    UsageError,
)
from twofold.kafka.client import KafkaSettings, sort_error, sorted_errors
from twofold.kafka.late_ends import SENT_ONCE_S
from twofold.kafka.names import Names
from twofold.kafka.row_batch import RowBatch


def test_a_batch_keeps_order_and_counts_what_is_in_it() -> None:
    batch = RowBatch()
    lists = batch.lists("t", 3)
    for n in (1, 2):
        lists[2].append({"key": b"k", "value": str(n).encode()})
    batch.lists("u", 1)
    assert batch.lists("t", 3) is lists
    assert (batch.records, batch.topics) == (2, ("t",))
    assert list(batch.partitions()) == [("t", 2, [{"key": b"k", "value": b"1"}, {"key": b"k", "value": b"2"}])]
    batch.bytes += 7
    batch.clear()
    assert (batch.records, batch.bytes, list(batch.partitions())) == (0, 0, [])


def test_a_topic_has_one_number_of_partitions_in_a_batch() -> None:
    batch = RowBatch()
    batch.lists("t", 3)
    with pytest.raises(AssertionError, match="3 partitions"):
        batch.lists("t", 4)


def test_names_follow_from_the_prefix() -> None:
    names = Names("shop", "me")
    assert (*names.main_ids, names.prepared_id(3), names.prepared_id(12)) == (
        "shop.main",
        "shop.main.2",
        "shop.prepared.03",
        "shop.prepared.12",
    )
    assert names.pinned_topic(names.pin_key("shop.public.a/b")) == "shop.public.a/b"
    assert names.pinned_topic(names.progress_key) is None
    assert names.pinned_topic(names.takeover_key) is None
    skip = "shop.public.a", 0x1A_0000_0BC0, "3fa9c1d2"
    assert names.skipped_row(names.skip_key(*skip)) == skip
    assert names.skipped_row(names.skip_key("shop.public.a", 1, "A/B")) is None
    assert names.skipped_row(b"another" + names.skip_key(*skip)) is None
    assert names.command_topic(names.skip_key(*skip)) is None
    assert names.skipped_row(names.command_key("shop.public.a", "start")) is None


@pytest.mark.parametrize(
    ("prefix", "name"), [("", "n"), ("a b", "n"), ("..", "n"), ("a" * 151, "n"), ("p", ""), ("p", "a/b")]
)
def test_names_that_kafka_or_recovery_could_not_use_are_refused(prefix: str, name: str) -> None:
    with pytest.raises(UsageError):
        Names(prefix, name)


def settings(**client: Any) -> KafkaSettings:
    return KafkaSettings({"bootstrap.servers": "b:1", **client})


@pytest.mark.parametrize(
    "name",
    [
        "acks",
        "enable.idempotence",
        "transactional.id",
        "isolation.level",
        "transaction.timeout.ms",
        "message.timeout.ms",
        "delivery.report.only.error",
        "group.id",
        "retry.backoff.ms",
        "retry.backoff.max.ms",
    ],
)
def test_settings_that_would_break_a_promise_are_refused_by_name(name: str) -> None:
    with pytest.raises(UsageError, match=name.replace(".", r"\.")):
        settings(**{name: "1"})


@pytest.mark.parametrize("name", ["max.in.flight", "max.in.flight.requests.per.connection"])
def test_more_than_five_in_flight_is_refused(name: str) -> None:
    assert settings(**{name: 5}).producer("x")[name] == 5
    with pytest.raises(UsageError, match="order of rows"):
        settings(**{name: "6"})


def test_an_end_that_was_sent_once_is_answered_before_it_could_be_sent_again() -> None:
    producer = settings().producer("x")
    assert min(producer["retry.backoff.ms"], producer["retry.backoff.max.ms"]) / 1000 * 0.8 > SENT_ONCE_S


@pytest.mark.parametrize("kind", ["producer", "plain_producer", "consumer", "admin"])
def test_no_client_lets_the_brokers_create_a_topic_by_asking_for_it(kind: str) -> None:
    made = getattr(settings(), kind)
    assert made(*(("x",) if kind == "producer" else ()))["allow.auto.create.topics"] is False


def test_requests_are_not_given_up_before_their_call_is() -> None:
    given = {"bootstrap.servers": "b:1", "socket.timeout.ms": "1500"}
    with pytest.raises(UsageError, match=r"'socket\.timeout\.ms' below 20000"):
        KafkaSettings(given, call_timeout_s=20)
    assert KafkaSettings(given, call_timeout_s=1.5).producer("x")["socket.timeout.ms"] == "1500"
    assert settings().producer("x")["socket.timeout.ms"] >= settings().call_timeout_s * 1000
    reader = KafkaSettings({"bootstrap.servers": "b:1"}, call_timeout_s=10).consumer()
    assert reader["socket.timeout.ms"] == 10_000, "a follower notices a dead connection as soon as a call does"


def test_brokers_must_be_named() -> None:
    with pytest.raises(UsageError, match=r"kafka\.bootstrap"):
        KafkaSettings({})


def test_every_client_is_bounded_and_a_messages_life_ends_with_its_transactions() -> None:
    producer = KafkaSettings({"bootstrap.servers": "b:1", "linger.ms": 50}, transaction_timeout_ms=9000).producer("x")
    assert producer["queue.buffering.max.kbytes"] <= 65_536
    assert producer["message.timeout.ms"] <= producer["transaction.timeout.ms"] == 9000
    assert producer["linger.ms"] == 50


@pytest.mark.parametrize("name", ["linger.ms", "queue.buffering.max.ms"])
def test_only_rows_that_are_flushed_wait_for_more_and_a_person_decides_how_long(name: str) -> None:
    assert settings().producer("x", gathers=True)["linger.ms"] > 100
    assert "linger.ms" not in settings().producer("x")
    given = settings(**{name: 7}).producer("x", gathers=True)
    assert given[name] == 7
    assert [*given].index(name) >= [*given].index("linger.ms"), "of a property's two names librdkafka takes the last"


def test_a_readers_settings_leave_out_what_only_a_producer_knows() -> None:
    reader = settings(**{"linger.ms": 1, "compression.type": "lz4", "sasl.username": "u"}).consumer()
    assert reader["sasl.username"] == "u"
    assert reader["isolation.level"] == "read_committed"
    assert not {"linger.ms", "compression.type"} & set(reader)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (KafkaError._FENCED, Fenced),
        (KafkaError.PRODUCER_FENCED, Fenced),
        (KafkaError.INVALID_PRODUCER_EPOCH, Fenced),
        (KafkaError._TRANSPORT, Unreachable),
        (KafkaError._TIMED_OUT, Unreachable),
        (KafkaError._MSG_TIMED_OUT, Unreachable),
        (KafkaError.NOT_ENOUGH_REPLICAS, Unreachable),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, SetupError),
        (KafkaError.SASL_AUTHENTICATION_FAILED, AccessDenied),
        (KafkaError.INVALID_TRANSACTION_TIMEOUT, SetupError),
        (KafkaError.INVALID_TXN_STATE, EndedElsewhere),
        (KafkaError._STATE, RunEnded),
    ],
)
@pytest.mark.parametrize("wrapped", [False, True])
def test_each_error_has_its_class(code: int, kind: type[TwofoldError], *, wrapped: bool) -> None:
    error = KafkaError(code, "why")
    found = sort_error(KafkaException(error) if wrapped else error, "a call")
    assert type(found) is kind
    assert "a call" in str(found)
    assert "why" in str(found)


def test_the_librarys_error_is_found_behind_a_system_error() -> None:
    error = SystemError("returned a result with an exception set")
    error.__cause__ = KafkaException(KafkaError(KafkaError._FENCED, "newer", fatal=True))
    with pytest.raises(Fenced), sorted_errors("flush"):
        raise error


def test_a_system_error_without_a_cause_ends_the_run() -> None:
    with pytest.raises(RunEnded, match="flush"), sorted_errors("flush"):
        raise SystemError("out of nowhere")


def test_what_is_not_the_librarys_passes() -> None:
    with pytest.raises(KeyError), sorted_errors("flush"):
        raise KeyError("mine")
    with pytest.raises(SetupError, match="mine"), sorted_errors("flush"):
        raise SetupError("mine")
