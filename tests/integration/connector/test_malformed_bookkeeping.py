"""Bytes in the bookkeeping's topics that no connector wrote: each command names topic, partition
and offset, with status 5.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Producer

from fixtures.connector import Installation, Maker
from twofold.kafka.kafka_settings import kafka_settings
from twofold.kafka.topic_reader import PartitionId, TopicReader


def put(here: Installation, topic: str, key: bytes, value: bytes | None) -> str:
    """Write a record, as somebody with the right to may; return its place."""
    placed: list[str] = []
    producer = Producer({"bootstrap.servers": here.reader.bootstrap})
    producer.produce(
        topic, value, key, 0, on_delivery=lambda _, sent: placed.append(f"{topic} [0] at offset {sent.offset()}")
    )
    assert producer.flush(20) == 0
    return placed[0]


def last_value(here: Installation, topic: str, key: bytes | None) -> bytes:
    """The last record with the key, or with any."""
    reader = TopicReader(kafka_settings(here.config))
    found = [each for each in reader.read(reader.visible([PartitionId(topic, 0)])) if key in {None, each.key()}]
    return found[-1].value() or b""


@contextmanager
def spoilt(here: Installation, topic: str, key: bytes, bad: bytes, good: bytes | None) -> Iterator[str]:
    """The bad record is the key's last one, until it is replaced."""
    yield put(here, topic, key, bad)
    put(here, topic, key, good)


def assert_named(here: Installation, place: str) -> None:
    said = f"the record in {place} cannot be read"
    for command in ("status", "audit"):
        done = here.twofold(command)
        assert done.returncode == 5, (command, done)
        assert said in done.stdout + done.stderr, (command, done)
    error = here.refusal()
    assert error.exit_status == 5
    assert said in str(error)


def test_what_no_connector_wrote_is_named_with_its_place(connector: Maker) -> None:
    here = connector()
    with here.carrying():
        here.sql("INSERT INTO account VALUES (1, 1, 'x')")
        here.caught_up()
    progress, commits, key = f"{here.prefix}.progress", f"{here.prefix}.commits", here.prefix.encode()
    command = f"{here.prefix}/backfill/{here.table('account')}/load".encode()
    good = last_value(here, progress, key)
    for of, bad, after in ((command, b"\xff", None), (key, b"garbage", good), (key, good[:-3], good)):
        with spoilt(here, progress, of, bad, after) as place:
            assert_named(here, place)
    here.twofold("status", ok=True)
    assert_named(here, put(here, commits, b"9999999", last_value(here, commits, None)[:-3]))
